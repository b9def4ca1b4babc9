//! Where a daemon listens.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address of a daemon: `http://HOST:PORT`, `https://HOST:PORT`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The beginning of every URL, without a slash at its end.
    Url(String),
    /// A socket of this host.
    Unix(PathBuf),
}

/// It is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no address of a daemon; they look like http://127.0.0.1:8889, https://host:8889 or unix:/run/forkd.sock"
)]
pub struct EndpointError {
    text: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || EndpointError { text: text.chars().take(200).collect() };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            return if path.is_absolute() { Ok(Self::Unix(path.into())) } else { Err(refused()) };
        }
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).ok_or_else(refused)?;
        let plain = rest.chars().all(|one| one.is_ascii_graphic() && !"?#@".contains(one));
        if rest.trim_end_matches('/').is_empty() || !plain {
            return Err(refused());
        }
        Ok(Self::Url(text.trim_end_matches('/').into()))
    }
}

impl Endpoint {
    /// Whether it is on this computer, so that a path means the same to both sides.
    #[must_use]
    pub fn is_here(&self) -> bool {
        let Self::Url(url) = self else { return true };
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        let host = match authority.strip_prefix('[') {
            Some(six) => six.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        };
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_url_or_a_path() {
        let parse = |text: &str| text.parse::<Endpoint>();
        assert_eq!(parse("http://127.0.0.1:8889/"), Ok(Endpoint::Url("http://127.0.0.1:8889".into())));
        assert_eq!(parse("https://host"), Ok(Endpoint::Url("https://host".into())));
        for unix in ["unix:/run/forkd.sock", "unix:///run/forkd.sock"] {
            assert_eq!(parse(unix), Ok(Endpoint::Unix("/run/forkd.sock".into())));
        }
        for bad in
            ["", "127.0.0.1:8889", "http://", "ftp://host", "unix:relative", "http://a b", "http://u@h", "http://h?x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn this_computer_is_known_by_its_names() {
        let is_here = |text: &str| text.parse::<Endpoint>().unwrap().is_here();
        for here in ["unix:/s", "http://localhost", "http://127.0.0.1:8889/x", "https://127.9.9.9", "http://[::1]:1"] {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in
            ["http://10.0.0.1:8889", "https://localhost.example", "http://127.0.0.1.example", "http://[::2]"]
        {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }
}
