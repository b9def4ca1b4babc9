//! Layers of a container image that anybody may have made, with tiny limits.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oci::fuzzing::layers(bytes));
