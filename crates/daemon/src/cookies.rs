//! Cookies of servers in sandboxes, which are all on one host to a client.
//!
//! A client keeps cookies by host. So a server in a guest would get those of every other one, and of whatever else runs on
//! that host, and could set them. Each port of each sandbox therefore has names of its own: they are given a prefix on the
//! way out, which is taken off on the way in, and what has another one is not passed on.
//!
//! ```text
//! guest     Set-Cookie: session=1; Path=/; Domain=x        Cookie: session=1
//! client    Set-Cookie: forkd.ID.80.session=1; Path=/v1/sandboxes/ID/ports/80/
//! ```

use axum::http::{HeaderMap, HeaderValue, header};

/// What of a cookie is ours to say.
const OURS: [&str; 2] = ["path", "domain"];

/// One port of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Jar {
    prefix: String,
    path: String,
}

impl Jar {
    pub(crate) fn new(id: &str, port: u16) -> Self {
        Self { prefix: format!("forkd.{id}.{port}."), path: format!("/v1/sandboxes/{id}/ports/{port}/") }
    }

    /// Leaves the server its own cookies, by the names that it gave them.
    pub(crate) fn inward(&self, headers: &mut HeaderMap) {
        let brought = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let own = brought.flat_map(|cookies| cookies.split(';')).filter_map(|it| it.trim().strip_prefix(&self.prefix));
        let own = own.collect::<Vec<_>>().join("; ");
        headers.remove(header::COOKIE);
        if let Ok(own) = HeaderValue::from_str(&own)
            && !own.is_empty()
        {
            headers.insert(header::COOKIE, own);
        }
    }

    /// Lets the server set none but its own. What is no text is not passed on.
    pub(crate) fn outward(&self, headers: &mut HeaderMap) {
        let header::Entry::Occupied(entry) = headers.entry(header::SET_COOKIE) else { return };
        let (_, set) = entry.remove_entry_mult();
        let set: Vec<_> = set.filter_map(|cookie| self.own(cookie.to_str().ok()?)).collect();
        for cookie in set {
            headers.append(header::SET_COOKIE, cookie);
        }
    }

    fn own(&self, cookie: &str) -> Option<HeaderValue> {
        let (pair, attributes) = cookie.split_once(';').unwrap_or((cookie, ""));
        let is_ours = |attribute: &str| {
            let name = attribute.split('=').next().unwrap_or_default().trim();
            OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours))
        };
        let mut own = format!("{}{}; Path={}", self.prefix, pair.trim(), self.path);
        for attribute in attributes.split(';').map(str::trim).filter(|it| !it.is_empty() && !is_ours(it)) {
            own.push_str("; ");
            own.push_str(attribute);
        }
        HeaderValue::from_str(&own).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &header::HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), value.parse().unwrap())).collect()
    }

    fn all(headers: &HeaderMap) -> Vec<&str> {
        headers.values().map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn a_server_gets_its_own_cookies_and_no_others() {
        let jar = Jar::new("sb-1", 80);
        let of_client =
            ["forkd.sb-1.80.session=1; other=2; forkd.sb-1.8080.session=3", "forkd.sb-2.80.x=4; forkd.sb-1.80.b=\"5\""];
        let mut asked = headers(&header::COOKIE, &of_client);
        jar.inward(&mut asked);
        assert_eq!(all(&asked), ["session=1; b=\"5\""]);
        let mut none = headers(&header::COOKIE, &["session=1"]);
        jar.inward(&mut none);
        assert!(none.is_empty());
    }

    #[test]
    fn a_server_sets_its_own_cookies_and_no_others() {
        let jar = Jar::new("sb-1", 80);
        let of_server = ["session=1; HttpOnly; Path=/; domain=localhost;  Max-Age=9", "__Host-x=2; Secure", "plain"];
        let mut answered = headers(&header::SET_COOKIE, &of_server);
        jar.outward(&mut answered);
        let expected = [
            "forkd.sb-1.80.session=1; Path=/v1/sandboxes/sb-1/ports/80/; HttpOnly; Max-Age=9",
            "forkd.sb-1.80.__Host-x=2; Path=/v1/sandboxes/sb-1/ports/80/; Secure",
            "forkd.sb-1.80.plain; Path=/v1/sandboxes/sb-1/ports/80/",
        ];
        assert_eq!(all(&answered), expected);
        let mut back = headers(&header::COOKIE, &[expected[0].split(';').next().unwrap()]);
        jar.inward(&mut back);
        assert_eq!(all(&back), ["session=1"]);
    }
}
