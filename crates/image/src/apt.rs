//! The host's apt, as a source of what it knows and of packages; never installs, never changes the host.
//!
//! Where apt's own lists are empty (as in container images), ours are fetched into a staging directory instead of the
//! host's: that needs no privileges and leaves no trace.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use types::progress::Stage;

use crate::cache::{CacheError, Staging};
use crate::recipe::Suite;
use crate::tool::{Tool, ToolError};

const PACKAGES: &str = "apt";
/// Where downloads are, in a staging area, and those that are under way.
const ARCHIVES: &str = "apt/cache/archives";
const PARTIAL_ARCHIVES: &str = "apt/cache/archives/partial";

/// apt with its own lists, or with private ones.
pub(crate) struct Apt<'a> {
    staging: &'a Staging<'a>,
    options: Vec<OsString>,
}

impl<'a> Apt<'a> {
    pub(crate) fn is_installed() -> bool {
        Tool::is_installed("apt-get") && Tool::is_installed("apt-cache")
    }

    /// With the lists the host has.
    pub(crate) fn of_host(staging: &'a Staging<'a>) -> Self {
        Self { staging, options: Vec::new() }
    }

    /// With the host's sources, but lists fetched now.
    pub(crate) fn refreshed(staging: &'a Staging<'a>, stage: &dyn Stage) -> Result<Self, AptError> {
        let mut apt = Self::of_host(staging);
        apt.set_private_lists()?;
        apt.update(stage)?;
        Ok(apt)
    }

    /// As if we were the image: with its list of what is installed, these sources, and nothing else of the host's.
    pub(crate) fn of_image(
        staging: &'a Staging<'a>,
        installed: &[u8],
        sources: &[String],
        stage: &dyn Stage,
    ) -> Result<Self, AptError> {
        let mut apt = Self::of_host(staging);
        apt.set_private_lists()?;
        let (state, empty) = (staging.path().join("apt/state"), staging.path().join("apt/empty"));
        for dir in [&state, &empty] {
            fs::create_dir_all(dir).map_err(CacheError::new("create the directory", dir))?;
        }
        let (status, list) = (state.join("status"), state.join("sources.list"));
        fs::write(&status, installed).map_err(CacheError::new("write", &status))?;
        fs::write(&list, sources.join("\n") + "\n").map_err(CacheError::new("write", &list))?;
        for (key, path) in [
            ("Dir::State", state.as_path()),
            ("Dir::State::status", status.as_path()),
            ("Dir::Etc::sourcelist", list.as_path()),
            ("Dir::Etc::sourceparts", empty.as_path()),
            ("Dir::Etc::preferences", Path::new("/dev/null")),
            ("Dir::Etc::preferencesparts", empty.as_path()),
        ] {
            apt.option(key, path);
        }
        apt.update(stage)?;
        Ok(apt)
    }

    /// Downloads packages with all that they need and that is not installed; where the files are.
    pub(crate) fn download_missing<'b>(
        &self,
        packages: impl IntoIterator<Item = &'b str>,
        stage: &dyn Stage,
    ) -> Result<PathBuf, ToolError> {
        let mut fetch = self.tool("apt-get")?;
        fetch.command().args(["install", "--yes", "--download-only", "--no-install-recommends"]).args(packages);
        fetch.run(&mut |line| stage.note(line))?;
        Ok(self.staging.path().join(ARCHIVES))
    }

    fn set_private_lists(&mut self) -> Result<(), AptError> {
        for (key, dir, partial) in
            [("Dir::State::lists", "apt/lists", "apt/lists/partial"), ("Dir::Cache", "apt/cache", PARTIAL_ARCHIVES)]
        {
            let partial = self.staging.path().join(partial);
            fs::create_dir_all(&partial).map_err(CacheError::new("create the directory", &partial))?;
            self.option(key, &self.staging.path().join(dir));
        }
        Ok(())
    }

    fn option(&mut self, key: &str, path: &Path) {
        let mut option = OsString::from(format!("{key}="));
        option.push(path);
        self.options.extend(["-o".into(), option]);
    }

    fn update(&self, stage: &dyn Stage) -> Result<(), ToolError> {
        let mut update = self.tool("apt-get")?;
        update.command().arg("update");
        update.run(&mut |line| stage.note(line))
    }

    /// The package that `linux-image-cloud-amd64` stands for at the moment.
    pub(crate) fn cloud_kernel(&self) -> Result<Option<String>, ToolError> {
        let mut query = self.tool("apt-cache")?;
        query.command().args(["depends", "--important", "linux-image-cloud-amd64"]);
        match query.output() {
            Ok(text) => Ok(parse_cloud_kernel(&text)),
            // What apt says about a package it does not know.
            Err(ToolError::Failed { said, .. }) if said.contains("No packages found") => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// All packages of cloud kernels that can be downloaded.
    pub(crate) fn cloud_kernels(&self) -> Result<Vec<String>, ToolError> {
        let mut query = self.tool("apt-cache")?;
        query.command().args(["search", "--names-only", "^linux-image-[0-9].*-cloud-amd64$"]);
        let found = query.output()?;
        let names = found.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.filter(is_cloud_kernel).map(str::to_owned).collect())
    }

    /// Fetches a package file into the directory. apt checks it against the archive's signature.
    pub(crate) fn download(&self, package: &str, into: &Path, stage: &dyn Stage) -> Result<(), ToolError> {
        let mut fetch = self.tool("apt-get")?;
        fetch.command().args(["download", package]).current_dir(into);
        fetch.run(&mut |line| stage.note(line))
    }

    /// Lines for a `sources.list` that get this release from where the host gets Debian; empty when it does not.
    /// `None` when apt has no lists, and so cannot tell.
    pub(crate) fn sources(&self, suite: &Suite) -> Result<Option<Vec<String>>, ToolError> {
        let format = "$(ORIGIN) $(CODENAME) $(COMPONENT) $(ARCHITECTURE) $(REPO_URI)";
        let mut query = self.tool("apt-get")?;
        query.command().args(["indextargets", "--format", format, "Created-By: Packages"]);
        let signed_by = Path::new(KEYRING).exists().then_some(KEYRING);
        let targets = query.output()?;
        Ok((!targets.trim().is_empty()).then(|| parse_sources(&targets, suite, signed_by)))
    }

    fn tool(&self, name: &'static str) -> Result<Tool, ToolError> {
        let mut tool = Tool::find(name, PACKAGES)?.holding(self.staging.lock())?;
        // The sandbox user cannot enter a private directory; apt would say so and go on as we do here.
        tool.command().args(["-q", "-o", "APT::Sandbox::User=root"]).args(&self.options);
        Ok(tool)
    }
}

