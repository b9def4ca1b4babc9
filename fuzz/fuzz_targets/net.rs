//! A network card, driven by arbitrary bytes from both sides.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| virtio::fuzzing::net(bytes));
