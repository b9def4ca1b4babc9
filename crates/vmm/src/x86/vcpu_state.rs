//! One vCPU as plain data: everything KVM keeps for it, taken while it does not run. [`super::ready_vcpu`] gives it back.

use kvm_bindings::{
    CpuId, KVM_MAX_MSR_ENTRIES, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Kvm, VcpuFd};
use serde::{Deserialize, Serialize};

use super::features;

/// Everything of a vCPU's.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default))]
#[serde(deny_unknown_fields)]
pub(crate) struct VcpuStateV1 {
    pub(crate) cpuid: Vec<kvm_cpuid_entry2>,
    pub(crate) tsc_khz: u32,
    pub(crate) mp_state: kvm_mp_state,
    pub(crate) regs: kvm_regs,
    pub(crate) sregs: kvm_sregs,
    pub(crate) xsave: kvm_xsave,
    pub(crate) xcrs: kvm_xcrs,
    pub(crate) debug_regs: kvm_debugregs,
    pub(crate) lapic: kvm_lapic_state,
    pub(crate) msrs: Vec<kvm_msr_entry>,
    pub(crate) events: kvm_vcpu_events,
}

/// What could not be taken from a vCPU or given to it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VcpuStateError {
    /// An ioctl failed.
    #[error("{what}: {source}")]
    Ioctl {
        /// Which part.
        what: &'static str,
        /// What KVM says.
        source: kvm_ioctls::Error,
    },
    /// KVM took or gave only some of the MSRs.
    #[error("KVM refused the model-specific register {msr:#x}")]
    Msr {
        /// Which register.
        msr: u32,
    },
    /// More MSRs or leaves than KVM takes.
    #[error("a vCPU cannot have that many {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
    },
    /// The clock rate differs and the host cannot adapt.
    #[error("the guest's clock ran at {saved} kHz and this host cannot run it at another rate than its own")]
    Clock {
        /// Then.
        saved: u32,
    },
}

pub(super) fn failed(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> VcpuStateError {
    move |source| VcpuStateError::Ioctl { what, source }
}

/// The MSRs that make up a guest's state on this host.
pub(crate) fn msr_indices(kvm: &Kvm) -> Result<Vec<u32>, kvm_ioctls::Error> {
    Ok(kvm.get_msr_index_list()?.as_slice().to_vec())
}

impl VcpuStateV1 {
    /// Takes the state of a vCPU that does not run and owes KVM no answer. `promised` is what it was told about itself:
    /// some KVMs, asked again, tell of the host instead.
    pub(crate) fn capture(
        vcpu: &VcpuFd,
        promised: &[kvm_cpuid_entry2],
        msr_indices: &[u32],
    ) -> Result<Self, VcpuStateError> {
        // Reading where the vCPU stands settles events under way, so it comes first.
        let mp_state = vcpu.get_mp_state().map_err(failed("the run state"))?;
        Ok(Self {
            cpuid: promised.to_vec(),
            tsc_khz: vcpu.get_tsc_khz().map_err(failed("the clock rate"))?,
            mp_state,
            regs: vcpu.get_regs().map_err(failed("the general registers"))?,
            sregs: vcpu.get_sregs().map_err(failed("the control registers"))?,
            xsave: vcpu.get_xsave().map_err(failed("the vector registers"))?,
            xcrs: vcpu.get_xcrs().map_err(failed("the extended control registers"))?,
            debug_regs: vcpu.get_debug_regs().map_err(failed("the debug registers"))?,
            lapic: vcpu.get_lapic().map_err(failed("the local APIC"))?,
            msrs: get_msrs(vcpu, msr_indices)?,
            events: vcpu.get_vcpu_events().map_err(failed("the pending events"))?,
        })
    }

    /// Which features the vCPU was promised that `offered` does not have; a sentence.
    pub(crate) fn misses(&self, offered: &CpuId) -> Option<String> {
        features::missing(&self.cpuid, offered.as_slice())
    }
}

/// Reads MSRs. KVM stops at the first it does not have for this guest; that one is left out and the rest asked for again.
fn get_msrs(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, VcpuStateError> {
    let mut taken = Vec::with_capacity(indices.len());
    let mut rest = indices;
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(KVM_MAX_MSR_ENTRIES)];
        let wanted: Vec<_> =
            batch.iter().map(|index| kvm_msr_entry { index: *index, ..kvm_msr_entry::default() }).collect();
        let mut msrs = Msrs::from_entries(&wanted).map_err(|_| VcpuStateError::TooMany { what: "MSRs" })?;
        let count = vcpu.get_msrs(&mut msrs).map_err(failed("the model-specific registers"))?;
        taken.extend_from_slice(&msrs.as_slice()[..count.min(batch.len())]);
        let skipped = usize::from(count < batch.len());
        rest = &rest[(count + skipped).min(rest.len())..];
    }
    Ok(taken)
}
