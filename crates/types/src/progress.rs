//! How long work tells a person what it is doing, without knowing whether anybody watches.

/// Where stages are announced.
pub trait Progress: Send + Sync {
    /// A stage begins; it is over when the returned value is dropped. `total` is in the unit of [`Stage::advance`].
    fn stage(&self, what: &str, total: Option<u64>) -> Box<dyn Stage>;
}

/// A stage under way.
pub trait Stage: Send {
    /// So much of the total is done.
    fn advance(&self, done: u64);
    /// A word on what is happening inside the stage.
    fn note(&self, text: &str);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn stage(&self, _what: &str, _total: Option<u64>) -> Box<dyn Stage> {
        Box::new(Self)
    }
}

impl Stage for Silent {
    fn advance(&self, _done: u64) {}
    fn note(&self, _text: &str) {}
}
