//! Which names a daemon without a token answers to.
//!
//! A page in a browser on this host can have a name of its own lead to a loopback address, and then speak to the daemon as
//! if it were its own server. The browser says which name it was led by, which has to be this host's, and, with whatever
//! could change something, whose page it is, which has to be the daemon's own. Another port of this host is somebody else:
//! `forkd port` gives every guest one.

use std::net::IpAddr;

use api::Code;
use axum::http::{HeaderMap, StatusCode, header};

use crate::error::ApiError;

/// Refuses who was not led here by this host's own names.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    if !is_loopback(host) {
        return Err(refused(&format!("this was sent to `{}`", shown(host))));
    }
    let origin = text(header::ORIGIN).map(|origin| origin.split_once("://").map_or("", |(_, host)| host));
    if origin.is_some_and(|origin| !origin.eq_ignore_ascii_case(host)) {
        return Err(refused("this comes from a page of another server"));
    }
    Ok(())
}

fn refused(what: &str) -> ApiError {
    let message = format!(
        "{what}, and without a token the daemon serves this host only: use http://127.0.0.1, or give it a --token-file"
    );
    ApiError::new(StatusCode::FORBIDDEN, Code::HostNotAllowed, message)
}

fn shown(host: &str) -> String {
    host.chars().take(64).collect()
}

/// Whether a host, with or without a port, is this one under any of its names.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
        Some(_) => return false,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_has_its_names() {
        for ours in ["localhost", "LOCALHOST:8889", "localhost.:1", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:8889"]
        {
            assert!(is_loopback(ours), "{ours}");
        }
        for theirs in
            ["", "x", "evil.example:8889", "localhost.evil.example", "10.0.0.1", "0.0.0.0:1", "[::1]x", "[fe80::1]:1"]
        {
            assert!(!is_loopback(theirs), "{theirs}");
        }
    }

    #[test]
    fn a_page_of_another_host_is_refused() {
        let headers = |pairs: &[(header::HeaderName, &str)]| -> HeaderMap {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
        };
        let host = (header::HOST, "127.0.0.1:8889");
        check(&headers(std::slice::from_ref(&host))).unwrap();
        check(&headers(&[host.clone(), (header::ORIGIN, "http://127.0.0.1:8889")])).unwrap();
        let elsewhere = ["http://127.0.0.1:8080", "http://127.0.0.1", "http://localhost:8889"];
        for origin in ["http://evil.example", "null", "https://localhost.evil.example:1"].into_iter().chain(elsewhere) {
            let refused = check(&headers(&[host.clone(), (header::ORIGIN, origin)])).unwrap_err();
            assert_eq!((refused.status.as_u16(), refused.code), (403, Code::HostNotAllowed), "{origin}");
        }
        check(&HeaderMap::new()).unwrap_err();
    }
}
