//! What the tests of forking share: a snapshot of nothing, and `examples/scripted-template.rs` in the template's place.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use layer::Writer;
use store::{Described, Existing, Origin, Snapshot, Store};
use types::{Dirs, GuestMemorySize, Tag, VcpuCount};

use crate::template::{Template, TemplateError};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A home with a snapshot in it.
pub(crate) struct World {
    home: tempfile::TempDir,
    pub(crate) dirs: Dirs,
    pub(crate) tag: Tag,
}

impl World {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(&home.path().join("h"));
        fs::write(home.path().join("image"), [0; 4096]).unwrap();
        let world = Self { home, dirs, tag: "t".parse().unwrap() };
        world.take_snapshot();
        world
    }

    /// Puts a new snapshot in the place of the one there is.
    pub(crate) fn take_snapshot(&self) {
        let origin = Origin::booted(vec![self.home.path().join("image")]);
        let staged = Store::new(&self.dirs).stage(&self.tag, Existing::Replace, origin).unwrap();
        staged.state().unwrap().write_all(b"state").unwrap();
        for file in [staged.memory().unwrap(), staged.layer(0).unwrap()] {
            Writer::create(&file, 4096).unwrap().finish().unwrap();
        }
        let described = Described {
            recipe: None,
            kernel: "none".into(),
            agent: "scripted".into(),
            vcpus: VcpuCount::DEFAULT,
            memory: GuestMemorySize::DEFAULT,
            network: false,
            egress: None,
            interpreter: None,
            ports: Vec::new(),
            pause_us: None,
        };
        staged.commit(described).unwrap();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Store::new(&self.dirs).get(&self.tag).unwrap()
    }

    /// A program that behaves so.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        let program = self.home.path().join(name);
        if !program.exists() {
            // This test lies in deps/, beside examples/.
            let built = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf();
            symlink(built.join("examples/scripted-template").canonicalize().unwrap(), &program).unwrap();
        }
        program
    }

    /// Starts a template that behaves so; later calls find it by themselves.
    pub(crate) fn start(&self, name: &str) -> Result<Template, TemplateError> {
        crate::template::template_of(&self.program(name), &self.tag, &self.snapshot(), &self.dirs, None)
    }

    /// Every process that has the home's path on its command line.
    pub(crate) fn processes(&self) -> Vec<String> {
        let home = self.home.path().to_str().unwrap();
        let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.contains(home)).collect()
    }

    /// Waits until nothing is left of the children: no process and no directory.
    pub(crate) fn expect_no_children(&self) {
        let until = Instant::now() + LONG;
        let children = || self.processes().into_iter().filter(|line| line.contains(" child ")).collect::<Vec<_>>();
        while !children().is_empty() {
            assert!(Instant::now() < until, "{:?} are left", children());
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = fs::read_dir(self.dirs.run.join("vms")).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != ".lock").collect();
        assert!(left.is_empty(), "{left:?} are left");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Err(error) = crate::stop_template(&self.tag, &self.dirs) {
            log::warn!("the template of a test stays: {error}");
        }
        for result in crate::kill_many(&crate::list(&self.dirs).unwrap_or_default()) {
            if let Err(error) = result {
                log::warn!("a child of a test stays: {error}");
            }
        }
    }
}
