//! Any text as an egress policy: what is understood means the same when it is written down.

#![no_main]

use net::Egress;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(egress) = text.parse::<Egress>() {
        assert_eq!(egress.to_string().parse::<Egress>().as_ref(), Ok(&egress));
    }
});
