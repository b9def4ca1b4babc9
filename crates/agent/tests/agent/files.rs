//! Files: read, written, listed, moved and removed by a real agent.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use session::{
    ErrorCode, ExitStatus, FileKind, GuestPath, ListFiles, MakeDir, MoveFile, ReadFile, RemoveFile, SessionError,
    StatFile, WriteFile,
};
use tempfile::TempDir;

use crate::support::{Agent, eventually};

/// An agent and a directory that is there for it.
struct Desk {
    agent: Agent,
    dir: TempDir,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { agent: Agent::start(), dir }
    }

    fn path(&self, name: &str) -> GuestPath {
        self.dir.path().join(name).to_str().unwrap().parse().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<session::FileInfo, SessionError> {
        self.write_as(&writing(self.path(name)), bytes)
    }

    fn write_as(&self, request: &WriteFile, bytes: &[u8]) -> Result<session::FileInfo, SessionError> {
        let mut writer = self.agent.connect().write_file(request)?;
        writer.write_all(bytes).unwrap();
        writer.finish()
    }

    fn read(&self, request: &ReadFile) -> Result<Vec<u8>, SessionError> {
        let mut bytes = Vec::new();
        self.agent.connect().read_file(request)?.read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }

    fn list(&self, path: GuestPath, depth: u32) -> Vec<String> {
        let list = self.agent.connect().list_files(&ListFiles { path, depth, user: None }).unwrap();
        let mut paths: Vec<_> = list.map(|info| info.unwrap().path).collect();
        paths.sort();
        paths
    }

    fn remove(&self, name: &str, recursive: bool) -> Result<(), SessionError> {
        self.agent.connect().remove_file(&RemoveFile { path: self.path(name), recursive, user: None })
    }
}

const fn writing(path: GuestPath) -> WriteFile {
    WriteFile { path, mode: None, parents: false, user: None }
}

const fn reading(path: GuestPath) -> ReadFile {
    ReadFile { path, offset: 0, length: None, user: None }
}

