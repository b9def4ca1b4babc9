//! How much of what commands write or shall read may wait in memory, all requests together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use api::Code;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};

use crate::error::ApiError;

/// How much is sent at once.
const PIECE: usize = 64 << 10;

/// What there is.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    /// A share of it, with nothing in it yet.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), bytes: 0 }
    }
}

/// What one request uses of a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// Takes so much more.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let left = &self.budget.left;
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map_err(|_| {
            let message =
                "what commands write or shall read fills all the memory there is for it; try again, or stream it";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message)
        })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes so much more that it is this in all.
    pub(crate) fn cover(&mut self, total: usize) -> Result<(), ApiError> {
        self.take(total.saturating_sub(self.bytes))
    }

    /// The body of an answer that uses it until the client has read it.
    pub(crate) fn body(self, bytes: impl Into<Bytes>) -> Body {
        Body::new(Held { bytes: bytes.into(), _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes, in pieces: the next one is asked for when there is room to send it, so the last one is when nearly all are sent.
struct Held {
    bytes: Bytes,
    _share: Share,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let length = self.bytes.len().min(PIECE);
        let piece = self.bytes.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_given_back_and_no_more_is_lent_than_there_is() {
        let budget = Budget::new(10);
        let (mut one, mut two) = (budget.share(), budget.share());
        one.take(6).unwrap();
        two.take(4).unwrap();
        let refused = two.take(1).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, Code::Overloaded));
        let body = one.body("text");
        two.take(1).unwrap_err();
        drop(body);
        two.take(6).unwrap();
        two.cover(7).unwrap();
        two.cover(10).unwrap();
        two.cover(11).unwrap_err();
        drop(two);
        assert_eq!(budget.left.load(Ordering::Relaxed), 10);
    }
}
