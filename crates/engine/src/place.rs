//! Where VMs run: on this machine's KVM, or in the emulated host that has one.

use std::str::FromStr;
use std::{env, io};

use types::Dirs;

use crate::probe::{KvmVerdict, Probe};
use crate::probe_memory::remembered_probe;
use crate::programs::{Program, ProgramError, on_path};

/// The emulator that the emulated host needs.
pub const EMULATOR: &str = "qemu-system-x86_64";
/// The variable that settles it.
pub const VARIABLE: &str = "FORKD_PLACE";

/// Where VMs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Local,
    /// In the emulated host.
    Machine {
        /// Why not here.
        why: String,
    },
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlaceWish {
    /// Here if KVM is usable, else in the emulated host.
    #[default]
    Auto,
    /// Here, whatever the probe would say.
    Local,
    /// In the emulated host.
    Machine,
}

/// Why VMs run nowhere.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The variable holds something else.
    #[error("{VARIABLE} is `{text}`; it can be local, machine or auto")]
    Wish {
        /// What it holds.
        text: String,
    },
    /// Neither KVM nor the emulator.
    #[error(
        "no VM can run here: KVM cannot be used ({kvm}), and {EMULATOR}, which can stand in for it, is not installed; \
         install the package qemu-system-x86, or see `forkd doctor`"
    )]
    Nowhere {
        /// Why not KVM.
        kvm: String,
    },
    /// The VMM is not there to ask.
    #[error(transparent)]
    Program {
        /// Which program is missing.
        #[from]
        source: ProgramError,
    },
    /// The VMM could not be asked.
    #[error("cannot find out whether KVM is usable")]
    Probe {
        /// What went wrong.
        source: io::Error,
    },
}

impl FromStr for PlaceWish {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        match text {
            "" | "auto" => Ok(Self::Auto),
            "local" => Ok(Self::Local),
            "machine" => Ok(Self::Machine),
            other => Err(PlaceError::Wish { text: other.into() }),
        }
    }
}

impl PlaceWish {
    /// What the environment asks for.
    ///
    /// # Errors
    /// When it asks for something that does not exist.
    pub fn from_env() -> Result<Self, PlaceError> {
        env::var_os(VARIABLE).map_or(Ok(Self::Auto), |text| text.to_string_lossy().parse())
    }
}

/// Decides, running guest code if it must.
///
/// # Errors
/// When VMs can run nowhere, or it cannot be found out.
pub fn place(dirs: &Dirs) -> Result<Place, PlaceError> {
    match PlaceWish::from_env()? {
        PlaceWish::Local => Ok(Place::Local),
        PlaceWish::Machine => Ok(Place::Machine { why: format!("{VARIABLE}=machine") }),
        PlaceWish::Auto => {
            let vmm = Program::Vmm.find()?;
            let kvm = remembered_probe(&vmm, &dirs.run).map_err(|source| PlaceError::Probe { source })?;
            choose(&kvm, on_path(EMULATOR).is_some())
        }
    }
}

/// The rule itself.
pub(crate) fn choose(kvm: &Probe, emulator: bool) -> Result<Place, PlaceError> {
    match (kvm.verdict, emulator) {
        (KvmVerdict::Usable, _) => Ok(Place::Local),
        (_, true) => Ok(Place::Machine { why: kvm.detail.clone() }),
        (_, false) => Err(PlaceError::Nowhere { kvm: kvm.detail.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kvm(verdict: KvmVerdict) -> Probe {
        serde_json::from_value(serde_json::json!({ "verdict": verdict, "detail": "as it is" })).unwrap()
    }

    #[test]
    fn a_usable_kvm_is_used_even_without_the_emulator() {
        assert_eq!(choose(&kvm(KvmVerdict::Usable), true).unwrap(), Place::Local);
        assert_eq!(choose(&kvm(KvmVerdict::Usable), false).unwrap(), Place::Local);
    }

    #[test]
    fn without_kvm_the_emulated_host_stands_in_and_says_why() {
        for verdict in [KvmVerdict::Missing, KvmVerdict::Denied, KvmVerdict::Unusable] {
            assert_eq!(choose(&kvm(verdict), true).unwrap(), Place::Machine { why: "as it is".into() });
            let error = choose(&kvm(verdict), false).unwrap_err().to_string();
            assert!(error.contains("as it is") && error.contains("qemu-system-x86"), "{error}");
        }
    }

    #[test]
    fn a_wish_is_one_of_three_words() {
        assert_eq!("machine".parse::<PlaceWish>().unwrap(), PlaceWish::Machine);
        assert!(matches!("moon".parse::<PlaceWish>(), Err(PlaceError::Wish { text }) if text == "moon"));
    }
}