fn code<T: std::fmt::Debug>(result: Result<T, SessionError>) -> ErrorCode {
    match result {
        Err(SessionError::Refused { code, message }) => {
            assert!(!message.is_empty());
            code
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_was_written_is_read_back_whole_or_in_part() {
    let desk = Desk::new();
    let bytes: Vec<u8> = (0_u32..1 << 20).flat_map(u32::to_le_bytes).collect();
    let info = desk.write("big", &bytes).unwrap();
    assert_eq!((info.size, info.mode, info.kind), (4 << 20, 0o644, FileKind::File));
    assert!(desk.read(&reading(desk.path("big"))).unwrap() == bytes);
    let part = ReadFile { offset: 70_000, length: Some(100_000), ..reading(desk.path("big")) };
    assert!(desk.read(&part).unwrap() == bytes[70_000..170_000]);
    for offset in [4 << 20, u64::MAX] {
        assert_eq!(desk.read(&ReadFile { offset, ..reading(desk.path("big")) }).unwrap(), b"");
    }
    assert_eq!(desk.write("empty", b"").unwrap().size, 0);
    assert_eq!(
        desk.read(&reading("/proc/self/comm".parse().unwrap())).unwrap(),
        b"forkd-agent\n",
        "a size it does not tell"
    );
}

#[test]
fn a_file_is_there_when_it_is_whole_and_not_before() {
    let desk = Desk::new();
    desk.write("f", b"old").unwrap();
    fs::set_permissions(desk.dir.path().join("f"), fs::Permissions::from_mode(0o640)).unwrap();
    let mut writer = desk.agent.connect().write_file(&writing(desk.path("f"))).unwrap();
    writer.write_all(&[b'x'; 300_000]).unwrap();
    assert_eq!(desk.read(&reading(desk.path("f"))).unwrap(), b"old");
    drop(writer);
    eventually("what was begun is gone", || desk.names() == ["f"]);
    assert_eq!(desk.write("f", b"new").unwrap().mode, 0o640, "as the file before it");
    assert_eq!(desk.read(&reading(desk.path("f"))).unwrap(), b"new");
    let deep = WriteFile { mode: Some(0o755), parents: true, ..writing(desk.path("a/b/c")) };
    assert_eq!(desk.write_as(&deep, b"x").unwrap().mode, 0o755);
    symlink("f", desk.dir.path().join("link")).unwrap();
    desk.write("link", b"own").unwrap();
    assert_eq!(desk.read(&reading(desk.path("f"))).unwrap(), b"new", "a link is replaced");
}

#[test]
fn each_case_has_its_code() {
    let desk = Desk::new();
    fs::create_dir(desk.dir.path().join("dir")).unwrap();
    desk.write("dir/f", b"x").unwrap();
    desk.write("f", b"x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(desk.dir.path().join("socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        desk.dir.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let read = |name: &str| code(desk.read(&reading(desk.path(name))));
    assert_eq!(read("nothing"), ErrorCode::NotFound);
    assert_eq!(read("dir"), ErrorCode::IsADirectory);
    assert_eq!(read("f/x"), ErrorCode::NotADirectory);
    assert_eq!(read("fifo"), ErrorCode::NotAFile);
    assert_eq!(code(desk.write("dir", b"")), ErrorCode::IsADirectory);
    assert_eq!(code(desk.write("no/f", b"")), ErrorCode::NotFound);
    let mode = WriteFile { mode: Some(0o10000), ..writing(desk.path("g")) };
    assert_eq!(code(desk.write_as(&mode, b"")), ErrorCode::BadArgument);
    let user = WriteFile { user: Some("nobody-at-all".into()), ..writing(desk.path("g")) };
    assert_eq!(code(desk.write_as(&user, b"")), ErrorCode::NoSuchUser);
    assert_eq!(code(desk.remove("dir", false)), ErrorCode::NotEmpty);
    assert_eq!(code(desk.remove("nothing", true)), ErrorCode::NotFound);
    let mut connection = desk.agent.connect();
    let moved = |overwrite| MoveFile { from: desk.path("f"), to: desk.path("dir/f"), overwrite, user: None };
    assert_eq!(code(connection.move_file(&moved(false))), ErrorCode::AlreadyExists);
    assert_eq!(connection.move_file(&moved(true)).unwrap().path, desk.path("dir/f").as_str());
    for root in ["/", "/tmp/..", "/."] {
        let request = RemoveFile { path: root.parse().unwrap(), recursive: true, user: None };
        assert_eq!(code(connection.remove_file(&request)), ErrorCode::BadArgument, "{root}");
    }
    let list = ListFiles { path: desk.path("dir/f"), depth: 1, user: None };
    assert_eq!(code(desk.agent.connect().list_files(&list)), ErrorCode::NotADirectory);
    connection.ping().unwrap();
}

#[test]
fn directories_are_made_and_told_as_they_are() {
    let desk = Desk::new();
    let mut connection = desk.agent.connect();
    let making = |name: &str, parents| MakeDir { path: desk.path(name), mode: Some(0o2775), parents, user: None };
    assert_eq!(code(connection.make_dir(&making("a/b", false))), ErrorCode::NotFound);
    let info = connection.make_dir(&making("a/b", true)).unwrap();
    assert_eq!((info.kind, info.mode), (FileKind::Dir, 0o2775));
    assert_eq!(code(connection.make_dir(&making("a/b", false))), ErrorCode::AlreadyExists);
    connection.make_dir(&making("a/b", true)).unwrap();
    symlink("../nowhere", desk.dir.path().join("link")).unwrap();
    let link = connection.stat_file(&StatFile { path: desk.path("link"), user: None }).unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some("../nowhere")));
    let found = fs::symlink_metadata(desk.dir.path().join("link")).unwrap();
    assert_eq!((link.uid, link.mtime_unix_ms / 1000), (found.uid(), found.mtime()));
}

#[test]
fn trees_are_listed_to_the_depth_asked_for_and_removed_whole() {
    let desk = Desk::new();
    fs::create_dir_all(desk.dir.path().join("t/a/b/c")).unwrap();
    fs::write(desk.dir.path().join("t/a/b/f"), "x").unwrap();
    symlink("/", desk.dir.path().join("t/a/root")).unwrap();
    let below = |depth| {
        let base = desk.path("t");
        let paths = desk.list(base.clone(), depth);
        paths.iter().map(|path| path.strip_prefix(base.as_str()).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(below(0), Vec::<String>::new());
    assert_eq!(below(1), ["/a"]);
    assert_eq!(below(2), ["/a", "/a/b", "/a/root"]);
    assert_eq!(below(u32::MAX), ["/a", "/a/b", "/a/b/c", "/a/b/f", "/a/root"]);
    assert!(desk.list("/".parse().unwrap(), 1).contains(&"/proc".to_owned()));
    desk.remove("t", true).unwrap();
    assert_eq!(desk.names(), Vec::<String>::new());
    assert!(Path::new("/proc").exists(), "links are not followed");
}

#[test]
fn twenty_thousand_files_cost_the_agent_no_memory() {
    let desk = Desk::new();
    let many = desk.dir.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..20_000 {
        fs::File::create(many.join(format!("{number:0100}"))).unwrap();
    }
    assert_eq!(desk.list(desk.path("many"), 1).len(), 20_000);
    desk.remove("many", true).unwrap();
    assert!(!many.exists());
    let peak = desk.agent.status_line("VmHWM:");
    let peak_kib: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 16 << 10, "the agent used {peak_kib} KiB");
}

#[test]
fn a_tree_deeper_than_any_stack_is_an_error_and_not_the_end() {
    let desk = Desk::new();
    let deep = "d/".repeat(600);
    fs::create_dir_all(desk.dir.path().join(format!("t/{deep}"))).unwrap();
    assert_eq!(desk.list(desk.path("t"), u32::MAX).len(), 64);
    assert_eq!(code(desk.remove("t", true)), ErrorCode::Failed);
    desk.agent.connect().ping().unwrap();
}

#[test]
fn a_user_may_only_what_it_may() {
    let desk = Desk::new();
    desk.write_as(&WriteFile { mode: Some(0o600), ..writing(desk.path("roots")) }, b"secret").unwrap();
    let nobody = Some("nobody".to_owned());
    assert_eq!(
        code(desk.read(&ReadFile { user: nobody.clone(), ..reading(desk.path("roots")) })),
        ErrorCode::PermissionDenied
    );
    let theirs = WriteFile { user: nobody.clone(), ..writing(desk.path("theirs")) };
    assert_eq!(code(desk.write_as(&theirs, b"x")), ErrorCode::PermissionDenied);
    let path = desk.path("open");
    let mut connection = desk.agent.connect();
    connection.make_dir(&MakeDir { path, mode: Some(0o777), parents: false, user: None }).unwrap();
    let theirs = WriteFile { user: nobody.clone(), parents: true, ..writing(desk.path("open/x/f")) };
    let info = desk.write_as(&theirs, b"x").unwrap();
    let nobody_uid = fs::metadata(desk.dir.path().join("open/x")).unwrap().uid();
    assert!(info.uid == nobody_uid && nobody_uid != 0, "{info:?}");
    assert_eq!(desk.write("open/x/f", b"y").unwrap().uid, nobody_uid, "without a user it stays whose it was");
    // The same connection is root again for whoever names no user.
    let stat = StatFile { path: desk.path("roots"), user: nobody };
    connection.stat_file(&stat).unwrap();
    let request = RemoveFile { path: desk.path("roots"), recursive: false, user: None };
    connection.remove_file(&request).unwrap();
}

#[test]
fn a_file_moves_between_file_systems() {
    let desk = Desk::new();
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let to: GuestPath = other.path().join("f").to_str().unwrap().parse().unwrap();
    desk.write_as(&WriteFile { mode: Some(0o751), ..writing(desk.path("f")) }, b"carried").unwrap();
    let request = MoveFile { from: desk.path("f"), to: to.clone(), overwrite: false, user: None };
    let info = desk.agent.connect().move_file(&request).unwrap();
    assert_eq!((info.mode, desk.read(&reading(to)).unwrap().as_slice()), (0o751, &b"carried"[..]));
    assert_eq!(desk.names(), Vec::<String>::new());
}

#[test]
fn a_full_disk_is_told_before_all_was_sent() {
    let desk = Desk { agent: Agent::start_with_own_mounts(), ..Desk::new() };
    let dir = desk.dir.path().display().to_string();
    assert_eq!(desk.agent.sh(&format!("mount -t tmpfs -o size=1m none {dir}")).0, ExitStatus::Code(0));
    let mut writer = desk.agent.connect().write_file(&writing(desk.path("f"))).unwrap();
    let sent = (0..1000).try_for_each(|_| writer.send(&[7; 65_536]).map(drop));
    assert_eq!(code(sent), ErrorCode::NoSpace);
    assert_eq!(desk.agent.sh(&format!("ls -A {dir}")).1, "", "nothing is left of it");
}
