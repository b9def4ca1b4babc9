//! The limit of open files: a fork of many holds several descriptors for each.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Takes as many descriptors as the system allows.
///
/// # Errors
/// When the system says no.
pub fn raise_descriptors() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
