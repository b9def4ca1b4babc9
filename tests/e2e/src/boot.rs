//! What boots, as what, and how it ends.

use std::time::Duration;

use anyhow::{Result, ensure};
use engine::{BootSpec, Outcome};
use proto::guest::GENERATION;

use crate::Test;
use crate::host::{Host, Sh, shell};

pub(crate) const TESTS: &[Test] = &[
    ("boot::the_agent_says_who_it_is", the_agent_says_who_it_is),
    ("boot::four_vcpus_and_four_gib_are_there", four_vcpus_and_four_gib_are_there),
    ("boot::the_smallest_guest_boots", the_smallest_guest_boots),
    ("boot::poweroff_is_a_shutdown", poweroff_is_a_shutdown),
    ("boot::the_power_button_is_a_shutdown", the_power_button_is_a_shutdown),
    ("boot::reboot_is_a_reboot", reboot_is_a_reboot),
    ("boot::a_panic_is_told_with_its_reason", a_panic_is_told_with_its_reason),
];

const END_LIMIT: Duration = Duration::from_secs(60);

fn the_agent_says_who_it_is(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    ensure!(vm.hello().generation == GENERATION);
    ensure!(vm.hello().kernel == vm.sh("uname -r")?);
    ensure!(vm.sh("hostname")? == vm.id());
    ensure!(vm.sh("cat /proc/1/comm")? == "init");
    ensure!(vm.sh("stat -f -c %T /")? == "ext2/ext3");
    // Every device is there: two disks would be vda and vdb, entropy comes from the host.
    ensure!(vm.sh("ls /sys/bus/virtio/devices | wc -l")? == "5");
    ensure!(vm.sh("cat /sys/class/misc/hw_random/rng_current")? == "virtio_rng.0");
    Ok(())
}

fn four_vcpus_and_four_gib_are_there(host: &Host) -> Result<()> {
    let vm = host.boot(BootSpec { vcpus: "4".parse()?, memory: "4G".parse()?, ..host.spec() })?;
    ensure!(vm.sh("nproc")? == "4");
    let total_kib: u64 = vm.sh("awk '/MemTotal/ {print $2}' /proc/meminfo")?.parse()?;
    ensure!((3_800_000..=4 << 20).contains(&total_kib), "the guest sees {total_kib} KiB");
    // Memory beyond the hole is there, and it is what a kernel uses first.
    let normal_pages: u64 =
        vm.sh("awk '/zone +Normal/ {n=1} n && /present/ {print $2; exit}' /proc/zoneinfo")?.parse()?;
    ensure!(normal_pages == 1 << 18);
    vm.sh("head -c 100M /dev/zero > /dev/shm/f && test $(wc -c < /dev/shm/f) = 104857600 && rm /dev/shm/f")?;
    Ok(())
}

fn the_smallest_guest_boots(host: &Host) -> Result<()> {
    let vm = host.boot(BootSpec { memory: "128M".parse()?, ..host.spec() })?;
    vm.sh("true")?;
    Ok(())
}

fn poweroff_is_a_shutdown(host: &Host) -> Result<()> {
    let vm = host.boot(host.spec())?;
    ensure!(vm.shutdown(END_LIMIT)? == Outcome::Shutdown);
    Ok(())
}

fn the_power_button_is_a_shutdown(host: &Host) -> Result<()> {
    let mut vm = host.boot(host.spec())?;
    vm.press_power_button()?;
    ensure!(vm.outcome(END_LIMIT)? == Some(Outcome::Shutdown));
    Ok(())
}

fn reboot_is_a_reboot(host: &Host) -> Result<()> {
    let mut vm = host.boot(host.spec())?;
    vm.connect()?.reboot()?;
    ensure!(vm.outcome(END_LIMIT)? == Some(Outcome::Reboot));
    Ok(())
}

fn a_panic_is_told_with_its_reason(host: &Host) -> Result<()> {
    let mut vm = host.boot(host.spec())?;
    // The connection breaks with the guest: only the outcome counts.
    drop(vm.output(&shell("echo c > /proc/sysrq-trigger"), &[]));
    let outcome = vm.outcome(END_LIMIT)?;
    let reason = "sysrq triggered crash";
    ensure!(outcome == Some(Outcome::Panic { reason: Some(reason.into()) }), "{outcome:?}");
    ensure!(vm.console_tail().contains(reason), "the console lacks it: {}", vm.console_tail());
    Ok(())
}
