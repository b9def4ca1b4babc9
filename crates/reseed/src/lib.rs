//! A module for Node that reseeds OpenSSL each time it is loaded, as bytes: the agent hands it to the Node it keeps warm.
//!
//! What the bytes are made of is `sys/module.rs`, which is no part of this library: the build script makes a shared object
//! of it.

#![forbid(unsafe_code)]

/// The shared object.
pub const MODULE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reseed.node"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_shared_object_that_needs_openssl_and_nothing_else() {
        assert!(MODULE.starts_with(b"\x7fELF"));
        let text = String::from_utf8_lossy(MODULE);
        assert!(text.contains("RAND_poll") && text.contains("napi_register_module_v1"));
        assert!(!text.contains("libc.so") && !text.contains("GLIBC"), "it would not load next to another libc");
    }
}
