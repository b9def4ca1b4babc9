//! Every unsafe operation of this crate.

pub(crate) mod fork;
pub(crate) mod heap;
#[cfg(test)]
pub(crate) mod hostile;
pub(crate) mod kick;
pub(crate) mod namespaces;
pub(crate) mod probe_code;
pub(crate) mod ram;
pub(crate) mod slot;
pub(crate) mod stdin;
pub(crate) mod trap;
pub(crate) mod xsave;
