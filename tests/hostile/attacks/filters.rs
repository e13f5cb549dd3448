//! A user with a socket filter on its own ends: the broker runs it with each message that it sends
//! there. Must never need a right that other users lack.

use crate::attack::Attack;
use crate::wire::{Conn, Push, nap, stopped};
use fdbroker_protocol::MAX_BATCH;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

/// Instructions of the filter: the kernel takes 4,096.
const INSTRUCTIONS: usize = 4000;

/// Answers that all connections together may get at first, and in a second: each ran the filter in
/// the broker, and the user paid for it. Ten times what comes before the first debts (80) and then
/// (15), as a faster machine runs more filters for the same debt. Without filters some 5,000 come
/// in a short round.
const MOST_SERVED: u64 = 800;
const MOST_PER_SECOND: u64 = 150;

/// Where a load has the kernel find the offset of the payload, the dearest one (SKF_AD_OFF +
/// SKF_AD_PAY_OFFSET, linux/filter.h).
const PAYLOAD_OFFSET: u32 = 0xffff_f000 + 52;

/// Asks without a pause, on several connections with a filter. Wrong: more than a few answers come.
pub fn attached(attack: &mut Attack) {
    attack.begin();
    let mut conns = Vec::new();
    // The user may owe from the round before.
    while conns.len() < 4 {
        let Some(conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        conns.push(conn);
    }
    for conn in &conns {
        attach(conn.socket.as_fd());
        conn.events.as_ref().map(AsFd::as_fd).into_iter().for_each(attach);
    }
    let (mut served, began) = (0, Instant::now());
    while !stopped() {
        for conn in &mut conns {
            let wanted = conn.register(&[], MAX_BATCH as u32);
            match conn.push(&wanted, &[]) {
                Push::Sent => attack.tally.tries += 1,
                Push::Full | Push::Gone => nap(),
            }
            conn.drain(&mut attack.inbox, |_| served += 1);
        }
    }
    attack.tally.wrong +=
        u64::from(served > MOST_SERVED + MOST_PER_SECOND * began.elapsed().as_secs());
}

fn attach(socket: BorrowedFd<'_>) {
    let load = libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: PAYLOAD_OFFSET,
    };
    let accept =
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: u32::MAX };
    let mut program = vec![load; INSTRUCTIONS - 1];
    program.push(accept);
    let filter = libc::sock_fprog { len: INSTRUCTIONS as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads `filter` and as many instructions as it says, which live until the
    // call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0, "attach a filter: {}", std::io::Error::last_os_error());
}
