//! Debian's newest cloud kernel: small, virtio as modules, kept up to date by people who do that well.

use std::fs;
use std::path::Path;

use types::progress::Progress;

use super::{GuestKernel, KernelError, broken, by_version, cached, unpacked};
use crate::apt::{Apt, AptError};
use crate::cache::{Bucket, CacheError, Staging};
use crate::tool::Tool;

/// Downloads, unpacks and keeps it.
pub(super) fn fetch(bucket: &Bucket, progress: &dyn Progress) -> Result<GuestKernel, KernelError> {
    if !Apt::is_installed() {
        return Err(KernelError::NoApt);
    }
    let turn = bucket.lock("debian-cloud", progress)?;
    if let Some(kernel) = cached(bucket)? {
        return Ok(kernel);
    }
    let staging = turn.stage()?;
    let (apt, package) = resolve(&staging, progress)?;
    let debs = staging.path().join("debs");
    fs::create_dir(&debs).map_err(CacheError::new("create the directory", &debs))?;
    let stage = progress.stage(&format!("Downloading {package}"), None);
    apt.download(&package, &debs, &*stage)?;
    drop(stage);
    let root = staging.path().join("root");
    unpack(&debs, &root, &staging, progress)?;
    let release = release_in(&package).to_owned();
    if unpacked(&root, &release).is_none() {
        return Err(KernelError::Package { package });
    }
    let root = staging.publish(&root, &release)?;
    unpacked(&root, &release).ok_or(KernelError::Package { package })
}

/// The package to get, and the apt that knows it.
fn resolve<'a>(staging: &'a Staging<'a>, progress: &dyn Progress) -> Result<(Apt<'a>, String), KernelError> {
    let apt = Apt::of_host(staging);
    if let Some(newest) = apt.cloud_kernel()? {
        let package = whole_one(&apt, newest)?;
        return Ok((apt, package));
    }
    let stage = progress.stage("Updating package lists", None);
    let apt = Apt::refreshed(staging, &*stage).map_err(|err| match err {
        AptError::Tool(err) => KernelError::Tool(err),
        AptError::Cache(err) => KernelError::Cache(err),
    })?;
    let newest = apt.cloud_kernel()?.ok_or(KernelError::NoPackage)?;
    let package = whole_one(&apt, newest)?;
    Ok((apt, package))
}

/// This package, or the one before it when it is broken: of the same Linux if there is one, else the newest there is.
fn whole_one(apt: &Apt<'_>, newest: String) -> Result<String, KernelError> {
    let Some(why) = broken::why(release_in(&newest)) else { return Ok(newest) };
    let whole = before(&newest, apt.cloud_kernels()?);
    whole.ok_or_else(|| KernelError::Broken { release: release_in(&newest).into(), why })
}

fn before(newest: &str, mut packages: Vec<String>) -> Option<String> {
    let linux = |package: &str| release_in(package).split('-').next().unwrap_or_default().to_owned();
    packages.retain(|package| broken::why(release_in(package)).is_none());
    packages
        .sort_by(|a, b| (linux(a) == linux(newest)).cmp(&(linux(b) == linux(newest))).then_with(|| by_version(a, b)));
    packages.pop()
}

/// What `uname -r` says of the kernel in this package.
fn release_in(package: &str) -> &str {
    package.strip_prefix("linux-image-").unwrap_or(package)
}

/// Unpacks the one package in the directory. What is not the kernel or its modules is dropped.
fn unpack(debs: &Path, root: &Path, staging: &Staging<'_>, progress: &dyn Progress) -> Result<(), KernelError> {
    let _stage = progress.stage("Unpacking the kernel", None);
    let entries = fs::read_dir(debs).map_err(CacheError::new("list", debs))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let package = files.find(|path| path.extension() == Some("deb".as_ref()));
    let package = package.ok_or_else(|| KernelError::Package { package: debs.display().to_string() })?;
    let mut dpkg = Tool::find("dpkg-deb", "dpkg")?.holding(staging.lock())?;
    dpkg.command().arg("-x").arg(&package).arg(root);
    dpkg.run(&mut |_| ())?;
    let docs = root.join("usr/share");
    if docs.is_dir() {
        fs::remove_dir_all(&docs).map_err(CacheError::new("remove", &docs))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_kernel_gives_way_to_the_one_before_it() {
        let packages = |releases: &[&str]| releases.iter().map(|release| format!("linux-image-{release}")).collect();
        let chosen = |releases: &[&str]| before("linux-image-6.1.0-55-cloud-amd64", packages(releases));
        let all = ["6.1.0-54-cloud-amd64", "6.1.0-9-cloud-amd64", "6.1.0-55-cloud-amd64", "6.12.1+deb12-cloud-amd64"];
        assert_eq!(chosen(&all).as_deref(), Some("linux-image-6.1.0-54-cloud-amd64"));
        assert_eq!(chosen(&all[2..]).as_deref(), Some("linux-image-6.12.1+deb12-cloud-amd64"));
        assert_eq!(chosen(&all[2..3]), None);
    }
}
