//! Whether a pack can be used here, told before anything of it is written.

use std::fs;
use std::io;

use types::{OLDEST_STATE_FORMAT, STATE_FORMAT};

use crate::manifest::Requires;

/// What a guest is shown of a CPU only when the CPU has it, and may have come to rely on, as `/proc/cpuinfo` names it.
/// What KVM makes up or hides is not among it. The VMM compares CPUs to the bit when it loads a snapshot; this is to
/// refuse early what cannot work.
#[rustfmt::skip]
const VISIBLE: &[&str] = &[
    "sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "sse4a", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f",
    "avx512dq", "avx512cd", "avx512bw", "avx512vl", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni",
    "avx512_bitalg", "avx512_vpopcntdq", "avx512_vp2intersect", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8",
    "amx_bf16", "aes", "vaes", "pclmulqdq", "vpclmulqdq", "gfni", "sha_ni", "bmi1", "bmi2", "abm", "popcnt", "movbe",
    "adx", "rdrand", "rdseed", "rdpid", "rdtscp", "cx16", "lahf_lm", "fsgsbase", "smep", "smap", "umip", "pku", "la57",
    "invpcid", "erms", "fsrm", "clflushopt", "clwb", "clzero", "xsave", "xsaveopt", "xsavec", "xgetbv1", "xsaves",
    "movdiri", "movdir64b", "serialize", "nx", "pdpe1gb", "lm", "3dnowprefetch",
];

/// What a pack needs and is not here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// Another architecture.
    #[error("it was taken on {needed}, and this is {here}")]
    Arch {
        /// Its.
        needed: String,
        /// Ours.
        here: String,
    },
    /// Another maker.
    #[error("it was taken on a CPU of {needed}, and this one is of {here}; a snapshot keeps to the maker of its CPU")]
    Vendor {
        /// Its.
        needed: String,
        /// Ours.
        here: String,
    },
    /// A CPU that can do more.
    #[error("the CPU here lacks what it was taken on: {}", missing.join(", "))]
    Flags {
        /// What.
        missing: Vec<String>,
    },
    /// A later VMM.
    #[error("its state is of format {needed}, and this forkd reads formats {OLDEST_STATE_FORMAT} to {STATE_FORMAT}; {}", advice(*needed))]
    State {
        /// Its format.
        needed: u32,
    },
}

const fn advice(format: u32) -> &'static str {
    if format > STATE_FORMAT { "use a newer forkd" } else { "have it made again by a newer forkd" }
}

/// A CPU, as far as a pack is about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCpu {
    pub(crate) arch: String,
    pub(crate) vendor: String,
    pub(crate) flags: Vec<String>,
}

impl HostCpu {
    /// The one we run on.
    ///
    /// # Errors
    /// When `/proc` does not tell.
    pub fn here() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/cpuinfo")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/cpuinfo does not say what CPU this is"))
    }

    fn parse(cpuinfo: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
        };
        let flags = field("flags")?.split(' ').map(String::from).collect();
        Some(Self { arch: std::env::consts::ARCH.into(), vendor: field("vendor_id")?.into(), flags })
    }

    /// What a guest that ran here may have come to rely on.
    pub(crate) fn visible_flags(&self) -> Vec<String> {
        VISIBLE.iter().filter(|flag| self.flags.iter().any(|own| own == *flag)).map(ToString::to_string).collect()
    }

    /// Whether a snapshot can live here.
    ///
    /// # Errors
    /// What is missing.
    pub fn meets(&self, requires: &Requires) -> Result<(), Unmet> {
        let other = |needed: &str, here: &str| (needed != here).then(|| (needed.to_owned(), here.to_owned()));
        if let Some((needed, here)) = other(&requires.arch, &self.arch) {
            return Err(Unmet::Arch { needed, here });
        }
        if let Some((needed, here)) = other(&requires.cpu_vendor, &self.vendor) {
            return Err(Unmet::Vendor { needed, here });
        }
        if !(OLDEST_STATE_FORMAT..=STATE_FORMAT).contains(&requires.state_format) {
            return Err(Unmet::State { needed: requires.state_format });
        }
        let missing = requires.cpu_flags.iter().filter(|flag| !self.flags.contains(flag));
        match missing.cloned().collect::<Vec<_>>() {
            missing if missing.is_empty() => Ok(()),
            missing => Err(Unmet::Flags { missing }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::requires;

    #[test]
    fn what_is_missing_is_named() {
        let info = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx avx2 svm\n\nprocessor\t: 1\n";
        let host = HostCpu::parse(info).unwrap();
        assert_eq!(host.visible_flags(), ["avx", "avx2"]);
        let fits = Requires { cpu_vendor: "AuthenticAMD".into(), cpu_flags: host.visible_flags(), ..requires() };
        host.meets(&fits).unwrap();
        let refused = |requires: Requires| host.meets(&requires).unwrap_err().to_string();
        assert!(refused(Requires { arch: "aarch64".into(), ..fits.clone() }).contains("aarch64"));
        assert!(refused(Requires { cpu_vendor: "GenuineIntel".into(), ..fits.clone() }).contains("GenuineIntel"));
        host.meets(&Requires { state_format: OLDEST_STATE_FORMAT, ..fits.clone() }).unwrap();
        assert!(refused(Requires { state_format: 99, ..fits.clone() }).contains("newer forkd"));
        let flags = ["avx", "avx512f", "amx_tile"].map(String::from).to_vec();
        assert!(refused(Requires { cpu_flags: flags, ..fits }).ends_with("avx512f, amx_tile"));
        assert_eq!(HostCpu::parse("nothing"), None);
        HostCpu::here().unwrap();
    }
}
