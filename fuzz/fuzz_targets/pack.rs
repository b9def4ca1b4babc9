//! A pack that anybody may have made, with tiny limits.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pack::fuzzing::pack(bytes));
