//! What is asked of KVM, by the numbers of `linux/kvm.h`: type and number of each request. KVM has some hundred more, for
//! devices, migration, debugging and other machines; a VMM that was taken over gets to none of that code.

/// What a VM, its vCPUs and a template's rehearsal need, the most frequent first: all threads have the main thread's filter.
pub(super) const MAIN: &[u64] = &[
    RUN,
    GET_API_VERSION,
    CREATE_VM,
    GET_MSR_INDEX_LIST,
    CHECK_EXTENSION,
    GET_VCPU_MMAP_SIZE,
    GET_SUPPORTED_CPUID,
    CREATE_VCPU,
    SET_USER_MEMORY_REGION,
    SET_TSS_ADDR,
    SET_IDENTITY_MAP_ADDR,
    CREATE_IRQCHIP,
    IRQ_LINE,
    GET_IRQCHIP,
    SET_IRQCHIP,
    IRQFD,
    IOEVENTFD,
    SET_CLOCK,
    GET_CLOCK,
    GET_REGS,
    SET_REGS,
    GET_SREGS,
    SET_SREGS,
    GET_MSRS,
    SET_MSRS,
    GET_LAPIC,
    SET_LAPIC,
    SET_CPUID2,
    GET_MP_STATE,
    SET_MP_STATE,
    GET_VCPU_EVENTS,
    SET_VCPU_EVENTS,
    GET_DEBUGREGS,
    SET_DEBUGREGS_OR_TSC_KHZ,
    GET_TSC_KHZ_OR_ENABLE_CAP,
    GET_XSAVE,
    SET_XSAVE,
    GET_XCRS,
    SET_XCRS,
    KVMCLOCK_CTRL,
];

/// What the thread of a vCPU needs: to run it, and to hand in its state when it is parked.
pub(super) const VCPU: &[u64] = &[
    RUN,
    GET_REGS,
    GET_SREGS,
    GET_MSRS,
    GET_LAPIC,
    GET_MP_STATE,
    GET_VCPU_EVENTS,
    GET_DEBUGREGS,
    GET_TSC_KHZ_OR_ENABLE_CAP,
    GET_XSAVE,
    GET_XCRS,
    KVMCLOCK_CTRL,
];

const fn request(number: u64) -> u64 {
    0xae00 | number
}

const GET_API_VERSION: u64 = request(0x00);
const CREATE_VM: u64 = request(0x01);
const GET_MSR_INDEX_LIST: u64 = request(0x02);
const CHECK_EXTENSION: u64 = request(0x03);
const GET_VCPU_MMAP_SIZE: u64 = request(0x04);
const GET_SUPPORTED_CPUID: u64 = request(0x05);
const CREATE_VCPU: u64 = request(0x41);
const SET_USER_MEMORY_REGION: u64 = request(0x46);
const SET_TSS_ADDR: u64 = request(0x47);
const SET_IDENTITY_MAP_ADDR: u64 = request(0x48);
const CREATE_IRQCHIP: u64 = request(0x60);
const IRQ_LINE: u64 = request(0x61);
const GET_IRQCHIP: u64 = request(0x62);
const SET_IRQCHIP: u64 = request(0x63);
const IRQFD: u64 = request(0x76);
const IOEVENTFD: u64 = request(0x79);
const SET_CLOCK: u64 = request(0x7b);
const GET_CLOCK: u64 = request(0x7c);
const RUN: u64 = request(0x80);
const GET_REGS: u64 = request(0x81);
const SET_REGS: u64 = request(0x82);
const GET_SREGS: u64 = request(0x83);
const SET_SREGS: u64 = request(0x84);
const GET_MSRS: u64 = request(0x88);
const SET_MSRS: u64 = request(0x89);
const GET_LAPIC: u64 = request(0x8e);
const SET_LAPIC: u64 = request(0x8f);
const SET_CPUID2: u64 = request(0x90);
const GET_MP_STATE: u64 = request(0x98);
const SET_MP_STATE: u64 = request(0x99);
const GET_VCPU_EVENTS: u64 = request(0x9f);
const SET_VCPU_EVENTS: u64 = request(0xa0);
const GET_DEBUGREGS: u64 = request(0xa1);
/// Two of one number, told apart by the size of what they come with.
const SET_DEBUGREGS_OR_TSC_KHZ: u64 = request(0xa2);
/// The same.
const GET_TSC_KHZ_OR_ENABLE_CAP: u64 = request(0xa3);
const GET_XSAVE: u64 = request(0xa4);
const SET_XSAVE: u64 = request(0xa5);
const GET_XCRS: u64 = request(0xa6);
const SET_XCRS: u64 = request(0xa7);
const KVMCLOCK_CTRL: u64 = request(0xad);
