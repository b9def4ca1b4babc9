//! Arbitrary files as layers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| layer::fuzzing::layer(bytes));
