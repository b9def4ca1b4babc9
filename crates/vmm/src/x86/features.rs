//! Whether a vCPU that was promised certain features can live on this host.
//!
//! Only bits that promise an instruction or a register count; what KVM or the guest's own kernel turns on and off at run
//! time, and what describes the topology, does not.

use kvm_bindings::kvm_cpuid_entry2;

/// A register of a leaf whose bits are promises: `names` are those a person would know.
struct Promises {
    function: u32,
    index: u32,
    register: fn(&kvm_cpuid_entry2) -> u32,
    register_name: &'static str,
    not_promises: u32,
    names: &'static [(u32, &'static str)],
}

const OSXSAVE: u32 = 1 << 27;
const APIC: u32 = 1 << 9;
const HTT: u32 = 1 << 28;
const OSPKE: u32 = 1 << 4;
const CMP_LEGACY: u32 = 1 << 1;

const ALL: &[Promises] = &[
    Promises {
        function: 1,
        index: 0,
        register: |leaf| leaf.ecx,
        register_name: "ecx",
        not_promises: OSXSAVE,
        names: &[
            (0, "sse3"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (19, "sse4.1"),
            (20, "sse4.2"),
            (21, "x2apic"),
            (22, "movbe"),
            (23, "popcnt"),
            (24, "tsc-deadline"),
            (25, "aes"),
            (26, "xsave"),
            (28, "avx"),
            (29, "f16c"),
            (30, "rdrand"),
        ],
    },
    Promises {
        function: 1,
        index: 0,
        register: |leaf| leaf.edx,
        register_name: "edx",
        not_promises: APIC | HTT,
        names: &[(25, "sse"), (26, "sse2")],
    },
    Promises {
        function: 7,
        index: 0,
        register: |leaf| leaf.ebx,
        register_name: "ebx",
        not_promises: 0,
        names: &[
            (0, "fsgsbase"),
            (3, "bmi1"),
            (5, "avx2"),
            (7, "smep"),
            (8, "bmi2"),
            (16, "avx512f"),
            (18, "rdseed"),
            (19, "adx"),
            (20, "smap"),
            (29, "sha"),
        ],
    },
    Promises {
        function: 7,
        index: 0,
        register: |leaf| leaf.ecx,
        register_name: "ecx",
        not_promises: OSPKE,
        names: &[(2, "umip"), (3, "pku"), (8, "gfni"), (9, "vaes"), (16, "la57"), (22, "rdpid")],
    },
    Promises {
        function: 7,
        index: 0,
        register: |leaf| leaf.edx,
        register_name: "edx",
        not_promises: 0,
        names: &[(4, "fsrm"), (26, "spec-ctrl")],
    },
    Promises { function: 7, index: 1, register: |leaf| leaf.eax, register_name: "eax", not_promises: 0, names: &[] },
    Promises {
        function: 0xd,
        index: 0,
        register: |leaf| leaf.eax,
        register_name: "eax",
        not_promises: 0,
        names: &[(2, "avx state"), (5, "avx-512 state"), (9, "pku state")],
    },
    Promises { function: 0xd, index: 1, register: |leaf| leaf.eax, register_name: "eax", not_promises: 0, names: &[] },
    Promises {
        function: 0x8000_0001,
        index: 0,
        register: |leaf| leaf.ecx,
        register_name: "ecx",
        not_promises: CMP_LEGACY,
        names: &[(0, "lahf"), (5, "abm"), (6, "sse4a")],
    },
    Promises {
        function: 0x8000_0001,
        index: 0,
        register: |leaf| leaf.edx,
        register_name: "edx",
        not_promises: APIC,
        names: &[(20, "nx"), (26, "1 GiB pages"), (27, "rdtscp"), (29, "long mode")],
    },
];

fn leaf(leaves: &[kvm_cpuid_entry2], function: u32, index: u32) -> kvm_cpuid_entry2 {
    let found = leaves.iter().find(|leaf| leaf.function == function && leaf.index == index);
    found.copied().unwrap_or_default()
}

/// The CPU's maker, as it says itself.
pub(crate) fn vendor(leaves: &[kvm_cpuid_entry2]) -> String {
    let leaf = leaf(leaves, 0, 0);
    let bytes: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx].iter().flat_map(|part| part.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).chars().filter(|c| c.is_ascii_graphic()).collect()
}

/// What a vCPU was promised and `offered` does not have, as a sentence; `None` when nothing is missing.
pub(crate) fn missing(promised: &[kvm_cpuid_entry2], offered: &[kvm_cpuid_entry2]) -> Option<String> {
    let (then, now) = (vendor(promised), vendor(offered));
    if then != now {
        return Some(format!("it was taken on a CPU of {then:?}, this one is of {now:?}"));
    }
    let missing: Vec<String> = ALL.iter().flat_map(|promises| promises.missing(promised, offered)).collect();
    (!missing.is_empty()).then(|| format!("this CPU, or its KVM, lacks {}", missing.join(", ")))
}

impl Promises {
    fn missing(&self, promised: &[kvm_cpuid_entry2], offered: &[kvm_cpuid_entry2]) -> Vec<String> {
        let word = |leaves| (self.register)(&leaf(leaves, self.function, self.index));
        let gone = word(promised) & !word(offered) & !self.not_promises;
        (0..u32::BITS).filter(|bit| gone & (1 << bit) != 0).map(|bit| self.name(bit)).collect()
    }

    fn name(&self, bit: u32) -> String {
        match self.names.iter().find(|(named, _)| *named == bit) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("CPUID {:#x}.{} {} bit {bit}", self.function, self.index, self.register_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(vendor: &[u8; 12], ecx: u32) -> Vec<kvm_cpuid_entry2> {
        let part = |at: usize| u32::from_le_bytes(vendor[at..at + 4].try_into().unwrap());
        let name = kvm_cpuid_entry2 { function: 0, ebx: part(0), edx: part(4), ecx: part(8), ..Default::default() };
        vec![name, kvm_cpuid_entry2 { function: 1, ecx, ..Default::default() }]
    }

    #[test]
    fn more_features_are_no_harm_and_fewer_are_named() {
        let (avx, popcnt) = (1 << 28, 1 << 23);
        let saved = cpu(b"AuthenticAMD", avx | OSXSAVE);
        assert_eq!(missing(&saved, &cpu(b"AuthenticAMD", avx | popcnt)), None);
        assert_eq!(missing(&saved, &cpu(b"AuthenticAMD", popcnt)).unwrap(), "this CPU, or its KVM, lacks avx");
        let odd = cpu(b"AuthenticAMD", 1 << 2);
        assert!(missing(&odd, &cpu(b"AuthenticAMD", 0)).unwrap().ends_with("CPUID 0x1.0 ecx bit 2"));
    }

    #[test]
    fn another_maker_is_refused() {
        let sentence = missing(&cpu(b"AuthenticAMD", 0), &cpu(b"GenuineIntel", u32::MAX)).unwrap();
        assert!(sentence.contains("AuthenticAMD") && sentence.contains("GenuineIntel"), "{sentence}");
    }
}
