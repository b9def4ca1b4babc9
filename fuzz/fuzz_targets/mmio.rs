//! The registers, accessed by arbitrary bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| virtio::fuzzing::mmio(bytes));
