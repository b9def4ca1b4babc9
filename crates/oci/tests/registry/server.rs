//! The registry that Debian ships, on a port and a storage of the test's own.
//!
//! `make setup` downloads it as a package and never installs it: that would start a service.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A registry that runs.
pub(crate) struct Registry {
    child: Child,
    pub(crate) port: u16,
    storage: PathBuf,
}

impl Registry {
    /// Over plain HTTP, and for everybody.
    pub(crate) fn start(work: &Path) -> Self {
        Self::start_with(work, "", "")
    }

    /// With more in the table `http` of its configuration, and with another table.
    pub(crate) fn start_with(work: &Path, http: &str, more: &str) -> Self {
        // Free a moment ago; somebody who takes it meanwhile makes the test fail, not lie.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (storage, config) = (work.join("storage"), work.join("config.yml"));
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: '127.0.0.1:{port}', secret: test{http}}}\n{more}",
            storage.display()
        );
        fs::write(&config, text).unwrap();
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../../tools/usr/bin/docker-registry");
        let mut command = Command::new(&program);
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{}: {error}; `make setup` downloads it", program.display());
        });
        let registry = Self { child, port, storage };
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// Where it keeps a blob.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.storage.join("docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
