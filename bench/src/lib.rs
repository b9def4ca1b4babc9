//! What benchmarks and tests of the spawn share: the smallest VM there is, and children forked from it.

pub mod tiny;
