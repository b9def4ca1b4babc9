//! The children that live, and the one that is meant.

use std::io;
use std::path::PathBuf;

use types::Dirs;

use crate::child::{Child, Death};
use crate::vmdir::all_vms;

/// Why a child was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No id begins so.
    #[error("no sandbox `{id}` runs; `forkd ls` lists those that do")]
    Unknown {
        /// What was asked for.
        id: String,
    },
    /// It did, and the host knows what ended it.
    #[error(transparent)]
    Died(#[from] Death),
    /// More than one does.
    #[error("`{id}` could be {}; write more of the id", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        id: String,
        /// Some of those that begin so.
        candidates: Vec<String>,
    },
    /// The directory of all cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// Which directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// How many candidates are worth naming.
const MAX_CANDIDATES: usize = 4;

/// All children that live, oldest first. Changes nothing.
///
/// # Errors
/// When the directory of all cannot be read.
pub fn list(dirs: &Dirs) -> Result<Vec<Child>, FindError> {
    Child::all(dirs).map_err(|source| FindError::Io { path: all_vms(&dirs.run), source })
}

/// The living child with exactly this id. Looks at its directory only, whoever else there is.
///
/// # Errors
/// When there is none; [`FindError::Died`] when it is known why there is none any more.
pub fn open(id: &str, dirs: &Dirs) -> Result<Child, FindError> {
    let unknown = || FindError::Unknown { id: id.into() };
    let (child, alive) = Child::named(id, dirs)
        .map_err(|source| FindError::Io { path: all_vms(&dirs.run), source })?
        .ok_or_else(unknown)?;
    if alive { Ok(child) } else { Err(child.cause_of_death().map_or_else(unknown, FindError::Died)) }
}

/// The child with this id, or the only one whose id begins so or goes on so after `sb-`.
///
/// # Errors
/// When there is none, or more than one; [`FindError::Died`] when it is known why there is none any more.
pub fn find(id: &str, dirs: &Dirs) -> Result<Child, FindError> {
    let mut children = list(dirs)?;
    if let Some(exact) = children.iter().position(|child| child.id() == id) {
        return Ok(children.swap_remove(exact));
    }
    children.retain(|child| begins(child, id));
    match children.len() {
        0 => Err(gone(id, dirs)?),
        1 => Ok(children.swap_remove(0)),
        _ => {
            let candidates = children.iter().take(MAX_CANDIDATES).map(|child| child.id().to_owned()).collect();
            Err(FindError::Ambiguous { id: id.into(), candidates })
        }
    }
}

fn begins(child: &Child, id: &str) -> bool {
    !id.is_empty() && (child.id().starts_with(id) || child.id().trim_start_matches("sb-").starts_with(id))
}

/// Why nobody of that id lives: one of the dead may have left its cause.
fn gone(id: &str, dirs: &Dirs) -> Result<FindError, FindError> {
    let dead = Child::dead(dirs).map_err(|source| FindError::Io { path: all_vms(&dirs.run), source })?;
    let mut meant = dead.into_iter().filter(|child| begins(child, id));
    let death = match (meant.next(), meant.next()) {
        (Some(only), None) => only.cause_of_death(),
        _ => None,
    };
    Ok(death.map_or_else(|| FindError::Unknown { id: id.into() }, FindError::Died))
}

#[cfg(test)]
mod tests {
    use proto::control::{KILLED_AT, STATE};
    use store::Parent;

    use super::*;
    use crate::childdir::{ChildDir, Wanted};

    #[test]
    fn the_living_are_found_by_the_beginning_of_their_id() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        assert!(list(&dirs).unwrap().is_empty());
        let made = ChildDir::create_many(
            &dirs.run,
            &Parent { tag: "t".parse().unwrap(), id: "1".into() },
            &[Wanted::default(); 2],
        )
        .unwrap();
        let (one, two) = (made[0].child(), made[1].child());
        assert_eq!(list(&dirs).unwrap().len(), 2);
        assert_eq!(&find(one.id(), &dirs).unwrap(), one);
        assert_eq!(&find(&two.id()[..two.id().len() - 1], &dirs).unwrap(), two);
        assert_eq!(&find(&two.id()["sb-".len()..], &dirs).unwrap(), two);
        assert!(matches!(find("sb-", &dirs), Err(FindError::Ambiguous { candidates, .. }) if candidates.len() == 2));
        assert_eq!(&open(one.id(), &dirs).unwrap(), one);
        let part = &one.id()[..one.id().len() - 1];
        for nobody in ["", ".", "..", "sb-", "sb-x", "sb-/../x", "../x", "/", ".lock", part] {
            assert!(matches!(open(nobody, &dirs), Err(FindError::Unknown { .. })), "{nobody}");
        }
        for nobody in ["", "sb-x", "../x"] {
            assert!(matches!(find(nobody, &dirs), Err(FindError::Unknown { .. })), "{nobody}");
        }
        let id = one.id().to_owned();
        drop(made);
        assert!(list(&dirs).unwrap().is_empty());
        assert!(matches!(open(&id, &dirs), Err(FindError::Unknown { .. })));
    }

    #[test]
    fn the_dead_and_the_damaged_are_not_listed() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        let made = ChildDir::create_many(
            &dirs.run,
            &Parent { tag: "t".parse().unwrap(), id: "1".into() },
            &[Wanted::default(); 2],
        )
        .unwrap();
        std::fs::write(made[0].path().join("vm.json"), "{").unwrap();
        std::fs::create_dir(dirs.run.join("vms/sb-dead")).unwrap();
        std::fs::write(
            dirs.run.join("vms/sb-dead/vm.json"),
            r#"{"id":"sb-dead","tag":"t","snapshot":"1","created_unix_ms":1}"#,
        )
        .unwrap();
        let listed = list(&dirs).unwrap();
        assert_eq!(listed, [made[1].child().clone()]);
    }

    #[test]
    fn one_that_did_what_it_may_not_is_known_for_it() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        let parent = Parent { tag: "t".parse().unwrap(), id: "1".into() };
        let made = ChildDir::create_many(&dirs.run, &parent, &[Wanted::default()]).unwrap().remove(0);
        let id = made.child().id().to_owned();
        let state = std::fs::File::options().write(true).open(made.path().join(STATE)).unwrap();
        rustix::io::pwrite(&state, b"vcpu 59\n", KILLED_AT).unwrap();
        drop((made.keep(), state));
        let Err(FindError::Died(death)) = open(&id, &dirs) else { panic!("it is dead") };
        assert_eq!(death, Death::Forbidden { id, thread: "vcpu".into(), call: 59 });
        assert!(death.to_string().contains("system call 59 in a thread of kind `vcpu`"), "{death}");
    }
}
