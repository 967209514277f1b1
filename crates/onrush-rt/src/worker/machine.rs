//! Properties of the machine: clock, cores, page size and units. Does not depend on workers.

use std::io;
use std::time::Duration;

/// Clock ticks per second, the unit of times in proc(5) (`_SC_CLK_TCK`).
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Milliseconds of `CLOCK_MONOTONIC`, the clock of workers on a kernel driver.
pub fn monotonic_ms() -> u64 {
    monotonic().as_millis() as u64
}

/// Microseconds of the same clock.
pub fn monotonic_us() -> u64 {
    monotonic().as_micros() as u64
}

/// The same clock in full resolution.
pub(super) fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The cores this process may run on (`sched_getaffinity(2)`), lowest first.
pub fn affinity() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect()
}

/// Pins the calling thread to one core (`sched_setaffinity(2)`).
pub fn pin_to(core: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
