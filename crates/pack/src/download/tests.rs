use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use types::progress::Silent;

use super::*;
use crate::testing::sum;
use crate::upload::{UploadError, upload};

const IDLE: Duration = Duration::from_secs(2);

/// What a server was asked, header lines in lower case.
type Heard = Arc<Mutex<Vec<Vec<String>>>>;

/// What a server does about a request.
type Script = Box<dyn FnOnce(&[String], &mut TcpStream) + Send>;

/// Answers connections with these scripts in turn, and then no more.
fn serve(scripts: Vec<Script>) -> (String, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/pack?signature=secret", listener.local_addr().unwrap());
    let heard = Heard::default();
    let told = Arc::clone(&heard);
    thread::spawn(move || {
        for script in scripts {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let lines = (&mut reader).lines().map(|line| line.unwrap().to_lowercase());
            let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            told.lock().unwrap().push(request.clone());
            script(&request, &mut stream);
        }
    });
    (url, heard)
}

/// Says these headers and then so much of a body; hangs up.
fn answer(head: &str, body: &[u8]) -> Script {
    let mut bytes = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").into_bytes();
    bytes.extend(body);
    // Whoever has heard enough hangs up on us.
    Box::new(move |_, stream| drop(stream.write_all(&bytes)))
}

fn whole(etag: &str, body: &[u8], sent: usize) -> Script {
    answer(&format!("200 OK\r\netag: {etag}\r\ncontent-length: {}", body.len()), &body[..sent])
}

fn part(etag: &str, body: &[u8], from: usize) -> Script {
    let (last, total) = (body.len() - 1, body.len());
    let head = format!(
        "206 Partial Content\r\netag: {etag}\r\ncontent-range: bytes {from}-{last}/{total}\r\ncontent-length: {}",
        total - from
    );
    answer(&head, &body[from..])
}

struct Place {
    dir: tempfile::TempDir,
    client: Client,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), client: Client::direct(IDLE) }
    }

    fn get(&self, url: &str, checked: &Checked) -> Result<Vec<u8>, DownloadError> {
        let mut downloaded = download(&self.client, url, checked, self.dir.path(), &Silent, &|| false)?;
        let mut bytes = Vec::new();
        downloaded.file.read_to_end(&mut bytes).unwrap();
        downloaded.remove()?;
        assert_eq!(self.files(), 0);
        Ok(bytes)
    }

    fn files(&self) -> usize {
        fs::read_dir(self.dir.path()).unwrap().count()
    }
}

fn body() -> Vec<u8> {
    (0..200_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn header<'h>(request: &'h [String], name: &str) -> Option<&'h str> {
    request.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn a_dropped_connection_is_taken_up_where_it_was() {
    let (place, body) = (Place::new(), body());
    let (url, heard) = serve(vec![whole("\"v1\"", &body, 300_000), part("\"v1\"", &body, 300_000)]);
    let checked = Checked { size: Some(body.len() as u64), sha256: Some(sum(&body)) };
    assert_eq!(place.get(&url, &checked).unwrap(), body);
    let heard = heard.lock().unwrap();
    assert_eq!(header(&heard[0], "range"), None);
    assert_eq!(header(&heard[1], "range"), Some("bytes=300000-"));
    assert_eq!(header(&heard[1], "if-range"), Some("\"v1\""));
}

#[test]
fn another_process_goes_on_where_one_was_interrupted() {
    let (place, body) = (Place::new(), body());
    let (url, _) = serve(vec![whole("\"v1\"", &body, body.len()), part("\"v1\"", &body, 256 << 10)]);
    let asked = std::cell::Cell::new(0);
    let soon = || asked.replace(asked.get() + 1) > 3;
    let error = download(&place.client, &url, &Checked::default(), place.dir.path(), &Silent, &soon).unwrap_err();
    assert!(matches!(error, DownloadError::Cancelled), "{error}");
    // What was written when it was called off depends on how it came; as much as the second answer leaves out.
    let part_file = fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let part_file = part_file.into_iter().find(|path| path.extension().is_some_and(|end| end == "part")).unwrap();
    let had = fs::metadata(&part_file).unwrap().len();
    assert!(had > 0 && had < body.len() as u64);
    fs::write(&part_file, &body[..256 << 10]).unwrap();
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), body);
}

