//! What each vCPU says about itself: KVM's offer, narrowed to what we stand behind and given a topology.
//!
//! One package, one core per vCPU, no SMT, for Intel's leaves and AMD's alike. Nested virtualisation and the
//! performance counters are hidden: a guest needs neither, and both would have to travel with every snapshot.

use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, KVM_PMU_CAP_DISABLE,
    kvm_cpuid_entry2, kvm_enable_cap,
};
use kvm_ioctls::{Cap, Kvm, VmFd};

/// Bits of leaf 1.
mod leaf1 {
    pub(super) const ECX_VMX: u32 = 1 << 5;
    pub(super) const ECX_PDCM: u32 = 1 << 15;
    pub(super) const ECX_TSC_DEADLINE: u32 = 1 << 24;
    pub(super) const ECX_HYPERVISOR: u32 = 1 << 31;
    pub(super) const EDX_HTT: u32 = 1 << 28;
}

/// Bits of leaf 0x8000_0001.
mod leaf8000_0001 {
    pub(super) const ECX_CMP_LEGACY: u32 = 1 << 1;
    pub(super) const ECX_SVM: u32 = 1 << 2;
    pub(super) const ECX_PERFCTR_CORE: u32 = 1 << 23;
    pub(super) const ECX_PERFCTR_NB: u32 = 1 << 24;
}

/// The leaves that describe the topology level by level; the second is a superset of the first.
const TOPOLOGY: [u32; 2] = [0xb, 0x1f];
/// Threads of a core, cores of the package.
const TOPOLOGY_LEVELS: u32 = 2;

/// What the host's KVM offers to any vCPU.
pub(crate) fn offered(kvm: &Kvm) -> Result<CpuId, kvm_ioctls::Error> {
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let deadline_timer = kvm.check_extension(Cap::TscDeadlineTimer);
    for entry in cpuid.as_mut_slice() {
        narrow(entry, deadline_timer);
    }
    lay_out_topology(&mut cpuid)?;
    Ok(cpuid)
}

/// Takes the performance counters away from a VM without vCPUs yet. Their leaves are hidden in any case, but AMD's first
/// counters have no leaf: a kernel takes them for granted. A KVM that cannot do this keeps those.
pub(crate) fn disable_counters(fd: &VmFd) -> Result<(), kvm_ioctls::Error> {
    let offered = fd.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into());
    if u32::try_from(offered).is_ok_and(|offered| offered & KVM_PMU_CAP_DISABLE != 0) {
        let args = [KVM_PMU_CAP_DISABLE.into(), 0, 0, 0];
        fd.enable_cap(&kvm_enable_cap { cap: KVM_CAP_PMU_CAPABILITY, args, ..kvm_enable_cap::default() })?;
    }
    Ok(())
}

/// Gives the topology leaves an entry per level. Newer KVMs offer only an empty first one, older ones the host's own:
/// without the second level every vCPU would be a package of its own.
fn lay_out_topology(cpuid: &mut CpuId) -> Result<(), kvm_ioctls::Error> {
    for function in TOPOLOGY {
        let offered = cpuid.as_slice().iter().any(|entry| entry.function == function);
        cpuid.retain(|entry| entry.function != function);
        let flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
        for index in (0..TOPOLOGY_LEVELS).filter(|_| offered) {
            let level = kvm_cpuid_entry2 { function, index, flags, ..kvm_cpuid_entry2::default() };
            cpuid.push(level).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))?;
        }
    }
    Ok(())
}

fn narrow(entry: &mut kvm_cpuid_entry2, deadline_timer: bool) {
    match entry.function {
        1 => {
            entry.ecx &= !(leaf1::ECX_VMX | leaf1::ECX_PDCM);
            entry.ecx |= leaf1::ECX_HYPERVISOR;
            // KVM's APIC has it whatever the host's CPU; without it a kernel would look for a PIT to calibrate by.
            if deadline_timer {
                entry.ecx |= leaf1::ECX_TSC_DEADLINE;
            }
        }
        // Counters of Intel's, and of AMD's second version.
        0xa | 0x8000_0022 => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
        0x8000_0001 => {
            entry.ecx &= !(leaf8000_0001::ECX_SVM | leaf8000_0001::ECX_PERFCTR_CORE | leaf8000_0001::ECX_PERFCTR_NB);
        }
        _ => {}
    }
}

/// The offer as vCPU `id` of `count` sees it.
pub(crate) fn for_vcpu(offered: &CpuId, id: u8, count: u8) -> CpuId {
    let mut cpuid = offered.clone();
    for entry in cpuid.as_mut_slice() {
        place(entry, id, count);
    }
    cpuid
}

/// How many bits of an APIC id number the cores of the one package.
const fn core_bits(count: u8) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

