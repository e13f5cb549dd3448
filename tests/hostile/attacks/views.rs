//! A user that looks without a pause, asks for what it may not have, and sends what nobody sends
//! there. Must never wait for an answer.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::wire::{connect_now, nap, stopped};
use fdbroker_protocol::admin::{Act, AllocationRecord, LeaseRecord, Page, Query, act_flags};
use fdbroker_protocol::{Kind, Message, Writer};
use std::os::fd::{AsFd, OwnedFd};

/// Three times as many as a user may have.
const CONNECTIONS: usize = 12;

const QUERIES: [Kind; 9] = [
    Kind::AdminStatus,
    Kind::AdminAllocations,
    Kind::AdminLeases,
    Kind::AdminClients,
    Kind::AdminJobs,
    Kind::AdminDomains,
    Kind::AdminObjects,
    Kind::AdminTombstones,
    Kind::AdminMetrics,
];

const ACTS: [Kind; 3] = [Kind::AdminEvict, Kind::AdminRevoke, Kind::AdminDrain];

/// Queries from any cursor, watches, acts and fds. Wrong: a record of another user, or an act that
/// is not refused.
pub fn looks(attack: &mut Attack) {
    let path = attack.socket.with_file_name("view.sock");
    let uid = nix::unistd::getuid().as_raw();
    let fd = memfd(c"view", 1 << 20, all_seals());
    let mut places: Vec<Option<OwnedFd>> = (0..CONNECTIONS).map(|_| None).collect();
    let mut writer = Writer::new();
    attack.begin();
    while !stopped() {
        for place in &mut places {
            let Some(socket) = place else {
                *place = connect_now(&path);
                nap();
                continue;
            };
            let (choice, cursor) = (attack.rng.below(64), attack.rng.below(1 << 13));
            let bytes = request(&mut writer, choice, u32::try_from(cursor).unwrap_or(0));
            let fds = if choice == 0 { vec![fd.as_fd()] } else { Vec::new() };
            attack.tally.tries += 1;
            let sent = fdbroker_scm::send(socket.as_fd(), bytes, &fds);
            let mut is_alive = !matches!(sent, Err(fdbroker_scm::SendError::PeerGone));
            loop {
                match attack.inbox.read(socket.as_fd()) {
                    Ok(Some((message, _))) => {
                        attack.tally.wrong += u64::from(is_wrong(&message, uid));
                    }
                    Ok(None) => break,
                    Err(()) => {
                        is_alive = false;
                        break;
                    }
                }
            }
            if !is_alive {
                *place = None;
            }
        }
    }
}

fn request(writer: &mut Writer, choice: usize, cursor: u32) -> &[u8] {
    let act = |flags| Act {
        cursor: u32::MAX.into(),
        filter: 0.into(),
        value: 0.into(),
        flags,
        reserved: 0.into(),
    };
    match choice {
        0 => {
            let query =
                Query { cursor: 0.into(), filter: 0.into(), value: 0.into(), reserved: 0.into() };
            writer.start(Kind::AdminStatus, 1).push(&query);
            writer.finish(0, 1)
        }
        1 => {
            writer.start(Kind::AdminWatch, 1).push(&act(act_flags::SINCE.into()));
            writer.finish(0, 0)
        }
        2..5 => {
            writer.start(ACTS[choice - 2], 1).push(&act(0.into()));
            writer.finish(0, 0)
        }
        _ => {
            let (cursor, filter) = (cursor.into(), 0.into());
            let query = Query { cursor, filter, value: 0.into(), reserved: 0.into() };
            writer.start(QUERIES[choice % QUERIES.len()], 1).push(&query);
            writer.finish(0, 0)
        }
    }
}

fn is_wrong(message: &Message<'_>, uid: u32) -> bool {
    match message.kind {
        Kind::AdminAllocationsReply => message
            .head_and_items::<Page, AllocationRecord>()
            .is_ok_and(|(_, items)| items.iter().any(|item| item.owner_uid.get() != uid)),
        Kind::AdminLeasesReply => message
            .head_and_items::<Page, LeaseRecord>()
            .is_ok_and(|(_, items)| items.iter().any(|item| item.uid.get() != uid)),
        Kind::AdminEvictReply | Kind::AdminRevokeReply | Kind::AdminDrainReply => true,
        Kind::AdminMetricsReply => true,
        _ => false,
    }
}
