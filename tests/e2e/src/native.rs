//! The daemon over many VMs, for long, and killed at any moment. Their guest is the native one, which needs next to nothing
//! and runs also on a KVM that Linux cannot boot on.
//!
//! ```text
//! world     a home with one snapshot and a daemon, of which nothing is left
//! load      a thousand sandboxes, two hundred streams, and coming and going: the daemon keeps nothing of what is over
//! networks  hundreds of them, each on a network of its own, and nothing of that is left
//! given     what they are given over REST reaches them
//! restart   the host is switched off and on: what was put away is as it was
//! matrix    kill -9 of the daemon while it does anything: what lived goes on, and nothing is left that nobody owns
//! ```

pub(crate) mod given;
pub(crate) mod load;
pub(crate) mod matrix;
pub(crate) mod networks;
pub(crate) mod restart;
mod world;
