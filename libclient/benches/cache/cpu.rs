//! Where threads run and what CPU time they use. Must never move a thread that is not the caller's.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::sync::OnceLock;
use std::time::Duration;

/// The CPUs that this process might use when it was first asked.
pub fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let set = sched_getaffinity(Pid::from_raw(0)).expect("affinity");
        (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
    })
}

/// Pins the calling thread, and what it starts from now on.
pub fn pin_to(cpu: usize) -> usize {
    let mut one = CpuSet::new();
    one.set(cpu).expect("a CPU of this machine");
    sched_setaffinity(Pid::from_raw(0), &one).expect("affinity");
    cpu
}

/// CPU time of the calling thread.
pub fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of Linux").into()
}
