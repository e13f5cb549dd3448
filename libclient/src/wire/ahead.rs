//! A connection's end of the socket in which fds lie that were fetched ahead: they are not in this
//! process's table until they are taken. They are leases all the same, which are given back when
//! they are not taken in time. Must never take in an fd that was not asked for.

use crate::limits::{AHEAD_AWAITED, AHEAD_LAST_PAUSE, AHEAD_TIME};
use crate::own_fds::OwnFd;
use fdbroker_protocol::limits::{AHEAD_FDS, DRIVER_DATA_BYTES};
use fdbroker_protocol::message::{GrantItem, Header};
use fdbroker_protocol::{AllocationId, Message};
use fdbroker_scm::{ReceivedFds, RecvError};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A message ahead: one grant, and its driver data.
const MESSAGE_BYTES: usize = size_of::<Header>() + size_of::<GrantItem>() + DRIVER_DATA_BYTES;

/// What a connection has for fds that are fetched ahead.
#[derive(Debug, Default)]
pub(crate) enum AheadEnd {
    /// Nothing yet.
    #[default]
    Unasked,
    /// The socket, and what lies in it.
    Open(AheadSocket),
    /// The broker has none for it; it is asked again then, or never.
    Without(Option<Instant>),
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct AheadSocket {
    socket: OwnFd,
    /// Room for an fd.
    fds: ReceivedFds,
    /// Asked for and not come, in the order in which they come. The broker leaves out what it has
    /// no room for, so some may never come.
    awaited: VecDeque<AllocationId>,
    /// When the last ones were asked for.
    asked: Option<Instant>,
    /// When the thread that serves looks for what was not taken. `None`: it has to be called.
    due: Option<Instant>,
    /// How long it waits then.
    pause: Duration,
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

impl AheadSocket {
    pub fn new(socket: OwnFd) -> Self {
        let fds = ReceivedFds::with_capacity(1);
        let (awaited, asked, due) = (VecDeque::new(), None, None);
        AheadSocket { socket, fds, awaited, asked, due, pause: AHEAD_TIME }
    }

    /// The next message, with its fd if it is the wanted one's. `Ok(None)`: there is none; `Err`:
    /// the socket is at its end, or not ours.
    fn next(&mut self, wanted: Option<AllocationId>) -> Result<Option<Come>, ()> {
        let socket = self.socket.proved().ok_or(())?;
        let mut bytes = [0; MESSAGE_BYTES];
        let takes_fd = match wanted {
            None => false,
            // What was asked for next comes next, unless the broker leaves it out.
            Some(_) if wanted.as_ref() == self.awaited.front() => true,
            // First without the fd: it must not come into the table if it is another's.
            Some(_) => {
                let Ok(length) = fdbroker_scm::peek(socket, &mut bytes) else { return Ok(None) };
                id_of(&bytes[..length]) == wanted
            }
        };
        self.fds.set_capacity(usize::from(takes_fd));
        let received = match fdbroker_scm::recv(socket, &mut bytes, &mut self.fds) {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => return Ok(None),
            Err(_) => return Err(()),
        };
        let (bytes, fd) = (bytes[..received.len].to_vec(), self.fds.drain().next());
        let id = id_of(&bytes);
        if let Some(place) = self.awaited.iter().position(|it| Some(*it) == id) {
            // Those before it were left out.
            self.awaited.drain(..=place);
        }
        let is_wanted = id.is_some() && id == wanted;
        Ok(Some(Come { bytes, fd, is_wanted }))
    }
}

struct Come {
    bytes: Vec<u8>,
    /// Closed with this if it is another's.
    fd: Option<OwnedFd>,
    is_wanted: bool,
}

impl AheadEnd {
    /// Looks for the fd of an allocation among those that were sent ahead. Those before it are
    /// dropped: they were sent in the order in which they were to be used. `is_current`: whether
    /// the allocation lives.
    pub fn take(&mut self, id: AllocationId, is_current: impl Fn() -> bool) -> Taken {
        self.take_one(Some(id).filter(|_| is_current()))
    }

    /// `None`: drops all that lies there.
    fn take_one(&mut self, id: Option<AllocationId>) -> Taken {
        let mut taken = Taken::default();
        for _ in 0..AHEAD_FDS {
            let AheadEnd::Open(socket) = self else { break };
            match socket.next(id) {
                Ok(Some(Come { bytes, fd, is_wanted: true })) => {
                    (taken.bytes, taken.fd) = (bytes, fd);
                    break;
                }
                Ok(Some(other)) => {
                    taken.others.extend(item_of(&other.bytes).map(|it| it.lease.get()))
                }
                Ok(None) => break,
                // The broker, or the program, has closed it; there may be another.
                Err(()) => *self = AheadEnd::Unasked,
            }
        }
        taken
    }

    /// Drops all that lies there: its leases, to be given back.
    pub fn drop_all(&mut self) -> Vec<u64> {
        self.take_one(None).others
    }

    /// These were asked for. Whether the thread that serves has to be called.
    pub fn note_asked(&mut self, ids: impl Iterator<Item = AllocationId>, now: Instant) -> bool {
        let AheadEnd::Open(socket) = self else { return false };
        socket.awaited.extend(ids);
        // What has not come of those before never will.
        socket.awaited.drain(..socket.awaited.len().saturating_sub(AHEAD_AWAITED));
        (socket.asked, socket.pause) = (Some(now), AHEAD_TIME);
        let is_called = socket.due.is_some();
        socket.due.get_or_insert(now + AHEAD_TIME);
        !is_called
    }

    /// The thread that serves looks: the leases of what was not taken in time, to be given back,
    /// and when it looks again.
    pub fn look(&mut self, now: Instant) -> (Vec<u64>, Option<Instant>) {
        let AheadEnd::Open(socket) = self else { return (Vec::new(), None) };
        let is_due = socket.due.is_some_and(|due| due <= now);
        let in_time = socket.asked.map(|asked| asked + AHEAD_TIME).filter(|until| *until > now);
        if !is_due || in_time.is_some() {
            socket.due = if is_due { in_time } else { socket.due };
            return (Vec::new(), socket.due);
        }
        let leases = self.drop_all();
        let AheadEnd::Open(socket) = self else { return (leases, None) };
        socket.pause *= 2;
        let is_over = socket.awaited.is_empty() || socket.pause > AHEAD_LAST_PAUSE;
        socket.due = (!is_over).then(|| now + socket.pause);
        (leases, socket.due)
    }
}

/// The grant of a message ahead.
fn item_of(bytes: &[u8]) -> Option<GrantItem> {
    let (items, _) = Message::parse(bytes).ok()?.grants().ok()?;
    items.first().copied()
}

fn id_of(bytes: &[u8]) -> Option<AllocationId> {
    let item = item_of(bytes)?;
    Some(AllocationId { slot: item.slot.get(), generation: item.generation.get() })
}