#[test]
fn a_file_that_changed_meanwhile_begins_anew() {
    let (place, old) = (Place::new(), body());
    let new: Vec<u8> = old.iter().rev().copied().collect();
    let (url, heard) = serve(vec![whole("\"v1\"", &old, 300_000), whole("\"v2\"", &new, new.len())]);
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), new);
    assert_eq!(header(&heard.lock().unwrap()[1], "if-range"), Some("\"v1\""));
}

#[test]
fn a_part_that_does_not_fit_begins_anew() {
    let (place, body) = (Place::new(), body());
    let (url, heard) =
        serve(vec![whole("\"v1\"", &body, 300_000), part("\"v1\"", &body, 100), whole("\"v1\"", &body, body.len())]);
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), body);
    assert_eq!(header(&heard.lock().unwrap()[2], "range"), None);
}

#[test]
fn without_a_version_nothing_is_taken_up() {
    let (place, body) = (Place::new(), body());
    let (url, heard) = serve(vec![whole("W/\"weak\"", &body, 300_000), whole("W/\"weak\"", &body, body.len())]);
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), body);
    assert_eq!(header(&heard.lock().unwrap()[1], "range"), None);
}

#[test]
fn what_is_complete_is_not_sent_again() {
    let (place, body) = (Place::new(), body());
    let nothing = answer(&format!("416 Range Not Satisfiable\r\ncontent-range: bytes */{}", body.len()), b"");
    let (url, _) = serve(vec![whole("\"v1\"", &body, body.len()), nothing]);
    let kept = download(&place.client, &url, &Checked::default(), place.dir.path(), &Silent, &|| false).unwrap();
    drop(kept);
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), body);
}

#[test]
fn a_server_that_never_gets_further_is_given_up_on() {
    let place = Place::new();
    let busy = || answer("503 Service Unavailable\r\ncontent-length: 12", b"come\nback\n  ");
    let (url, heard) = serve((0..9).map(|_| busy()).collect());
    let error = place.get(&url, &Checked::default()).unwrap_err();
    let DownloadError::Http(cause) = &error else { panic!("{error}") };
    let text = cause.to_string();
    assert!(text.ends_with("says 503: come") && !text.contains("secret"), "{text}");
    assert_eq!(heard.lock().unwrap().len(), MAX_FAILURES as usize);
    let (url, heard) = serve(vec![answer("404 Not Found\r\ncontent-length: 0", b"")]);
    place.get(&url, &Checked::default()).unwrap_err();
    assert_eq!(heard.lock().unwrap().len(), 1, "asking again does not help");
}

#[test]
fn a_server_that_falls_silent_is_not_waited_for() {
    let (place, body) = (Place { client: Client::direct(Duration::from_millis(200)), ..Place::new() }, body());
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let head = format!("HTTP/1.1 200 OK\r\netag: \"v1\"\r\ncontent-length: {}\r\n\r\n", body.len());
    let half = [head.as_bytes(), &body[..300_000]].concat();
    let silent: Script = Box::new(move |_, stream| {
        stream.write_all(&half).unwrap();
        let mut kept = stream.try_clone().unwrap();
        // Open until the test is over.
        thread::spawn(move || drop((wait.recv(), kept.flush())));
    });
    let (url, _) = serve(vec![silent, part("\"v1\"", &body, 300_000)]);
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), body);
    drop(over);
}

#[test]
fn what_the_hub_does_not_list_is_not_kept() {
    let (place, body) = (Place::new(), body());
    let size = body.len() as u64;
    let wrong = Checked { size: Some(size), sha256: Some(sum(b"other")) };
    let (url, _) = serve(vec![whole("\"v1\"", &body, body.len())]);
    assert!(place.get(&url, &wrong).unwrap_err().to_string().contains("its SHA-256 is"));
    assert_eq!(place.files(), 0);
    let (url, _) = serve(vec![whole("\"v1\"", &body, body.len())]);
    let shorter = Checked { size: Some(size - 1), sha256: None };
    assert!(place.get(&url, &shorter).unwrap_err().to_string().contains("bytes instead of"));
    // Without a length, it is found out on the way.
    let (url, _) = serve(vec![answer("200 OK", &body)]);
    assert!(place.get(&url, &shorter).unwrap_err().to_string().contains("it has more than"));
    let (url, _) = serve(vec![answer("200 OK", &body[..10])]);
    assert!(place.get(&url, &shorter).unwrap_err().to_string().contains("10 bytes instead of"));
    assert_eq!(place.files(), 0);
}

