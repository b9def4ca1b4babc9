//! An error and its causes as one text.

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

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_joined_and_never_repeated() {
        let error = anyhow!("no such file").context("cannot read x: no such file").context("cannot boot");
        assert_eq!(chain(&error), "cannot boot: cannot read x: no such file");
    }
}
