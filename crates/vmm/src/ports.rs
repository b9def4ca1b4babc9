//! The I/O ports: serial console, panic notifier, and the registers by which a guest ends itself.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, SerialState, Trigger};
use vmm_sys_util::eventfd::EventFd;

use crate::console::ConsoleLog;
use crate::layout::{PORT_PANIC, PORT_RESET, PORT_SERIAL, PORT_SLEEP, PORT_SLEEP_STATUS, RESET_VALUE, SLEEP_TYPE_OFF};

const SERIAL_PORTS: u16 = 8;
/// Sleep control: go to sleep now.
const SLEEP_ENABLE: u8 = 1 << 5;
/// Panic notifier: the kernel panicked, or hands over to a crash kernel.
const PANIC_EVENTS: u8 = 3;
/// The keyboard controller's command port, whose pulse is a PC's oldest way to restart.
const PORT_KEYBOARD: u16 = 0x64;
const KEYBOARD_RESET: u8 = 0xfe;
/// Its status: ready to take a command. A kernel asks 65536 times before it gives up and restarts anyway.
const KEYBOARD_READY: u8 = 0;

/// What a guest can say about its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It powered off.
    Shutdown,
    /// It wants to start again.
    Reboot,
    /// Its kernel gave up.
    Panic,
}

/// An interrupt line that is a descriptor.
#[derive(Debug)]
pub(crate) struct EventLine(pub(crate) EventFd);

impl Trigger for EventLine {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// The serial port's registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SerialStateV1 {
    divisor: [u8; 2],
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    received: Vec<u8>,
}

impl From<SerialState> for SerialStateV1 {
    fn from(state: SerialState) -> Self {
        Self {
            divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            received: state.in_buffer,
        }
    }
}

impl From<&SerialStateV1> for SerialState {
    fn from(state: &SerialStateV1) -> Self {
        let [baud_divisor_low, baud_divisor_high] = state.divisor;
        Self {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.received.clone(),
        }
    }
}

/// Everything behind a port.
#[derive(Debug)]
pub(crate) struct Ports {
    serial: Mutex<Serial<EventLine, NoEvents, ConsoleLog>>,
    /// Somebody was told that the console does not work.
    complained: AtomicBool,
}

impl Ports {
    /// A serial port that raises `irq` and writes to `log`.
    pub(crate) fn new(irq: EventFd, log: ConsoleLog) -> Self {
        Self { serial: Mutex::new(Serial::new(EventLine(irq), log)), complained: AtomicBool::new(false) }
    }

    /// A serial port that was saved.
    pub(crate) fn restore(state: &SerialStateV1, irq: EventFd, log: ConsoleLog) -> io::Result<Self> {
        let serial = Serial::from_state(&state.into(), EventLine(irq), NoEvents, log)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
        Ok(Self { serial: Mutex::new(serial), complained: AtomicBool::new(false) })
    }

    /// The serial port's registers.
    pub(crate) fn state(&self) -> SerialStateV1 {
        self.serial().state().into()
    }

    /// The reason of the guest's panic, if its console had it.
    pub(crate) fn panic_reason(&self) -> Option<String> {
        self.serial().writer().panic_reason()
    }

    fn serial(&self) -> MutexGuard<'_, Serial<EventLine, NoEvents, ConsoleLog>> {
        // A panic while holding it cannot leave the registers half-written in a way that matters to the host.
        self.serial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest reads a port. Nothing there reads as all ones, as on a PC.
    pub(crate) fn read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        let Some(first) = data.first_mut() else { return };
        match port {
            PORT_SLEEP_STATUS => *first = 0,
            PORT_PANIC => *first = PANIC_EVENTS,
            PORT_KEYBOARD => *first = KEYBOARD_READY,
            _ => {
                if let Some(register) = serial_register(port) {
                    *first = self.serial().read(register);
                }
            }
        }
    }

    /// The guest writes a port, and may have ended itself by it.
    pub(crate) fn write(&self, port: u16, data: &[u8]) -> Option<Ending> {
        let value = *data.first()?;
        match port {
            PORT_SLEEP if value & SLEEP_ENABLE != 0 && (value >> 2) & 7 == SLEEP_TYPE_OFF => Some(Ending::Shutdown),
            PORT_RESET if value == RESET_VALUE => Some(Ending::Reboot),
            PORT_KEYBOARD if value == KEYBOARD_RESET => Some(Ending::Reboot),
            PORT_PANIC if value & PANIC_EVENTS != 0 => Some(Ending::Panic),
            _ => {
                // Every byte of a string instruction goes to the same register.
                for value in data {
                    self.write_serial(port, *value);
                }
                None
            }
        }
    }

    fn write_serial(&self, port: u16, value: u8) {
        let Some(register) = serial_register(port) else { return };
        // Said once: a guest decides how many bytes there are to lose.
        if let Err(error) = self.serial().write(register, value)
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            log::warn!("the console loses what the guest writes: {error:?}");
        }
    }
}

