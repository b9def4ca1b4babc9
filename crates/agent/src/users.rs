//! Who a process runs as, by the guest's own `/etc/passwd` and `/etc/group`.
//!
//! ```text
//! passwd  name:password:uid:gid:comment:home:shell
//! group   name:password:gid:member,member
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::thread::{Gid, Uid};

use crate::sys::Identity;

/// More of a file is not read; nobody's list of users is longer.
const MAX_FILE: u64 = 1 << 20;

/// No such user, or group.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} `{name}` in this guest")]
pub(crate) struct UserError {
    kind: &'static str,
    name: String,
}

/// A user as a process needs to know it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) identity: Identity,
}

/// The two files.
#[derive(Debug, Default)]
pub(crate) struct Users {
    passwd: String,
    group: String,
}

struct PasswdLine<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl Users {
    /// Reads the files as they are now. One that is missing is empty: numbers need no names.
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self { passwd: read_start(Path::new("/etc/passwd"))?, group: read_start(Path::new("/etc/group"))? })
    }

    /// Finds `name`, `uid`, `name:group` or `uid:gid`.
    pub(crate) fn find(&self, spec: &str) -> Result<User, UserError> {
        let (who, group) = match spec.split_once(':') {
            Some((who, group)) => (who, Some(group)),
            None => (spec, None),
        };
        let mut user = self.find_user(who).ok_or_else(|| UserError { kind: "user", name: who.into() })?;
        if let Some(group) = group {
            let gid = self.find_group(group).ok_or_else(|| UserError { kind: "group", name: group.into() })?;
            user.identity.gid = gid;
        }
        Ok(user)
    }

    /// The user with this number, who need not have a name.
    pub(crate) fn by_uid(&self, uid: Uid) -> User {
        let line = self.users().find(|line| line.uid == uid.as_raw());
        // Without a line nothing is known of the user, and no group is given by accident.
        line.map_or_else(
            || User {
                name: uid.as_raw().to_string(),
                home: "/".into(),
                identity: Identity { uid, gid: Gid::from_raw_unchecked(uid.as_raw()), groups: Vec::new() },
            },
            |line| self.user(&line),
        )
    }

    fn find_user(&self, who: &str) -> Option<User> {
        if let Some(line) = self.users().find(|line| line.name == who) {
            return Some(self.user(&line));
        }
        Some(self.by_uid(Uid::from_raw_unchecked(parse_id(who)?)))
    }

    fn find_group(&self, group: &str) -> Option<Gid> {
        let named = self.groups().find(|(name, ..)| *name == group).map(|(_, gid, _)| gid);
        named.or_else(|| parse_id(group)).map(Gid::from_raw_unchecked)
    }

    fn user(&self, line: &PasswdLine<'_>) -> User {
        let member = |members: &str| members.split(',').any(|member| member == line.name);
        let groups = self.groups().filter(|(_, _, members)| member(members));
        let identity = Identity {
            uid: Uid::from_raw_unchecked(line.uid),
            gid: Gid::from_raw_unchecked(line.gid),
            groups: groups.map(|(_, gid, _)| Gid::from_raw_unchecked(gid)).collect(),
        };
        let home = if line.home.starts_with('/') { line.home } else { "/" };
        User { name: line.name.into(), home: home.into(), identity }
    }

    fn users(&self) -> impl Iterator<Item = PasswdLine<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let uid = parse_id(fields.nth(1)?)?;
            let gid = parse_id(fields.next()?)?;
            Some(PasswdLine { name, uid, gid, home: fields.nth(1)? })
        })
    }

    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            Some((name, parse_id(fields.nth(1)?)?, fields.next()?))
        })
    }
}

/// A user's or group's number; the highest means "nobody asked" to the kernel and is not one.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

fn read_start(path: &Path) -> io::Result<String> {
    // Opening it does not wait, should it be a pipe.
    let file = match File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(String::new());
        }
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users {
            passwd: "root:x:0:0:root:/root:/bin/sh\nbroken line\nann:x:1000:1000::/home/ann:/bin/sh\n\
                     odd:x:x:1:::\nlost:x:7:7:::\n1000x:x:8:8::/x:\n"
                .into(),
            group: "root:x:0:\nann:x:1000:\nkvm:x:108:ann,bob\ndocker:x:999:bob,ann\nweird\n".into(),
        }
    }

    fn found(spec: &str) -> (String, String, u32, u32, Vec<u32>) {
        let user = users().find(spec).unwrap();
        let groups = user.identity.groups.iter().map(|gid| gid.as_raw()).collect();
        (user.name, user.home, user.identity.uid.as_raw(), user.identity.gid.as_raw(), groups)
    }

    #[test]
    fn names_numbers_and_groups_are_found() {
        assert_eq!(found("ann"), ("ann".into(), "/home/ann".into(), 1000, 1000, vec![108, 999]));
        assert_eq!(found("1000"), found("ann"));
        assert_eq!(found("ann:kvm"), ("ann".into(), "/home/ann".into(), 1000, 108, vec![108, 999]));
        assert_eq!(found("lost"), ("lost".into(), "/".into(), 7, 7, vec![]));
        assert_eq!(found("1000x").2, 8);
    }

    #[test]
    fn a_number_needs_no_name() {
        assert_eq!(found("4321"), ("4321".into(), "/".into(), 4321, 4321, vec![]));
        assert_eq!(found("4321:55"), ("4321".into(), "/".into(), 4321, 55, vec![]));
    }

    #[test]
    fn a_name_nobody_has_is_said() {
        for spec in ["", "bob", "odd", "-1", "4294967295", ":kvm", "broken line"] {
            let error = users().find(spec).unwrap_err();
            assert_eq!(error.kind, "user", "{spec}");
        }
        let error = users().find("ann:nobody").unwrap_err();
        assert_eq!(error.to_string(), "there is no group `nobody` in this guest");
    }
}
