//! Forking: what children have of their parent, what is their own, and what is left when something dies.
//!
//! ```text
//! parents     the VMs that tests fork from; each is snapshotted once in a run
//! children    a fork that a test owns, and what tests ask of a child
//! own         a place where a test has a template of its own, to be killed or starved
//! ```

mod children;
mod own;
mod parents;

pub(crate) mod busy;
pub(crate) mod damage;
pub(crate) mod deaths;
pub(crate) mod giving;
pub(crate) mod identity;
pub(crate) mod jail;
pub(crate) mod leaks;
pub(crate) mod limits;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod stored;
pub(crate) mod wide;

pub(crate) use children::{Children, Py, Run};
pub(crate) use limits::groups;
pub(crate) use own::{Own, lives};
pub(crate) use parents::{Parent, Parents, WORD};
