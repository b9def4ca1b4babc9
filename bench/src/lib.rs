//! What benchmarks and tests share: the smallest VM there is with children forked from it, and a daemon over no VM at all.

pub mod stand_in;
pub mod tiny;
