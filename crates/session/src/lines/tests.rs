use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::stream::Text;
use super::*;

const SOON: Duration = Duration::from_millis(50);

/// What comes of what a client says.
fn lines(said: &[u8]) -> Vec<io::Result<Vec<u8>>> {
    let (near, mut far) = UnixStream::pair().unwrap();
    let said = said.to_vec();
    // More than a socket holds may come of it.
    let saying = std::thread::spawn(move || drop(far.write_all(&said)));
    let client = Transport::from(near);
    let mut lines = Lines::new(&client);
    let mut all = Vec::new();
    while let Some(line) = lines.next(Duration::from_secs(10)).transpose() {
        let broken = line.is_err();
        all.push(line);
        if broken {
            break;
        }
    }
    drop(client);
    saying.join().unwrap();
    all
}

#[test]
fn lines_come_one_by_one_however_they_are_sent() {
    let all: Vec<_> = lines(b"one\n\ntwo\nthree").into_iter().map(Result::unwrap).collect();
    assert_eq!(all, [&b"one\n"[..], b"\n", b"two\n", b"three"]);
    assert!(lines(b"").is_empty());
}

#[test]
fn a_line_without_end_is_not_kept_for_ever() {
    let all = lines(&vec![b'x'; 2 * MAX_LINE]);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].as_ref().unwrap_err().kind(), io::ErrorKind::InvalidData);
    let long = [vec![b'x'; MAX_LINE], b"\n".to_vec()].concat();
    assert_eq!(lines(&long).into_iter().map(Result::unwrap).collect::<Vec<_>>(), [long]);
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let (near, far) = UnixStream::pair().unwrap();
    let (client, begun) = (Transport::from(near), Instant::now());
    Lines::new(&client).next(SOON).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(far);
}

#[test]
fn what_is_asked_is_understood_or_named() {
    assert!(matches!(Asked::read(br#"{"action":"ping","more":1}"#), Ok(Asked::Ping)));
    let Ok(Asked::Exec(exec)) = Asked::read(b"{\"action\":\"exec\",\"args\":[\"a\",\"\xff\"]}\n") else {
        panic!("exec")
    };
    assert_eq!((exec.args, exec.timeout), (vec!["a".into(), "\u{fffd}".into()], Some(30.0)));
    let Ok(Asked::Stream(stream)) = Asked::read(br#"{"action":"stream","args":["a"]}"#) else { panic!("stream") };
    assert!(stream.cwd.is_none() && !stream.pty);
    let wrong = |line: &str| Asked::read(line.as_bytes()).err().unwrap();
    assert_eq!(wrong(r#"{"action":"fly"}"#), "unknown action: fly");
    assert_eq!(wrong("{}"), "unknown action: ");
    assert_eq!(wrong(r#"{"action":7}"#), "unknown action: ");
    for bad in ["", "GET / HTTP/1.1\r\n", r#"{"action":"exec","args":"ls"}"#, r#"{"action":"eval"}"#, "[[[["] {
        assert!(!wrong(bad).is_empty());
    }
    assert!(!wrong(&"[".repeat(MAX_LINE)).is_empty(), "it is not followed down to the bottom");
}

#[test]
fn a_limit_is_something_that_can_be_waited_for() {
    assert_eq!([Some(0.5), Some(0.0), None, Some(1e300), Some(-1.0), Some(f64::NAN)].map(milliseconds), {
        let most = 86_400_000;
        [500, 1, most, most, most, most]
    });
}

#[test]
fn an_output_is_kept_up_to_its_limit() {
    let mut kept = Kept::default();
    kept.add(&vec![b'x'; MAX_OUTPUT]);
    assert!(!kept.truncated);
    kept.add(b"y");
    assert!(kept.truncated && kept.bytes.len() == MAX_OUTPUT);
}

#[test]
fn text_in_pieces_is_the_same_text() {
    let whole = "a\u{e9}\u{20ac}\u{1f980}b".as_bytes().to_vec();
    let strange = [&b"\xff\xc3("[..], &whole, b"\xe2\x82"].concat();
    for bytes in [&whole, &strange] {
        for at in 0..=bytes.len() {
            let mut text = Text::default();
            let (first, second) = bytes.split_at(at);
            let said = [text.push(first), text.push(second), text.finish()].concat();
            assert_eq!(said, String::from_utf8_lossy(bytes), "{at}");
        }
    }
}
