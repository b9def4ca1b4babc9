//! A vCPU's state laid out to be given to many new vCPUs: whatever can be found out before is, and what a new vCPU has
//! anyway is left out. Every call that a child need not make is one that all of them do not make.
//!
//! The order of restoring matters. What a vCPU is (its features) comes before what it holds; the local APIC comes before
//! the MSRs, because the deadline of its timer is one of them and is refused while the timer is in another mode; pending
//! events come last, since other calls may raise or drop them.

use std::sync::Arc;

use kvm_bindings::{CpuId, KVM_MAX_MSR_ENTRIES, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_mp_state};
use kvm_ioctls::VcpuFd;

use super::vcpu_state::{VcpuStateError, VcpuStateV1, failed};
use crate::sys;

/// A guest that moved to a host whose clock ticks this many millionths apart notices nothing.
const TSC_TOLERANCE_PPM: u64 = 250;

/// What is prepared. The state itself stays where it is.
#[derive(Debug)]
pub(crate) struct ReadyVcpu {
    /// What the vCPU is told about itself.
    pub(crate) promised: Arc<[kvm_cpuid_entry2]>,
    leaves: CpuId,
    msrs: Vec<Msrs>,
    /// These three only where a new vCPU has others.
    tsc_khz: Option<u32>,
    mp_state: Option<kvm_mp_state>,
    debug_regs: Option<kvm_debugregs>,
}

impl ReadyVcpu {
    /// Prepares `state` for any vCPU: what this host's KVM gave out a moment ago, it takes back.
    pub(crate) fn of_here(state: &VcpuStateV1) -> Result<Self, VcpuStateError> {
        let too_many = |what| move |_| VcpuStateError::TooMany { what };
        let msrs = state.msrs.chunks(KVM_MAX_MSR_ENTRIES).map(Msrs::from_entries).collect::<Result<_, _>>();
        Ok(Self {
            promised: state.cpuid.as_slice().into(),
            leaves: CpuId::from_entries(&state.cpuid).map_err(too_many("CPUID leaves"))?,
            msrs: msrs.map_err(too_many("MSRs"))?,
            tsc_khz: Some(state.tsc_khz),
            mp_state: Some(state.mp_state),
            debug_regs: Some(state.debug_regs),
        })
    }

    /// Prepares `state` for vCPUs that come into the world as `new` did.
    pub(crate) fn new(state: &VcpuStateV1, new: &VcpuFd) -> Result<Self, VcpuStateError> {
        let here = new.get_tsc_khz().map_err(failed("the clock rate"))?;
        let mp_state = new.get_mp_state().map_err(failed("the run state"))?;
        let debug_regs = new.get_debug_regs().map_err(failed("the debug registers"))?;
        Ok(Self {
            tsc_khz: clock_rate(state.tsc_khz, here),
            mp_state: (mp_state != state.mp_state).then_some(state.mp_state),
            debug_regs: (debug_regs != state.debug_regs).then_some(state.debug_regs),
            ..Self::of_here(state)?
        })
    }

    /// Gives the state, which must be the one that was prepared, to a new vCPU.
    pub(crate) fn restore(&self, state: &VcpuStateV1, vcpu: &VcpuFd) -> Result<(), VcpuStateError> {
        vcpu.set_cpuid2(&self.leaves).map_err(failed("the CPU features"))?;
        if let Some(saved) = self.tsc_khz {
            vcpu.set_tsc_khz(saved).map_err(|_| VcpuStateError::Clock { saved })?;
        }
        if let Some(mp_state) = self.mp_state {
            vcpu.set_mp_state(mp_state).map_err(failed("the run state"))?;
        }
        vcpu.set_regs(&state.regs).map_err(failed("the general registers"))?;
        vcpu.set_sregs(&state.sregs).map_err(failed("the control registers"))?;
        sys::xsave::set(vcpu, &state.xsave).map_err(failed("the vector registers"))?;
        // A CPU without XSAVE has none, and KVM refuses to set none.
        if state.xcrs.nr_xcrs > 0 {
            vcpu.set_xcrs(&state.xcrs).map_err(failed("the extended control registers"))?;
        }
        if let Some(debug_regs) = &self.debug_regs {
            vcpu.set_debug_regs(debug_regs).map_err(failed("the debug registers"))?;
        }
        vcpu.set_lapic(&state.lapic).map_err(failed("the local APIC"))?;
        for msrs in &self.msrs {
            let accepted = vcpu.set_msrs(msrs).map_err(failed("the model-specific registers"))?;
            if let Some(refused) = msrs.as_slice().get(accepted) {
                return Err(VcpuStateError::Msr { msr: refused.index });
            }
        }
        vcpu.set_vcpu_events(&state.events).map_err(failed("the pending events"))
    }
}

/// The clock rate to set, unless a guest cannot tell the one it had from the one it would get.
fn clock_rate(saved_khz: u32, here_khz: u32) -> Option<u32> {
    let apart = u64::from(here_khz.abs_diff(saved_khz));
    (apart * 1_000_000 > u64::from(saved_khz) * TSC_TOLERANCE_PPM).then_some(saved_khz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_set_only_where_a_guest_would_notice() {
        assert_eq!(clock_rate(2_000_000, 2_000_000), None);
        assert_eq!(clock_rate(2_000_000, 2_000_500), None);
        assert_eq!(clock_rate(2_000_000, 1_999_499), Some(2_000_000));
        assert_eq!(clock_rate(2_000_000, 3_000_000), Some(2_000_000));
    }
}
