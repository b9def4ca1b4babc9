//! Any message: as a guest's question, and as what the host's name server says.

#![no_main]

use std::net::Ipv4Addr;

use net::dns::message::{MAX_ADDRESSES, Question, TTL, understand};
use net::policy::HostName;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(question) = Question::parse(bytes) {
        assert!(question.answer(&[Ipv4Addr::LOCALHOST; 20], TTL.1).len() <= 512);
    }
    let (Some(name), Some(id)) = (HostName::new("a.org"), bytes.first_chunk().copied().map(u16::from_be_bytes)) else {
        return;
    };
    if let Some(answer) = understand(bytes, id, &name) {
        assert!(answer.ttl >= TTL.0 && answer.ttl <= TTL.1);
        assert!(answer.addresses.map_or(true, |found| !found.is_empty() && found.len() <= MAX_ADDRESSES));
    }
});
