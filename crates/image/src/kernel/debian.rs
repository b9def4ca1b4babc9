//! Debian's newest cloud kernel: small, virtio as modules, kept up to date by people who do that well.

use std::fs;
use std::path::Path;

use types::progress::Progress;

use super::{GuestKernel, KernelError, cached, unpacked};
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
    let release = package.strip_prefix("linux-image-").unwrap_or(&package).to_owned();
    if unpacked(&root, &release).is_none() {
        return Err(KernelError::Package { package });
    }
    let root = staging.publish(&root, &release)?;
    unpacked(&root, &release).ok_or(KernelError::Package { package })
}

/// The package to get, and the apt that knows it.
fn resolve<'a>(staging: &'a Staging<'a>, progress: &dyn Progress) -> Result<(Apt<'a>, String), KernelError> {
    let apt = Apt::of_host(staging);
    if let Some(package) = apt.cloud_kernel()? {
        return Ok((apt, package));
    }
    let stage = progress.stage("Updating package lists", None);
    let apt = Apt::refreshed(staging, &*stage).map_err(|err| match err {
        AptError::Tool(err) => KernelError::Tool(err),
        AptError::Cache(err) => KernelError::Cache(err),
    })?;
    let package = apt.cloud_kernel()?.ok_or(KernelError::NoPackage)?;
    Ok((apt, package))
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
