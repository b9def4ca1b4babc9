//! The client and a server that says what the test says, over a real unix socket.

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    use client::{Client, ClientError, Endpoint, path};
    use serde_json::{Value, json};

    /// Answers so many requests on one connection with these words; what was asked is what it returns.
    struct Server {
        _dir: tempfile::TempDir,
        socket: PathBuf,
        asked: JoinHandle<Vec<String>>,
    }

    fn serve(answers: &'static [&'static str]) -> (Server, Client) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            answers.iter().map(|answer| exchange(&mut reader, &stream, answer)).collect()
        });
        let client = Client::new(Endpoint::Unix(socket.clone()), Some("secret".into()));
        (Server { _dir: dir, socket, asked }, client)
    }

    fn exchange(reader: &mut BufReader<UnixStream>, mut stream: &UnixStream, answer: &str) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0);
        }
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    #[test]
    fn requests_and_answers_cross() {
        let (server, client) = serve(&[
            "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n[1,2,3]",
            "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ]);
        assert_eq!(client.get::<Vec<u8>>(&path(&["sandboxes"], &[("limit", "3")])).unwrap(), [1, 2, 3]);
        assert_eq!(client.post::<Value>("/v1/x", &json!({ "a": 1 })).unwrap(), json!({}));
        client.delete("/v1/x").unwrap();
        let asked = server.asked.join().unwrap();
        assert!(asked[0].starts_with("GET /v1/sandboxes?limit=3 HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(asked[0].contains("authorization: Bearer secret\r\n"), "{}", asked[0]);
        assert!(asked[1].contains("content-type: application/json") && asked[1].ends_with("{\"a\":1}"), "{}", asked[1]);
        assert!(asked[2].starts_with("DELETE /v1/x "), "{}", asked[2]);
    }

    #[test]
    fn the_daemons_errors_keep_their_names() {
        let (_server, client) = serve(&[
            "HTTP/1.1 404 Not Found\r\ncontent-length: 49\r\n\r\n{\"error\":\"there is none\",\"code\":\"some_new_code\"} ",
            "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>",
        ]);
        let refused = client.get::<Value>("/v1/x").unwrap_err();
        assert_eq!((refused.code(), refused.to_string()), (Some("some_new_code"), "there is none".into()));
        let strange = client.get::<Value>("/v1/x").unwrap_err();
        assert!(matches!(strange, ClientError::Refused { status: 502, .. }), "{strange:?}");
    }

    #[test]
    fn streams_come_piece_by_piece() {
        let (_server, client) = serve(&[
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
             1b\r\nevent: exit\ndata: {\"a\":1}\n\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nbytes",
        ]);
        let events: Vec<_> = client.events("/v1/x", Some(&json!({}))).unwrap().map(Result::unwrap).collect();
        assert_eq!((events.len(), &*events[0].name, &*events[0].data), (1, "exit", "{\"a\":1}"));
        let mut bytes = Vec::new();
        client.read("/v1/x").unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"bytes");
    }

    #[test]
    fn long_work_is_watched_to_its_end() {
        let (server, client) =
            serve(&["HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 107\r\n\r\n\
             event: progress\ndata: {\"id\":3,\"stage\":\"Reading\",\"done\":1,\"total\":2}\n\n\
             : alive\n\nevent: result\ndata: {\"a\":1}\n\n"]);
        let mut seen = Vec::new();
        let done = client.work::<Value>("/v1/x", &json!({}), |progress| seen.push(progress)).unwrap();
        assert_eq!((done, seen.len(), seen[0].done, seen[0].total), (json!({ "a": 1 }), 1, 1, Some(2)));
        assert!(server.asked.join().unwrap()[0].contains("accept: text/event-stream\r\n"));
        let (_server, client) =
            serve(&["HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 66\r\n\r\n\
             event: error\ndata: {\"error\":\"no\",\"code\":\"internal\",\"status\":500}\n\n"]);
        let failed = client.work::<Value>("/v1/x", &json!({}), |_| {}).unwrap_err();
        assert!(matches!(failed, ClientError::Refused { status: 500, .. }), "{failed:?}");
    }

    #[test]
    fn what_is_not_watched_is_answered_at_once_and_what_breaks_off_is_no_result() {
        let (_server, client) = serve(&[
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
        ]);
        assert_eq!(client.work::<Value>("/v1/x", &json!({}), |_| {}).unwrap(), json!({}));
        assert!(matches!(client.work::<Value>("/v1/x", &json!({}), |_| {}), Err(ClientError::Broken { .. })));
    }

    #[test]
    fn who_says_no_before_all_was_sent_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 100]).unwrap();
            stream.write_all(b"HTTP/1.1 409 Conflict\r\ncontent-length: 28\r\nconnection: close\r\n\r\n").unwrap();
            stream.write_all(b"{\"error\":\"no\",\"code\":\"busy\"}").unwrap();
        });
        let client = Client::new(Endpoint::Unix(socket), None);
        let refused = client.send_pack::<Value>("/v1/packs", std::io::repeat(7).take(64 << 20)).unwrap_err();
        assert_eq!(refused.code(), Some("busy"), "{refused:?}");
        server.join().unwrap();
    }

    #[test]
    fn nobody_there_and_nonsense_are_told_apart() {
        let nobody = Client::new(Endpoint::Unix("/nowhere/at/all".into()), None);
        assert!(matches!(nobody.get::<Value>("/v1/x"), Err(ClientError::Unreachable { .. })));
        let (server, client) = serve(&["HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nwhy"]);
        let strange = client.get::<Value>("/v1/x").unwrap_err();
        assert!(matches!(strange, ClientError::Strange { .. }), "{strange:?}");
        assert!(strange.to_string().contains(&*server.socket.to_string_lossy()));
    }
}
