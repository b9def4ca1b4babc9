//! What benchmarks and tests share: the smallest VM there is with children forked from it, a daemon over VMs with the
//! native guest or over no VM at all, and guests that misbehave.

pub mod home;
pub mod noisy;
pub mod tiny;
