//! Groups of objects on whose memory the attacker has a file lease: who opens such a file waits
//! until the lease is given back, 45 s by default (/proc/sys/fs/lease-break-time). Must never be in
//! the way of the attacker's own end: leases end with the process.

use crate::attack::Attack;
use crate::support::peer::die_with_parent;
use crate::wire::{nap, stopped};
use fdbroker_client::{Client, Deadline, NewObject, ObjectOptions, Place};
use nix::fcntl::{OFlag, open};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::Mode;
use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Seals at a time: more than the broker looks at together.
const SEALS: usize = 8;

/// Until the seals lie with the broker.
const TIME_TO_SEAL: Duration = Duration::from_millis(100);

/// Seals groups whose memory has a write lease, each on a connection of its own.
pub fn seals(attack: &mut Attack) {
    die_with_parent();
    // Who breaks a lease has its holder told by this signal.
    // SAFETY: to ignore a signal runs no code.
    unsafe { signal(Signal::SIGIO, SigHandler::SigIgn) }.expect("signal");
    let tries = Arc::new(AtomicU64::new(0));
    // One group is made at a time: its memory is found by what is new.
    let making = Arc::new(Mutex::new(()));
    for number in 0..SEALS {
        let (socket, tries, making) = (attack.socket.clone(), tries.clone(), making.clone());
        std::thread::spawn(move || seal_again_and_again(&socket, number, &making, &tries));
    }
    while !stopped() && tries.load(Ordering::Relaxed) < SEALS as u64 {
        nap();
    }
    std::thread::sleep(TIME_TO_SEAL);
    attack.begin();
    while !stopped() {
        nap();
    }
    attack.tally.tries = tries.load(Ordering::Relaxed);
}

fn seal_again_and_again(socket: &Path, number: usize, making: &Mutex<()>, tries: &AtomicU64) {
    while !stopped() {
        let Ok(client) = Client::builder().socket(socket).name("lease").connect() else {
            nap();
            continue;
        };
        let name = format!("lease-{number}");
        while !stopped() {
            let deadline = Deadline::from_ms(60_000);
            let one_at_a_time = making.lock().expect("no panic");
            let before = memfds();
            let object = NewObject::new(&name, 4096);
            let options = ObjectOptions::default().replace(true);
            let group = client.objects().create(&[object], Place::Host, options, deadline);
            let leases: Vec<OwnedFd> = memfds().difference(&before).filter_map(lease).collect();
            drop(one_at_a_time);
            let Ok(group) = group else { break };
            // Not while the broker looks at it: then it is sealed without a lease.
            tries.fetch_add(u64::from(!leases.is_empty()), Ordering::Relaxed);
            // Whether it is refused, or sealed in the end, is not the question.
            let _ = group.seal(deadline);
        }
    }
}

/// A second open file of a memfd, with a write lease.
fn lease(path: &(RawFd, PathBuf)) -> Option<OwnedFd> {
    let file = open(
        &PathBuf::from(format!("/proc/self/fd/{}", path.0)),
        OFlag::O_RDWR | OFlag::O_CLOEXEC,
        Mode::empty(),
    );
    let file = file.ok()?;
    // SAFETY: takes numbers, touches no memory.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    (set == 0).then_some(file)
}

/// Numbers of this process's memfds, and what they are.
fn memfds() -> HashSet<(RawFd, PathBuf)> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc");
    let memfd = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let link = std::fs::read_link(entry.path()).ok()?;
        let is_memfd = link.to_str()?.starts_with("/memfd:");
        let number = entry.file_name().to_str()?.parse().ok()?;
        is_memfd.then_some((number, link))
    };
    entries.filter_map(memfd).collect()
}
