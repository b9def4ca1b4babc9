use std::process::Command;
use std::sync::mpsc;

use types::progress::Silent;

use super::*;

fn bucket() -> (tempfile::TempDir, Bucket) {
    let dir = tempfile::tempdir().unwrap();
    let bucket = Bucket::open(dir.path(), "things-v1").unwrap();
    (dir, bucket)
}

/// Leaves a staging area behind as a killed builder does: with its content, and without anybody holding the lock.
fn abandon(bucket: &Bucket, key: &str) -> PathBuf {
    let area = bucket.path(&format!("{key}.staging"));
    fs::create_dir_all(area.join("root/etc")).unwrap();
    fs::write(area.join("root/etc/half"), "half").unwrap();
    fs::write(bucket.path(&format!("{key}.lock")), "").unwrap();
    area
}

#[test]
fn what_is_published_has_its_name_and_the_staging_is_gone() {
    let (_dir, bucket) = bucket();
    let turn = bucket.lock("a", &Silent).unwrap();
    let staging = turn.stage().unwrap();
    let area = staging.path().to_owned();
    fs::write(area.join("file"), "whole").unwrap();
    fs::write(area.join("rest"), "rest").unwrap();
    let staged = area.join("file");
    let path = staging.publish(&staged, "a.thing").unwrap();
    assert_eq!((path.clone(), fs::read_to_string(path).unwrap()), (bucket.path("a.thing"), "whole".into()));
    assert!(!area.exists());
}

#[test]
fn a_directory_can_be_published() {
    let (_dir, bucket) = bucket();
    let turn = bucket.lock("a", &Silent).unwrap();
    let staging = turn.stage().unwrap();
    let root = staging.path().join("root");
    fs::create_dir(&root).unwrap();
    assert!(staging.publish(&root, "6.1.0").unwrap().is_dir());
}

#[test]
fn giving_up_removes_the_staging() {
    let (_dir, bucket) = bucket();
    let turn = bucket.lock("a", &Silent).unwrap();
    let area = turn.stage().unwrap().path().to_owned();
    assert!(!area.exists());
}

#[test]
fn what_a_dead_builder_left_is_removed() {
    let (_dir, bucket) = bucket();
    let (mine, other) = (abandon(&bucket, "mine"), abandon(&bucket, "other"));
    let turn = bucket.lock("mine", &Silent).unwrap();
    assert!(!other.exists(), "of another thing");
    let staging = turn.stage().unwrap();
    assert_eq!(staging.path(), mine);
    assert_eq!(fs::read_dir(&mine).unwrap().count(), 0, "of the same thing");
}

#[test]
fn what_a_live_builder_has_is_left_alone() {
    let (_dir, bucket) = bucket();
    let theirs = bucket.lock("theirs", &Silent).unwrap();
    let area = theirs.stage().unwrap();
    let _mine = bucket.lock("mine", &Silent).unwrap();
    assert!(area.path().exists());
}

#[test]
fn a_tool_that_outlives_its_builder_still_counts_as_one() {
    let (_dir, bucket) = bucket();
    let area = abandon(&bucket, "a");
    let lock = open_lock(&bucket.path("a.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let mut orphan = Command::new("cat");
    orphan.stdin(std::process::Stdio::piped()).stdout(lock);
    let mut orphan_process = orphan.spawn().unwrap();
    // The builder dies: nobody but the program it started has the lock's file open.
    drop(orphan);
    let other = bucket.lock("b", &Silent).unwrap();
    assert!(area.exists(), "removed under a running tool");
    drop(other);
    drop(orphan_process.stdin.take());
    orphan_process.wait().unwrap();
    drop(bucket.lock("b", &Silent).unwrap());
    assert!(!area.exists());
}

#[test]
fn builders_of_the_same_thing_take_turns() {
    struct Announce(mpsc::Sender<()>);
    impl Progress for Announce {
        fn stage(&self, what: &str, _total: Option<u64>) -> Box<dyn types::progress::Stage> {
            assert_eq!(what, "Waiting for another build of the same");
            self.0.send(()).unwrap();
            Box::new(Silent)
        }
    }
    let (_dir, bucket) = bucket();
    let (waits, waiting) = mpsc::channel();
    let first = bucket.lock("a", &Silent).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let _turn = bucket.lock("a", &Announce(waits)).unwrap();
            bucket.path("a.thing").exists()
        });
        waiting.recv().unwrap();
        let staging = first.stage().unwrap();
        let staged = staging.path().join("file");
        fs::write(&staged, "whole").unwrap();
        staging.publish(&staged, "a.thing").unwrap();
        drop(first);
        assert!(second.join().unwrap(), "the second did not find it done");
    });
}

#[test]
fn a_mount_point_reads_as_it_is_called() {
    assert_eq!(unescape(b"/a\\040b\\134c\\x"), Path::new("/a b\\c\\x"));
    assert!(mounts().unwrap().contains(&PathBuf::from("/")));
}

#[test]
fn what_is_mounted_is_never_removed() {
    // A directory with a mount point below it that every system has.
    let error = remove_tree(Path::new("/proc")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
}

#[test]
fn a_cache_that_cannot_be_made_says_where() {
    let error = Bucket::open(Path::new("/proc/nowhere"), "things-v1").err().unwrap();
    assert_eq!(error.to_string(), "cannot create the directory /proc/nowhere/things-v1");
}
