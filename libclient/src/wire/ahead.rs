//! A connection's end of the socket in which fds lie that were fetched ahead: they are not in this process's table until they are
//! taken. Must never take in an fd that was not asked for.

use crate::own_fds::OwnFd;
use fdbroker_protocol::limits::{AHEAD_FDS, DRIVER_DATA_BYTES};
use fdbroker_protocol::message::{GrantItem, Header};
use fdbroker_protocol::{AllocationId, Message};
use fdbroker_scm::{ReceivedFds, RecvError};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// A message ahead: one grant, and its driver data.
const MESSAGE_BYTES: usize = size_of::<Header>() + size_of::<GrantItem>() + DRIVER_DATA_BYTES;

/// What a connection has for fds that are fetched ahead.
#[derive(Debug, Default)]
pub(crate) enum AheadEnd {
    /// Nothing yet.
    #[default]
    Unasked,
    /// The socket, and room for an fd.
    Open(OwnFd, ReceivedFds),
    /// The broker has none for it; it is asked again then, or never.
    Without(Option<Instant>),
}

/// What a look for an fd has brought.
#[derive(Default)]
pub(crate) struct Taken {
    /// The message, if it is of the allocation, and its fd.
    pub bytes: Vec<u8>,
    pub fd: Option<OwnedFd>,
    /// Leases of other messages, whose fds are closed: to be given back.
    pub others: Vec<u64>,
}

impl AheadEnd {
    /// Looks for the fd of an allocation among those that were sent ahead. Those before it are dropped: they were sent in the
    /// order in which they were to be used. `is_current`: whether the allocation lives.
    pub fn take(&mut self, id: AllocationId, is_current: impl Fn() -> bool) -> Taken {
        let mut taken = Taken::default();
        for _ in 0..AHEAD_FDS {
            let AheadEnd::Open(socket, fds) = self else { break };
            let Some(socket) = socket.proved() else {
                // The program has closed it; the broker may give another.
                *self = AheadEnd::Unasked;
                break;
            };
            let mut bytes = [0; MESSAGE_BYTES];
            // First without the fd: it must not come into the table if it is another's.
            let Ok(length) = fdbroker_scm::peek(socket, &mut bytes) else { break };
            let is_it = lease_of(&bytes[..length]).is_some_and(|(of, _)| of == id);
            fds.set_capacity(usize::from(is_it && is_current()));
            let received = match fdbroker_scm::recv(socket, &mut bytes, fds) {
                Ok(received) => received,
                Err(RecvError::WouldBlock) => break,
                Err(_) => {
                    // The broker has closed it, and may give another.
                    *self = AheadEnd::Unasked;
                    break;
                }
            };
            let fd = fds.drain().next();
            let bytes = &bytes[..received.len];
            // The broker may have taken back the one that was looked at.
            match lease_of(bytes) {
                Some((of, _)) if of == id && is_current() => {
                    (taken.bytes, taken.fd) = (bytes.to_vec(), fd);
                    break;
                }
                Some((_, lease)) => taken.others.push(lease),
                None => {}
            }
        }
        taken
    }
}

/// The allocation and the lease of a message ahead.
fn lease_of(bytes: &[u8]) -> Option<(AllocationId, u64)> {
    let message = Message::parse(bytes).ok()?;
    let (items, _) = message.grants().ok()?;
    let item = items.first()?;
    let id = AllocationId { slot: item.slot.get(), generation: item.generation.get() };
    Some((id, item.lease.get()))
}