/// apt did not work, or had no room to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AptError {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// The proxy apt uses for `http` or `https`, unless it is told to use none.
pub(crate) fn proxy(scheme: &str) -> Result<Option<String>, ToolError> {
    let mut query = Tool::find("apt-config", PACKAGES)?;
    query.command().args(["shell", "PROXY", &format!("Acquire::{scheme}::Proxy")]);
    let answer = query.output()?;
    let value = answer.trim().strip_prefix("PROXY='").and_then(|value| value.strip_suffix('\''));
    Ok(value.filter(|value| !value.is_empty() && *value != "DIRECT").map(str::to_owned))
}

/// Where Debian's keys are, on the host and in the image.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

fn parse_cloud_kernel(depends: &str) -> Option<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(is_cloud_kernel).map(str::to_owned)
}

fn is_cloud_kernel(name: &&str) -> bool {
    let version = name.strip_prefix("linux-image-").and_then(|rest| rest.strip_suffix("-cloud-amd64"));
    version.is_some_and(|version| {
        version.starts_with(|c: char| c.is_ascii_digit())
            && version.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.~".contains(&b))
    })
}

fn parse_sources(targets: &str, suite: &Suite, signed_by: Option<&str>) -> Vec<String> {
    let suites = ["", "-updates", "-security"].map(|part| format!("{suite}{part}"));
    let options = signed_by.map(|keyring| format!("[signed-by={keyring}] ")).unwrap_or_default();
    let mut lines = Vec::new();
    for target in targets.lines() {
        let fields: Vec<_> = target.split_whitespace().collect();
        let ["Debian", codename, "main", "amd64", uri] = fields[..] else { continue };
        // A guest cannot reach the host's files, and must not be given the host's passwords.
        let public = (uri.starts_with("http://") || uri.starts_with("https://")) && !uri.contains('@');
        let line = format!("deb {options}{uri} {codename} main");
        if public && suites.iter().any(|suite| suite == codename) && !lines.contains(&line) {
            lines.push(line);
        }
    }
    let whole = lines.iter().any(|line| line.ends_with(&format!(" {suite} main")));
    if whole { lines } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cloud_kernel_is_read_from_its_metapackage() {
        let text = "linux-image-cloud-amd64\n  Depends: other\n  Depends: linux-image-6.1.0-54-cloud-amd64\n";
        assert_eq!(parse_cloud_kernel(text).as_deref(), Some("linux-image-6.1.0-54-cloud-amd64"));
        for bad in ["", "  Depends: linux-image-cloud-amd64\n", "  Depends: linux-image-6/../x-cloud-amd64\n"] {
            assert_eq!(parse_cloud_kernel(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_debian_itself_is_a_source() {
        let targets = "Debian bookworm main amd64 http://mirror.test/debian/\n\
                       Debian bookworm-security main amd64 https://mirror.test/sec/\n\
                       Debian bookworm-security main amd64 https://mirror.test/sec/\n\
                       Debian bookworm main i386 http://mirror.test/debian/\n\
                       Debian trixie main amd64 http://mirror.test/debian/\n\
                       Debian bookworm-updates main amd64 http://user:word@mirror.test/debian/\n\
                       Vendor bookworm main amd64 http://vendor.test/\n\
                       $(ORIGIN) bookworm main amd64 http://vendor.test/\n";
        let suite: Suite = "bookworm".parse().unwrap();
        assert_eq!(
            parse_sources(targets, &suite, Some("/k.gpg")),
            [
                "deb [signed-by=/k.gpg] http://mirror.test/debian/ bookworm main",
                "deb [signed-by=/k.gpg] https://mirror.test/sec/ bookworm-security main",
            ]
        );
    }

    #[test]
    fn half_a_release_is_no_source() {
        let suite: Suite = "bookworm".parse().unwrap();
        let targets = "Debian bookworm-security main amd64 http://mirror.test/sec/\n";
        assert!(parse_sources(targets, &suite, None).is_empty());
        assert!(parse_sources("Debian bookworm main amd64 file:/srv/debian/\n", &suite, None).is_empty());
    }
}