fn place(entry: &mut kvm_cpuid_entry2, id: u8, count: u8) {
    let (apic_id, cores) = (u32::from(id), u32::from(count));
    match entry.function {
        1 => {
            entry.ebx = (entry.ebx & 0xffff) | (apic_id << 24) | (cores << 16);
            set(&mut entry.edx, leaf1::EDX_HTT, count > 1);
        }
        // Cache leaves: no sharing between hyper-threads, `cores` core ids in the package.
        4 if entry.eax & 0x1f != 0 => {
            let shared_by = if (entry.eax >> 5) & 7 >= 3 { cores - 1 } else { 0 };
            entry.eax = (entry.eax & 0x3fff) | (shared_by << 14) | (((1 << core_bits(count)) - 1) << 26);
        }
        0xb | 0x1f => {
            entry.edx = apic_id;
            let (shift, logical, kind) = match entry.index {
                0 => (0, 1, 1),
                1 => (core_bits(count), cores, 2),
                _ => (0, 0, 0),
            };
            (entry.eax, entry.ebx, entry.ecx) = (shift, logical, (kind << 8) | entry.index);
        }
        0x8000_0001 => set(&mut entry.ecx, leaf8000_0001::ECX_CMP_LEGACY, count > 1),
        0x8000_0008 => entry.ecx = (entry.ecx & !0xf0ff) | (core_bits(count) << 12) | (cores - 1),
        0x8000_001d if entry.eax & 0x1f != 0 => {
            let shared_by = if (entry.eax >> 5) & 7 >= 3 { cores - 1 } else { 0 };
            entry.eax = (entry.eax & 0x3fff) | (shared_by << 14);
        }
        0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (apic_id, apic_id, 0),
        _ => {}
    }
}

const fn set(word: &mut u32, bit: u32, on: bool) {
    if on {
        *word |= bit;
    } else {
        *word &= !bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(function: u32, index: u32, id: u8, count: u8) -> kvm_cpuid_entry2 {
        let mut entry = kvm_cpuid_entry2 { function, index, ..Default::default() };
        place(&mut entry, id, count);
        entry
    }

    #[test]
    fn each_vcpu_is_a_core_of_its_own() {
        let leaf = placed(1, 0, 5, 6);
        assert_eq!((leaf.ebx >> 24, (leaf.ebx >> 16) & 0xff), (5, 6));
        assert_ne!(leaf.edx & leaf1::EDX_HTT, 0);
        let cores = placed(0xb, 1, 5, 6);
        assert_eq!((cores.eax, cores.ebx, cores.ecx, cores.edx), (3, 6, 0x201, 5));
        assert_eq!(placed(0xb, 0, 0, 1).ebx, 1);
        assert_eq!(placed(0x8000_0008, 0, 0, 32).ecx, (5 << 12) | 31);
        assert_eq!(placed(0x8000_001e, 0, 7, 8).eax, 7);
    }

    #[test]
    fn a_topology_has_both_levels_whatever_kvm_offers() {
        let entry = |function, index| kvm_cpuid_entry2 { function, index, eax: 7, ..Default::default() };
        let newer = [entry(1, 0), entry(0xb, 0)];
        let older = [entry(0xb, 0), entry(0xb, 1), entry(0xb, 2), entry(1, 0)];
        for entries in [&newer[..], &older] {
            let mut cpuid = CpuId::from_entries(entries).unwrap();
            lay_out_topology(&mut cpuid).unwrap();
            let cpuid = for_vcpu(&cpuid, 5, 6);
            let levels = cpuid.as_slice().iter().filter(|entry| entry.function == 0xb);
            let levels: Vec<_> = levels.map(|entry| (entry.index, entry.eax, entry.ebx, entry.edx)).collect();
            assert_eq!(levels, [(0, 0, 1, 5), (1, 3, 6, 5)]);
            assert!(cpuid.as_slice().iter().all(|entry| entry.function != 0x1f), "a leaf the CPU does not have");
        }
    }

    #[test]
    fn a_single_vcpu_claims_no_siblings() {
        assert_eq!(placed(1, 0, 0, 1).edx & leaf1::EDX_HTT, 0);
        assert_eq!(placed(0xb, 1, 0, 1).eax, 0);
    }

    #[test]
    fn nested_virtualisation_and_counters_are_hidden() {
        let mut leaf = kvm_cpuid_entry2 { function: 1, ecx: leaf1::ECX_VMX | leaf1::ECX_PDCM, ..Default::default() };
        narrow(&mut leaf, true);
        assert_eq!(leaf.ecx, leaf1::ECX_HYPERVISOR | leaf1::ECX_TSC_DEADLINE);
        let mut svm = kvm_cpuid_entry2 { function: 0x8000_0001, ecx: u32::MAX, ..Default::default() };
        narrow(&mut svm, true);
        assert_eq!(svm.ecx & leaf8000_0001::ECX_SVM, 0);
    }
}
