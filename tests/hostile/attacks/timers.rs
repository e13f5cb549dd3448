//! A user whose timers all expire at the same moment: the kernel serves them in one interrupt of
//! many milliseconds, in whosever call of the loop it comes. Must never touch the daemon.

use crate::attack::Attack;
use crate::wire::stopped;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::time::TimeSpec;
use nix::sys::timer::TimerSetTimeFlags;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags};
use nix::time::clock_gettime;
use nix::unistd::Pid;
use std::time::Duration;

/// Timers of one processor, where the limit of fds allows as many.
const TIMERS: u64 = 9000;

/// How often they expire, those of all attackers together: interrupts of 10 ms for each of them.
const PERIOD: Duration = Duration::from_millis(200);

/// Fds that are for other things.
const OTHER_FDS: u64 = 64;

/// Interrupts each processor until the end.
pub fn interrupts(attack: &mut Attack) {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).expect("the hard limit");
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("the processors of this process");
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let count = TIMERS.min((limit - OTHER_FDS) / cpus.len() as u64);
    attack.begin();
    attack.tally.tries += std::thread::scope(|scope| {
        let expire = |cpu| scope.spawn(move || expire_on(cpu, count));
        let threads: Vec<_> = cpus.into_iter().map(expire).collect();
        threads.into_iter().map(|thread| thread.join().expect("its timers")).sum::<u64>()
    });
}

/// A timer interrupts the processor on which it was set.
fn expire_on(cpu: usize, count: u64) -> u64 {
    let mut own = CpuSet::new();
    own.set(cpu).expect("it is allowed");
    sched_setaffinity(Pid::from_raw(0), &own).expect("it is allowed");
    let new = |_| TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).ok();
    let timers: Vec<TimerFd> = (0..count).map_while(new).collect();
    let mut expired = 0;
    while !stopped() {
        let now = Duration::from(clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("time"));
        let periods = now.as_millis() / PERIOD.as_millis() + 1;
        let at = PERIOD * u32::try_from(periods).expect("days since the start");
        let expiry = Expiration::OneShot(TimeSpec::from_duration(at));
        for timer in &timers {
            timer.set(expiry, TimerSetTimeFlags::TFD_TIMER_ABSTIME).expect("a timer");
        }
        std::thread::sleep(at.saturating_sub(now));
        expired += timers.len() as u64;
    }
    expired
}
