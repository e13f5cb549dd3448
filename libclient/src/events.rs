//! The library thread: sleeps on the event socket, calls the callbacks, reconnects, reads what nobody waits for.
//! Must never wait for a reply, hold a lock over a callback, or die of a callback's panic.

use crate::client::Shared;
use crate::common::OwnerKey;
use crate::connection::Connection;
use crate::error::Error;
use crate::handshake::greet;
use crate::limits::{EVENTS_PER_TURN, HANG_UP_PAUSE, RECONNECT_FIRST, RECONNECT_LAST, SEND_SLICE};
use crate::notice::{Notice, Recall};
use crate::poll::{came, poll_many, poll_one};
use crate::supply::Supplier;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{DrainedItem, GoingAway, LeaseItem, RecallItem, RevokedItem};
use fdbroker_protocol::{AllocationId, DecodeError, ErrorCode, Kind, Message};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

thread_local! {
    static IS_LIBRARY_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Longest sleep with nothing to wait for; every cause to wake comes with an event.
const IDLE: Duration = Duration::from_secs(3600);

/// Whether the caller is a library thread, that is inside a callback: it must not wait.
pub(crate) fn is_library_thread() -> bool {
    IS_LIBRARY_THREAD.get()
}

/// Starts the library thread, all signals blocked: handlers are for the application's threads.
pub(crate) fn start(shared: Arc<Shared>) -> Result<(), Error> {
    let all = SigSet::all();
    let before = all.thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let thread = std::thread::Builder::new().name("fdbroker".into());
    // Detached: in a forked child there would be nothing to join.
    let started = thread.spawn(move || EventLoop::new(shared).run());
    if let Ok(before) = before {
        // The mask came from the kernel a moment ago: setting it again cannot fail.
        let _ = before.thread_set_mask();
    }
    started.map(drop).map_err(|error| {
        Error::new(ErrorCode::Internal, format!("cannot start the library thread: {error}"))
    })
}

struct EventLoop {
    shared: Arc<Shared>,
    buf: Box<[u8]>,
    fds: ReceivedFds,
    supplier: Supplier,
}

impl EventLoop {
    fn new(shared: Arc<Shared>) -> Self {
        EventLoop {
            shared,
            buf: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(),
            fds: ReceivedFds::with_capacity(0),
            supplier: Supplier::default(),
        }
    }

    fn run(mut self) {
        IS_LIBRARY_THREAD.set(true);
        while !self.is_stopping() {
            let connection = self.shared.current();
            while connection.is_usable() {
                self.turn(&connection);
            }
            drop(connection);
            if !self.is_stopping() {
                self.see_to_loss();
            }
        }
        self.shared.current().kill("the client was dropped");
        self.shared.note_end();
    }

    fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
    }

    /// Sleeps until something comes, and deals with it.
    fn turn(&mut self, connection: &Connection) {
        let waits_for_room = connection.flush_queued();
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::POLLIN, connection.needs_a_reader(waits_for_room));
        wanted.set(PollFlags::POLLOUT, waits_for_room);
        let mut fds = [
            PollFd::new(self.shared.common.wake_fd(), PollFlags::POLLIN),
            PollFd::new(connection.events.as_fd(), PollFlags::POLLIN),
            PollFd::new(connection.socket.as_fd(), wanted),
        ];
        // The kernel calls a socket writable later than a send would succeed: look again.
        poll_many(&mut fds, if waits_for_room { SEND_SLICE } else { IDLE });
        let [wake, events, socket] = [came(&fds[0]), came(&fds[1]), came(&fds[2])];
        if !wake.is_empty() {
            self.shared.common.take_kicks();
        }
        if !events.is_empty() {
            self.read_events(connection);
        }
        let hung_up = socket.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        if hung_up || socket.contains(PollFlags::POLLIN) {
            let read = connection.read_if_nobody_does();
            if hung_up && !read {
                std::thread::sleep(HANG_UP_PAUSE);
            }
        }
    }

    fn read_events(&mut self, connection: &Connection) {
        for _ in 0..EVENTS_PER_TURN {
            let socket = connection.events.as_fd();
            let received = match fdbroker_scm::recv(socket, &mut self.buf, &mut self.fds) {
                Ok(received) => received,
                Err(RecvError::WouldBlock) => return,
                Err(error) => {
                    // The broker's last words may lie in the other socket.
                    if error == RecvError::Eof && !connection.read_if_nobody_does() {
                        std::thread::sleep(HANG_UP_PAUSE);
                    }
                    return connection.kill(&format!("event socket: {error}"));
                }
            };
            let handled = match received.payload_truncated || received.fds_truncated {
                true => Err("longer than any of the protocol, or with fds".to_owned()),
                false => {
                    let buf = std::mem::take(&mut self.buf);
                    let handled = self.handle(connection, &buf[..received.len]);
                    self.buf = buf;
                    handled.map_err(|error| error.to_string())
                }
            };
            if let Err(error) = handled {
                return connection.kill(&format!("event: {error}"));
            }
        }
    }

    fn handle(&mut self, connection: &Connection, bytes: &[u8]) -> Result<(), DecodeError> {
        let message = Message::parse(bytes)?;
        match message.kind {
            Kind::Recall => {
                let recalls = message.items::<RecallItem>()?.iter().map(Recall::from);
                let callback = self.shared.settings.on_recall.as_ref();
                self.supplier.answer(connection, recalls, callback);
            }
            Kind::Reclaim => {
                let leases = message.items::<LeaseItem>()?;
                let leases: Vec<u64> = leases.iter().map(|item| item.lease.get()).collect();
                let watchers = connection.common.watchers();
                watchers.iter().for_each(|watcher| watcher.reclaim(&leases));
                self.tell(Notice::Reclaim { leases });
            }
            Kind::Revoked => {
                let watchers = connection.common.watchers();
                for item in message.items::<RevokedItem>()? {
                    let id = allocation(item.slot.get(), item.generation.get());
                    let code = ErrorCode::from_number(item.code.get()).unwrap_or(ErrorCode::Stale);
                    watchers.iter().for_each(|watcher| watcher.revoked(id));
                    self.tell(Notice::Revoked { id, lease: item.lease.get(), code });
                }
            }
            Kind::Drained => {
                for item in message.items::<DrainedItem>()? {
                    self.drained(item);
                }
            }
            Kind::GoingAway => {
                let reason = message.body_as::<GoingAway>()?.reason.get();
                self.tell(Notice::GoingAway { reason });
            }
            kind => return Err(DecodeError::Unexpected(kind)),
        }
        Ok(())
    }

    fn drained(&self, item: &DrainedItem) {
        let (base, owner_allocation_id) = (item.base.get(), item.owner_allocation_id.get());
        if let Some(owner) = self.shared.common.owner_of(base) {
            owner.drained(OwnerKey { base, owner_allocation_id });
        }
        let id = allocation(item.slot.get(), item.generation.get());
        self.tell(Notice::Drained { id, owner_allocation_id, base });
    }

    /// The connection is lost: tells everyone, then looks for a broker until there is one.
    fn see_to_loss(&mut self) {
        for owner in self.shared.common.owners() {
            owner.disconnected();
        }
        for watcher in self.shared.common.watchers() {
            watcher.disconnected();
        }
        self.tell(Notice::Disconnected);
        let mut pause = RECONNECT_FIRST;
        while !self.is_stopping() {
            if self.shared.settings.reconnect && self.reconnect() {
                return;
            }
            let sleep = if self.shared.settings.reconnect { pause } else { IDLE };
            let kicked = poll_one(self.shared.common.wake_fd(), PollFlags::POLLIN, sleep);
            if !kicked.is_empty() {
                self.shared.common.take_kicks();
            }
            pause = (pause * 2).min(RECONNECT_LAST);
        }
    }

    fn reconnect(&mut self) -> bool {
        let settings = &self.shared.settings;
        let epoch = self.shared.current().epoch + 1;
        let is_stopping = || self.is_stopping();
        let connected = greet(&settings.socket, &settings.name, settings.own_fds, is_stopping)
            .and_then(|greeted| Connection::new(epoch, greeted, Arc::clone(&self.shared.common)));
        match connected {
            Ok(connection) => {
                let incarnation = connection.facts.incarnation;
                self.shared.replace(Arc::new(connection));
                self.tell(Notice::Reconnected { incarnation });
                true
            }
            Err(error) => {
                log::debug!("no broker yet: {error}");
                false
            }
        }
    }

    fn tell(&self, notice: Notice) {
        let Some(callback) = &self.shared.settings.on_notice else { return };
        if catch_unwind(AssertUnwindSafe(|| callback(notice))).is_err() {
            log::error!("the notice callback panicked; its notice is lost");
        }
    }
}

fn allocation(slot: u32, generation: u32) -> AllocationId {
    AllocationId { slot, generation }
}

impl From<&RecallItem> for Recall {
    fn from(item: &RecallItem) -> Self {
        Recall {
            id: allocation(item.slot.get(), item.generation.get()),
            owner_allocation_id: item.owner_allocation_id.get(),
            base: item.base.get(),
            size_bytes: item.size_bytes.get(),
            fd_offset: item.fd_offset.get(),
            device: item.device.get(),
        }
    }
}