fn serial_register(port: u16) -> Option<u8> {
    let register = port.checked_sub(PORT_SERIAL).filter(|register| *register < SERIAL_PORTS)?;
    u8::try_from(register).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ports() -> Ports {
        Ports::new(EventFd::new(libc::EFD_NONBLOCK).unwrap(), ConsoleLog::new(tempfile::tempfile().unwrap()))
    }

    #[test]
    fn the_ways_to_end_are_told_apart() {
        let ports = ports();
        assert_eq!(ports.write(PORT_SLEEP, &[SLEEP_ENABLE | (SLEEP_TYPE_OFF << 2)]), Some(Ending::Shutdown));
        assert_eq!(ports.write(PORT_SLEEP, &[SLEEP_ENABLE | (3 << 2)]), None);
        assert_eq!(ports.write(PORT_RESET, &[RESET_VALUE]), Some(Ending::Reboot));
        assert_eq!(ports.write(PORT_KEYBOARD, &[KEYBOARD_RESET]), Some(Ending::Reboot));
        assert_eq!(ports.write(PORT_PANIC, &[1]), Some(Ending::Panic));
        assert_eq!(ports.write(0x80, &[1, 2, 3, 4]), None);
        assert_eq!(ports.write(PORT_SLEEP, &[]), None);
    }

    #[test]
    fn what_is_not_there_reads_as_ones() {
        let mut data = [0; 4];
        ports().read(0xcf8, &mut data);
        assert_eq!(data, [0xff; 4]);
        ports().read(PORT_SLEEP_STATUS, &mut data[..1]);
        assert_eq!(data[0], 0);
    }

    #[test]
    fn a_restart_does_not_wait_for_a_keyboard() {
        let mut status = [0xff];
        ports().read(PORT_KEYBOARD, &mut status);
        assert_eq!(status[0] & 2, 0, "a kernel would take it for busy");
    }

    #[test]
    fn a_restored_port_has_its_registers_and_repeats_its_interrupt() {
        let (scratch, interrupts, transmitter_empty) = (PORT_SERIAL + 7, PORT_SERIAL + 1, 2);
        let old = ports();
        assert_eq!(old.write(scratch, &[0x5a]), None);
        assert_eq!(old.write(interrupts, &[transmitter_empty]), None);
        assert_eq!(old.write(PORT_SERIAL, b"x"), None);
        let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let log = ConsoleLog::new(tempfile::tempfile().unwrap());
        let new = Ports::restore(&old.state(), line.try_clone().unwrap(), log).unwrap();
        assert_eq!(new.state(), old.state());
        assert_eq!(line.read().unwrap(), 1);
        let mut value = [0];
        new.read(scratch, &mut value);
        assert_eq!(value, [0x5a]);
    }

    proptest! {
        /// What a guest makes of its ports can be written down, and taken up again or refused.
        #[test]
        fn any_guest_is_survived(accesses in prop::collection::vec(
            (prop_oneof![PORT_SERIAL..PORT_SERIAL + SERIAL_PORTS, any::<u16>()], any::<bool>(), any::<[u8; 4]>(), 0..=4_usize),
            0..300,
        )) {
            let ports = ports();
            for (port, is_write, mut bytes, len) in accesses {
                if is_write {
                    ports.write(port, &bytes[..len]);
                } else {
                    ports.read(port, &mut bytes[..len]);
                }
            }
            let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
            let restored = Ports::restore(&ports.state(), line, ConsoleLog::new(tempfile::tempfile().unwrap()));
            if let Ok(restored) = restored {
                prop_assert_eq!(restored.state(), ports.state());
            }
        }
    }

    #[test]
    fn the_console_reaches_its_log() {
        let ports = ports();
        for byte in b"Kernel panic - not syncing: gone" {
            assert_eq!(ports.write(PORT_SERIAL, &[*byte]), None);
        }
        assert_eq!(ports.panic_reason().as_deref(), Some("gone"));
    }
}
