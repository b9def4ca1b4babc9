//! An error and its causes as one text.

use client::ClientError;

/// The chain, each cause said once: some errors already end with their cause's words.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

/// What to do about an error that can come from every verb: the daemon does not say what its clients' flags are.
pub(crate) fn advice(error: &anyhow::Error) -> &'static str {
    match error.chain().find_map(|cause| cause.downcast_ref::<ClientError>()).and_then(ClientError::status) {
        Some(401) => {
            "; FORKD_TOKEN or --daemon-token says the token that the daemon wants, and FORKD_HOME=DIR asks one of your own"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_joined_and_never_repeated() {
        let error = anyhow!("no such file").context("cannot read x: no such file").context("cannot boot");
        assert_eq!(chain(&error), "cannot boot: cannot read x: no such file");
    }

    #[test]
    fn who_has_no_token_is_told_where_to_say_it() {
        let refused = |status| ClientError::Refused { status, code: String::new(), message: "no".into() };
        assert!(advice(&anyhow::Error::new(refused(401)).context("cannot list")).contains("FORKD_TOKEN"));
        assert_eq!(advice(&refused(404).into()), "");
    }
}
