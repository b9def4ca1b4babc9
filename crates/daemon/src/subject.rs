//! What a request is about, for the audit log: what its path names, and what its handler learns besides.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// The longest name that is written down.
const MAX_NAME: usize = 256;

/// What a request is about; a handler adds to it, and whoever writes the log reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject(Arc<Mutex<Names>>);

/// The names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// The one it is about, or those that were made.
    pub(crate) sandboxes: Vec<String>,
    /// The snapshot that is forked, or made.
    pub(crate) tag: Option<String>,
    pub(crate) workspace: Option<String>,
}

impl Subject {
    /// What the path names, by the route's kind.
    pub(crate) fn of_path(route: &str, name: Option<&str>) -> Self {
        let subject = Self::default();
        let kind = route.strip_prefix("/v1/").and_then(|rest| rest.split('/').next());
        match (kind, name) {
            (Some("sandboxes"), Some(id)) => subject.sandboxes([id]),
            (Some("snapshots"), Some(tag)) => subject.tag(tag),
            (Some("workspaces"), Some(name)) => subject.workspace(name),
            _ => {}
        }
        subject
    }

    pub(crate) fn sandboxes<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        self.lock().sandboxes = ids.into_iter().map(cut).collect();
    }

    pub(crate) fn tag(&self, tag: &str) {
        self.lock().tag = Some(cut(tag));
    }

    pub(crate) fn workspace(&self, name: &str) {
        self.lock().workspace = Some(cut(name));
    }

    /// What is known by now.
    pub(crate) fn names(&self) -> Names {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

impl<S: Send + Sync> FromRequestParts<S> for Subject {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_what_its_route_is_about() {
        let of = |route: &str, name: Option<&str>| Subject::of_path(route, name).names();
        assert_eq!(of("/v1/sandboxes/{id}/exec", Some("sb-1")).sandboxes, ["sb-1"]);
        assert_eq!(of("/v1/snapshots/{tag}", Some("base")).tag.as_deref(), Some("base"));
        assert_eq!(of("/v1/workspaces/{name}", Some("w")).workspace.as_deref(), Some("w"));
        assert_eq!(of("/v1/snapshots/{tag}", Some(&"x".repeat(1000))).tag.map(|tag| tag.len()), Some(MAX_NAME));
        for (route, name) in [("/v1/tokens/{name}", Some("ci")), ("/v1/sandboxes", None), ("", Some("x"))] {
            assert_eq!(of(route, name), Names::default(), "{route}");
        }
    }
}