#[test]
fn no_server_fills_a_disk() {
    const ROOM: u64 = 20 << 20;
    let (place, body) = (Place::new(), body());
    let get = |url: &str, free| {
        let checked = Checked::default();
        let mut download = Download::open(&place.client, url, &checked, place.dir.path(), &Silent, &|| false).unwrap();
        download.free = free;
        run(download).unwrap_err()
    };
    let (url, _) = serve(vec![whole("\"v1\"", &body, 0)]);
    let error = get(&url, |_| Ok(RESERVE + 100));
    assert!(matches!(error, DownloadError::Space { .. }), "{error}");
    assert_eq!(place.files(), 0);
    // One that does not say how much there is, and sends for ever.
    let endless: Script = Box::new(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\netag: \"v1\"\r\n\r\n").unwrap();
        while stream.write_all(&[7; 1 << 20]).is_ok() {}
    });
    let (url, _) = serve(vec![endless]);
    let error = get(&url, |dir| {
        let came = fs::read_dir(dir)?.map(|file| Ok(file?.metadata()?.len())).sum::<io::Result<u64>>()?;
        Ok((RESERVE + ROOM).saturating_sub(came))
    });
    assert!(matches!(error, DownloadError::Space { .. }), "{error}");
    assert_eq!(place.files(), 0);
}

#[test]
fn redirects_have_an_end_and_stay_with_http() {
    let place = Place::new();
    let to = |target: &str| answer(&format!("302 Found\r\nlocation: {target}\r\ncontent-length: 0"), b"");
    let (url, heard) = serve((0..20).map(|_| to("/again")).collect());
    place.get(&url, &Checked::default()).unwrap_err();
    assert!(heard.lock().unwrap().len() <= 6);
    let (url, _) = serve(vec![to("file:///etc/passwd")]);
    place.get(&url, &Checked::default()).unwrap_err();
    let (url, _) = serve(vec![to("/there"), whole("\"v1\"", b"here", 4)]);
    assert_eq!(place.get(&url, &Checked::default()).unwrap(), b"here");
}

#[test]
fn two_do_not_download_the_same_at_once() {
    let place = Place::new();
    let (url, _) = serve(vec![whole("\"v1\"", b"here", 4)]);
    let first = download(&place.client, &url, &Checked::default(), place.dir.path(), &Silent, &|| false).unwrap();
    assert!(matches!(place.get(&url, &Checked::default()), Err(DownloadError::Busy { .. })));
    first.remove().unwrap();
}

#[test]
fn an_upload_is_one_put_with_its_length() {
    let (place, body) = (Place::new(), body());
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&body).unwrap();
    let expected = body.clone();
    let taking: Script = Box::new(move |request, stream| {
        assert_eq!(header(request, "content-length"), Some(&expected.len().to_string()[..]));
        assert!(request[0].starts_with("put /pack?signature=secret"), "{request:?}");
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut taken = vec![0; expected.len()];
        stream.read_exact(&mut taken).unwrap();
        let status = if taken == expected { "201 Created" } else { "400 Bad Request" };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    let (url, heard) = serve(vec![taking]);
    upload(&place.client, &url, &file, &Silent, &|| false).unwrap();
    assert_eq!(heard.lock().unwrap().len(), 1);
    let no: Script = Box::new(|_, stream| {
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nexpired\r\n").unwrap();
    });
    let (url, _) = serve(vec![no]);
    let error = upload(&place.client, &url, &file, &Silent, &|| false).unwrap_err();
    let UploadError::Http(cause) = error else { panic!("{error}") };
    assert!(cause.to_string().ends_with("says 403: expired"), "{cause}");
}

#[test]
fn a_hub_is_asked_for_its_registry() {
    let text = br#"{"schema_version": 1, "packages": {"me/py": {"versions": {"latest": {"url": "http://x/y"}}}}}"#;
    let (url, heard) = serve(vec![whole("\"v1\"", text, text.len())]);
    let hub = url.split("pack").next().unwrap();
    let found = crate::find(&Client::direct(IDLE), hub, &"me/py".parse().unwrap()).unwrap();
    assert_eq!(found.url, "http://x/y");
    assert!(heard.lock().unwrap()[0][0].starts_with("get /registry.json"));
}
