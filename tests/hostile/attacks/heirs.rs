//! Processes that inherit a connection. There must never be more than a few dozen, nor may any
//! outlive its time.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::support::peer::limit_time;
use crate::wire::{Conn, block, nap, stopped};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Heirs of one dead client.
const HEIRS: usize = 16;
/// How long they live on.
const HEIR_LIFE: Duration = Duration::from_millis(200);

/// A client connects, has answers under way, forks, and dies; its heirs go on talking.
pub fn fork_bomb(attack: &mut Attack) {
    let fd = memfd(c"heirs", 4096, all_seals());
    attack.begin();
    while !stopped() {
        // SAFETY: the child uses what is its own: the other thread only waits for a line and holds
        // no lock of ours.
        match unsafe { fork() }.expect("fork") {
            ForkResult::Parent { child } => {
                let _ = waitpid(child, None);
                attack.tally.tries += HEIRS as u64;
                nap();
            }
            ForkResult::Child => {
                testator(attack, fd.as_fd());
                std::process::exit(0);
            }
        }
    }
    std::thread::sleep(HEIR_LIFE);
}

fn testator(attack: &mut Attack, fd: std::os::fd::BorrowedFd<'_>) {
    limit_time(30);
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let shared = conn.share(&mut attack.inbox, fd, &[block(1)]);
    let Some(own) = shared.first().map(|it| it.handle) else { return };
    for _ in 0..HEIRS {
        // SAFETY: as above; here there is no other thread.
        if let Ok(ForkResult::Child) = unsafe { fork() } {
            limit_time(30);
            let until = Instant::now() + HEIR_LIFE;
            while Instant::now() < until {
                let bytes = conn.acquire(&[own.get()], 100);
                conn.push(&bytes, &[]);
                if attack.rng.below(4) == 0 {
                    conn.drain(&mut attack.inbox, |_| {});
                }
                nap();
            }
            std::process::exit(0);
        }
    }
}
