//! A balloon, driven by arbitrary bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| virtio::fuzzing::balloon(bytes));
