//! The framing and messages of the guest protocol: both readers agree on any bytes, and what is read can be written.

#![no_main]

use proto::codec::{Channel, Decoder, Frame, MAX_PAYLOAD, read_frame, write_frame};
use proto::guest::{Reply, Request};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (mut read, mut stream) = (Vec::new(), bytes);
    while let Ok(Some(frame)) = read_frame(&mut stream) {
        read.push(frame);
    }
    // Cut into pieces whose size the input chooses, the same frames come out.
    let cut = bytes.first().map_or(1, |byte| usize::from(*byte) + 1);
    let mut decoder = Decoder::default();
    let mut decoded = Vec::new();
    for piece in bytes.chunks(cut) {
        decoder.push(piece);
        while let Ok(Some(frame)) = decoder.next_frame() {
            decoded.push(frame);
        }
    }
    assert_eq!(read, decoded);
    read.iter().for_each(round_trip);
});

fn round_trip(frame: &Frame) {
    assert!(frame.payload.len() <= MAX_PAYLOAD);
    let mut wire = Vec::new();
    write_frame(&mut wire, frame.channel, &frame.payload).expect("what was read can be written");
    assert_eq!(read_frame(&mut &wire[..]).expect("it is a frame").as_ref(), Some(frame));
    if frame.channel != Channel::Message {
        return;
    }
    if let Ok(request) = frame.message::<Request>() {
        let text = serde_json::to_vec(&request).expect("messages are plain data");
        assert_eq!(serde_json::from_slice::<Request>(&text).expect("it is a message"), request);
    }
    if let Ok(reply) = frame.message::<Reply>() {
        let text = serde_json::to_vec(&reply).expect("messages are plain data");
        assert_eq!(serde_json::from_slice::<Reply>(&text).expect("it is a message"), reply);
    }
}
