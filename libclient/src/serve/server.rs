//! Serving: what the broker says on the event socket, what nobody else reads or sends, a lost
//! connection and the next. Must never wait, hold a lock over a callback, or die of a callback's
//! panic. `thread` or `dispatch` gives it its turns.

use super::resume::{Outcome, Resume};
use super::session::Session;
use super::supply::Supplier;
use crate::books::holdings::{LostRegistration, Named};
use crate::books::one_way::OwnerKey;
use crate::books::page::Standing;
use crate::books::roles::Served;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::{
    CONNECT_TIMEOUT, EVENTS_PER_TURN, HANG_UP_PAUSE, IDLE, LIVENESS_CONFIRM, LIVENESS_LOOK,
    RECONNECT_FIRST, RECONNECT_LAST, SEND_SLICE,
};
use crate::notice::{Notice, Recall};
use crate::own_fds::CLOSED_HERE;
use crate::sync::Serving;
use crate::wire::connection::{Connection, ENDED_HERE, UnseenPage};
use crate::wire::handshake::{Caller, Greeted, Greeting, place_of};
use crate::wire::poll::{came, poll_many};
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{
    DrainedItem, GoingAway, LeaseItem, RecallItem, RefusedItem, RevokedItem,
};
use fdbroker_protocol::object::{ObjectEvent, ObjectEventItem};
use fdbroker_protocol::{AllocationId, DecodeError, ErrorCode, Facts, Kind, Message};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::poll::{PollFd, PollFlags};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What serving needs to know from turn to turn. One per client, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Server {
    buf: Box<[u8]>,
    fds: ReceivedFds,
    supplier: Supplier,
    link: Link,
    /// What is to be named to the broker: all at first, stragglers later.
    resume: Resume,
    /// Of the last connection made.
    epoch: u64,
    /// Since when the broker's last words wait for another thread to read them.
    hung_up_since: Option<Instant>,
    /// Since when the page says that the broker was killed.
    killed_since: Option<Instant>,
    /// Asks who serves in the place of a broker that has left.
    probe: Option<Greeting>,
}

/// How it stands with the broker.
#[derive(Debug)]
enum Link {
    /// The connection of the moment is served, or lost and nobody has seen to it.
    Up,
    /// All know of the loss. When to look for a broker (`None`: never), and the pause after that.
    Down { next: Option<Instant>, pause: Duration },
    /// One has been found and has not answered hello yet.
    Greeting { greeting: Box<Greeting>, pause: Duration },
    /// Connected; what this client has is being named. The application does not have this
    /// connection yet.
    Resuming { connection: Arc<Connection>, page: UnseenPage, pause: Duration },
}

/// What to wait for before the next turn, besides a kick.
#[derive(Debug)]
pub(crate) struct Interest {
    pub events: PollFlags,
    pub socket: PollFlags,
    /// Something is to be tried again by then, without an event.
    pub within: Option<Duration>,
}

/// What came of waiting.
#[derive(Debug)]
pub(crate) struct Came {
    events: PollFlags,
    socket: PollFlags,
}

impl Came {
    pub const NOTHING: Came = Came { events: PollFlags::empty(), socket: PollFlags::empty() };
}

impl Server {
    pub fn new() -> Self {
        Server {
            buf: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(),
            fds: ReceivedFds::with_capacity(0),
            supplier: Supplier::default(),
            link: Link::Up,
            resume: Resume::new(),
            epoch: 1,
            hung_up_since: None,
            killed_since: None,
            probe: None,
        }
    }

    /// The connection to serve: the application's, or the one that is to be its next.
    pub fn connection(&self, session: &Session) -> Arc<Connection> {
        match &self.link {
            Link::Resuming { connection, .. } => Arc::clone(connection),
            _ => session.current(),
        }
    }

    /// Sends what can be sent; then says what to wait for.
    pub fn prepare(&mut self, session: &Session, connection: &Connection) -> Interest {
        let _serving = Serving::begin();
        let nothing = PollFlags::empty();
        if !connection.is_usable() {
            let within = match &self.link {
                Link::Up | Link::Resuming { .. } => Some(Duration::ZERO),
                Link::Down { next, .. } => next.as_ref().map(left),
                Link::Greeting { greeting, .. } if greeting.is_closed_here() => {
                    Some(Duration::ZERO)
                }
                Link::Greeting { greeting, .. } => Some(left(&greeting.look_at())),
            };
            return Interest { events: nothing, socket: nothing, within };
        }
        self.supplier.advance(connection, session.settings.on_recall.as_ref());
        let waits_for_room = connection.flush_due();
        let confirmed = self.killed_since.map(|since| left(&(since + LIVENESS_CONFIRM)));
        let probed = self.probe.as_ref().map(|_| LIVENESS_CONFIRM);
        let ahead = connection.look_ahead(Instant::now()).map(|due| left(&due));
        let within = [self.supplier.within(), self.resume.within(), confirmed, probed, ahead];
        let within = within.into_iter().flatten().min();
        let mut interest = Interest { events: nothing, socket: nothing, within };
        // One message of recalls at a time: the rest waits in the socket, where it is bounded.
        interest.events.set(PollFlags::POLLIN, self.supplier.is_idle());
        interest.events.set(PollFlags::POLLOUT, self.supplier.waits_for_room());
        let stuck = waits_for_room || self.supplier.waits_for_the_broker();
        let is_resuming = matches!(self.link, Link::Resuming { .. });
        let needs_a_reader = is_resuming || connection.needs_a_reader(stuck);
        interest.socket.set(PollFlags::POLLIN, needs_a_reader);
        interest.socket.set(PollFlags::POLLOUT, waits_for_room);
        if waits_for_room {
            // The kernel calls a socket writable later than a send would succeed: look again.
            interest.within = Some(interest.within.map_or(SEND_SLICE, |t| t.min(SEND_SLICE)));
        }
        interest
    }

    /// What is there of what is of interest.
    pub fn look(&self, connection: &Connection, interest: &Interest) -> Came {
        if !connection.is_usable() {
            return Came::NOTHING;
        }
        let mut fds = [
            PollFd::new(connection.events.polled(), interest.events),
            PollFd::new(connection.socket.polled(), interest.socket),
        ];
        poll_many(&mut fds, Duration::ZERO);
        Came { events: came(&fds[0]), socket: came(&fds[1]) }
    }

    /// Deals with what came.
    pub fn serve(&mut self, session: &Session, connection: &Connection, came: &Came) -> Served {
        let _serving = Serving::begin();
        let was_kicked = session.common.wake.take_kicks();
        if !was_kicked && (came.events | came.socket).is_empty() {
            // Time is over; or what was waited for is not ours any more, and always says that it is
            // ready.
            session.common.wake.is_lost();
            connection.look_at_fds();
        }
        if !connection.is_usable() {
            let count = self.look_for_a_broker(session, connection);
            return Served { count, later: false };
        }
        if !(came.events | came.socket).is_empty() {
            // Caches may close memory now, which can take a driver its time.
            connection.look_away();
        }
        // Answers before events: the broker has sent them in this order.
        let named = self.name_again(session, connection) + self.tell_of_late_drains(session);
        let mut served = Served::default();
        let ended = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let may_read = self.supplier.is_idle() && came.events.contains(PollFlags::POLLIN);
        if may_read || came.events.intersects(ended) {
            served = self.read_events(session, connection);
        }
        let hung_up = came.socket.intersects(ended);
        if hung_up || came.socket.contains(PollFlags::POLLIN) {
            match connection.read_if_nobody_does() {
                Some(read) => served.count += read,
                // The thread that reads is about to find the end.
                None => served.later |= hung_up,
            }
        }
        served.count += named + self.name_again(session, connection);
        served.count += self.tell_of_late_drains(session);
        self.look_at_page(session, connection);
        if !connection.is_usable() {
            served.count += self.look_for_a_broker(session, connection);
        }
        served
    }

    /// How long the library thread may sleep while nothing is due: what is here, or awaited, is to
    /// outlast a broker that is killed.
    pub fn idle_time(
        &self,
        session: &Session,
        connection: &Connection,
        interest: &Interest,
    ) -> Duration {
        let is_awaited = interest.socket.contains(PollFlags::POLLIN);
        let must_look = is_awaited || !session.common.holdings.may_sleep();
        if must_look && connection.is_usable() { LIVENESS_LOOK } else { IDLE }
    }

    /// A killed broker's sockets stay open while one of its threads hangs in the kernel. Its page
    /// tells.
    fn look_at_page(&mut self, session: &Session, connection: &Connection) {
        let standing = match &self.link {
            Link::Resuming { page, .. } => page.standing(),
            _ => session.common.page.standing(connection.epoch),
        };
        let since = self.killed_since.take().unwrap_or_else(Instant::now);
        match standing {
            Standing::Serves => self.probe = None,
            Standing::HasLeft if self.another_serves(session, connection) => {
                connection.kill("another broker serves in the place of its own");
            }
            Standing::HasLeft => {}
            Standing::WasKilled if since.elapsed() >= LIVENESS_CONFIRM => {
                connection.kill("the broker was killed");
            }
            Standing::WasKilled => self.killed_since = Some(since),
        }
    }

    /// Whether a broker that is not the successor of this connection's answers at its path. Asks
    /// only when the path leads to another socket, over a connection that says nothing of this
    /// client.
    fn another_serves(&mut self, session: &Session, connection: &Connection) -> bool {
        let caller = &session.settings.caller;
        if self.probe.is_none() && place_of(&caller.socket) != connection.place {
            // Its own key is odd.
            let asks =
                Caller { own_fds: 0, max_held_fds: 0, key: !caller.key | 2, ..caller.clone() };
            let until = Deadline::after(CONNECT_TIMEOUT);
            self.probe = Greeting::begin(&asks, until).ok().flatten();
        }
        let Some(answer) = self.probe.as_mut().and_then(Greeting::look) else { return false };
        self.probe = None;
        answer.is_ok_and(|it| it.reply.incarnation.get() != connection.facts.incarnation)
    }

    /// Names what is to be named, as far as it goes now; when nothing is left, the application gets
    /// the connection. How many things came of it.
    fn name_again(&mut self, session: &Session, connection: &Connection) -> usize {
        let outcome = self.resume.advance(connection);
        let mut count = usize::from(outcome.is_some());
        self.tell_of(session, outcome.unwrap_or_default());
        let is_done = !self.resume.is_under_way() && !session.common.holdings.has_waiting();
        if is_done && connection.is_usable() && matches!(self.link, Link::Resuming { .. }) {
            self.resumed(session);
            count += 1;
        }
        count
    }

    /// What was drained when its unregister was answered, after its caller had left.
    fn tell_of_late_drains(&self, session: &Session) -> usize {
        let all = session.common.take_drained();
        for (id, OwnerKey { base, owner_allocation_id }) in &all {
            let (base, owner_allocation_id) = (*base, *owner_allocation_id);
            tell(session, Notice::Drained { id: *id, owner_allocation_id, base });
        }
        all.len()
    }

    fn tell_of(&self, session: &Session, outcome: Outcome) {
        // In the order in which they were named.
        let Named { lost: all_lost, adopted, drained, .. } = outcome.named;
        all_lost.iter().for_each(|one| lost(session, one));
        let owner_of = |key: &OwnerKey| session.common.owner_of(key.base);
        for key in adopted {
            owner_of(&key).into_iter().for_each(|owner| owner.adopted(key));
        }
        for key in drained {
            owner_of(&key).into_iter().for_each(|owner| owner.drained(key));
        }
        let watchers = session.common.watchers.all();
        for ended in &outcome.ended {
            watchers.iter().for_each(|watcher| watcher.revoked(ended.id));
        }
        for refused in outcome.refused.into_iter().chain(outcome.ended) {
            let (id, lease, code) = (refused.id, refused.number, refused.code);
            tell(session, Notice::Revoked { id, lease, code });
        }
    }

    /// All is named and answered: every lease is known to the broker or refused. So the caches put
    /// away what was refused before the page is shown, by which the rest is good again.
    fn resumed(&mut self, session: &Session) {
        let link = std::mem::replace(&mut self.link, Link::Up);
        let Link::Resuming { connection, page, pause } = link else { return };
        session.common.watchers.all().iter().for_each(|watcher| watcher.declared());
        if let Err(error) = connection.show_page(&page) {
            connection.kill(&error.to_string());
            return self.try_again_after(pause, &error.to_string());
        }
        let sums = self.resume.sums;
        log::info!(
            "connection {}: named again {} registrations ({} lost) and {} leases ({} refused)",
            connection.epoch,
            sums.registrations,
            sums.lost,
            sums.leases,
            sums.refused
        );
        let incarnation = connection.facts.incarnation;
        session.replace(connection);
        tell(session, Notice::Reconnected { incarnation });
    }

    fn read_events(&mut self, session: &Session, connection: &Connection) -> Served {
        let mut served = Served::default();
        for _ in 0..EVENTS_PER_TURN {
            let Some(socket) = connection.events.proved() else {
                connection.kill(CLOSED_HERE);
                return served;
            };
            let received = match fdbroker_scm::recv(socket, &mut self.buf, &mut self.fds) {
                Ok(received) => received,
                Err(RecvError::WouldBlock) => return served,
                Err(RecvError::Eof) if self.must_leave_last_words(connection) => {
                    served.later = true;
                    return served;
                }
                Err(error) => {
                    connection.kill(&format!("event socket: {error}"));
                    return served;
                }
            };
            let handled = if received.payload_truncated || received.fds_truncated {
                Err("longer than any of the protocol, or with fds".to_owned())
            } else {
                let buf = std::mem::take(&mut self.buf);
                let handled = self.handle(session, connection, &buf[..received.len]);
                self.buf = buf;
                handled.map_err(|error| error.to_string())
            };
            if let Err(error) = handled {
                connection.kill(&format!("event: {error}"));
                return served;
            }
            served.count += 1;
            if !self.supplier.is_idle() {
                return served;
            }
        }
        served
    }

    /// The event socket has ended. The broker's last words may lie in the other one: they are read
    /// first, by this thread or, within a moment, by the one that reads there.
    fn must_leave_last_words(&mut self, connection: &Connection) -> bool {
        if connection.read_if_nobody_does().is_some() {
            return false;
        }
        self.hung_up_since.get_or_insert_with(Instant::now).elapsed() < HANG_UP_PAUSE
    }

    fn handle(
        &mut self,
        session: &Session,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<(), DecodeError> {
        let message = Message::parse(bytes)?;
        match message.kind {
            Kind::Recall => {
                let recalls = message.items::<RecallItem>()?.iter().map(Recall::from);
                self.supplier.add(recalls);
                self.supplier.advance(connection, session.settings.on_recall.as_ref());
            }
            Kind::Reclaim => {
                let leases = message.items::<LeaseItem>()?;
                let leases: Vec<u64> = leases.iter().map(|item| item.lease.get()).collect();
                connection.press();
                connection.give_ahead_back();
                let watchers = connection.common.watchers.all();
                watchers.iter().for_each(|watcher| watcher.reclaim(&leases));
                tell(session, Notice::Reclaim { leases });
            }
            Kind::Revoked => {
                if self.resume.is_under_way() {
                    // It may be of a lease whose number is in an answer not read yet.
                    let outcome = self.resume.advance(connection);
                    self.tell_of(session, outcome.unwrap_or_default());
                }
                // What ends may lie there, and pins its memory. Nobody has those leases yet.
                let unused = connection.give_ahead_back();
                let watchers = connection.common.watchers.all();
                let items = message.items::<RevokedItem>()?.iter();
                for item in items.filter(|item| !unused.contains(&item.lease.get())) {
                    if self.resume.told.remove(&item.lease.get()) {
                        continue;
                    }
                    let id = allocation(item.slot.get(), item.generation.get());
                    let code = ErrorCode::from_number(item.code.get()).unwrap_or(ErrorCode::Stale);
                    watchers.iter().for_each(|watcher| watcher.revoked(id));
                    tell(session, Notice::Revoked { id, lease: item.lease.get(), code });
                }
            }
            Kind::Drained => {
                for item in message.items::<DrainedItem>()? {
                    drained(session, item);
                }
            }
            Kind::GoingAway => {
                let reason = message.body_as::<GoingAway>()?.reason.get();
                tell(session, Notice::GoingAway { reason });
            }
            Kind::SupplyRefused => {
                for item in message.items::<RefusedItem>()? {
                    let id = allocation(item.slot.get(), item.generation.get());
                    let error = Error::from_status(item.status.get(), format!("supply {id}"));
                    log::error!("{error}");
                    tell(session, Notice::SupplyRefused { id, error });
                }
            }
            Kind::ObjectEvents => tell_watches(connection, &message)?,
            kind => return Err(DecodeError::Unexpected(kind)),
        }
        Ok(())
    }

    /// Without a connection: tells everyone once, then goes towards another as far as it can. How
    /// many things came of it.
    fn look_for_a_broker(&mut self, session: &Session, lost: &Connection) -> usize {
        let mut count = 0;
        let settings = &session.settings;
        if let Link::Resuming { pause, .. } = self.link {
            self.supplier.give_up(lost);
            self.try_again_after(pause, "it was lost again");
        }
        if let Link::Up = self.link {
            self.see_to_loss(session, lost);
            let next = settings.reconnect.then(Instant::now);
            self.link = Link::Down { next, pause: RECONNECT_FIRST };
            count += 1;
        }
        if let Link::Down { next: Some(next), pause } = self.link
            && Instant::now() >= next
        {
            match Greeting::begin(&settings.caller, Deadline::after(CONNECT_TIMEOUT)) {
                Ok(Some(greeting)) => {
                    self.link = Link::Greeting { greeting: Box::new(greeting), pause };
                }
                Ok(None) => self.try_again_after(pause, "many others are connecting"),
                Err(error) => {
                    lost.note_try(&error);
                    self.try_again_after(pause, &error.to_string());
                }
            }
        }
        if let Link::Greeting { greeting, pause } = &mut self.link {
            let pause = *pause;
            match greeting.look() {
                None => {}
                Some(Ok(greeted)) => count += self.begin(session, greeted, pause),
                Some(Err(error)) => {
                    lost.note_try(&error);
                    self.try_again_after(pause, &error.to_string());
                }
            }
        }
        count
    }

    /// A broker has answered: from now on its connection is served, and what this client has is
    /// named to it.
    fn begin(&mut self, session: &Session, greeted: Greeted, pause: Duration) -> usize {
        self.epoch += 1;
        let made = Connection::new(self.epoch, greeted, Arc::clone(&session.common));
        let (connection, page) = match made {
            Ok((connection, page)) => (Arc::new(connection), page),
            Err(error) => {
                self.try_again_after(pause, &error.to_string());
                return 0;
            }
        };
        let ended = connection.begin_books();
        self.resume = Resume::after_loss();
        self.link = Link::Resuming { connection: Arc::clone(&connection), page, pause };
        if session.is_stopping() {
            // The client was dropped meanwhile, and found no next one to end.
            connection.kill(ENDED_HERE);
        }
        ended.iter().for_each(|one| lost(session, one));
        1 + self.name_again(session, &connection)
    }

    fn see_to_loss(&mut self, session: &Session, lost: &Connection) {
        self.supplier.give_up(lost);
        self.hung_up_since = None;
        for owner in session.common.owners.all() {
            owner.disconnected();
        }
        for watch in session.common.watches.all() {
            watch.disconnected();
        }
        tell(session, Notice::Disconnected);
    }

    fn try_again_after(&mut self, pause: Duration, why: &str) {
        log::debug!("no broker yet: {why}");
        let next = Some(Instant::now() + pause);
        self.link = Link::Down { next, pause: (pause * 2).min(RECONNECT_LAST) };
    }

    /// The socket on which hello's answer is awaited.
    pub fn hello_socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Greeting { greeting, .. } => Some(greeting.socket()),
            _ => None,
        }
    }
}

pub(super) fn left(until: &Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// A registration has ended with its broker.
fn lost(session: &Session, registration: &LostRegistration) {
    session.common.registrants.all().iter().for_each(|one| one.lost(registration));
    let LostRegistration { id, owner_allocation_id, base, code, .. } = *registration;
    tell(session, Notice::RegistrationLost { id, owner_allocation_id, base, code });
}

fn drained(session: &Session, item: &DrainedItem) {
    let (base, owner_allocation_id) = (item.base.get(), item.owner_allocation_id.get());
    if let Some(owner) = session.common.owner_of(base) {
        owner.drained(OwnerKey { base, owner_allocation_id });
    }
    let id = allocation(item.slot.get(), item.generation.get());
    session.common.holdings.forget(id);
    tell(session, Notice::Drained { id, owner_allocation_id, base });
}

/// Each event goes to the watches for its name; that some were lost, to all.
fn tell_watches(connection: &Connection, message: &Message<'_>) -> Result<(), DecodeError> {
    let watches = connection.common.watches.all();
    for (item, name, _) in message.named::<ObjectEventItem>()? {
        let event = ObjectEvent::from_number(item.event);
        let (Some(event), Ok(name)) = (event, std::str::from_utf8(name)) else { continue };
        let is_for_all = event == ObjectEvent::Lost;
        for watch in watches.iter().filter(|it| is_for_all || name.starts_with(it.prefix())) {
            watch.tell(event, name, item.version.get());
        }
    }
    Ok(())
}

fn tell(session: &Session, notice: Notice) {
    let Some(callback) = &session.settings.on_notice else { return };
    if let Some(line) = session.common.holdings.line() {
        line.look_away();
    }
    if catch_unwind(AssertUnwindSafe(|| callback(notice))).is_err() {
        log::error!("the notice callback panicked; its notice is lost");
    }
}

fn allocation(slot: u32, generation: u32) -> AllocationId {
    AllocationId { slot, generation }
}

impl From<&RecallItem> for Recall {
    fn from(item: &RecallItem) -> Self {
        Recall {
            id: allocation(item.slot.get(), item.generation.get()),
            // A kind that is not known here was not registered from here: the answer is STALE.
            facts: item.facts.get().unwrap_or(Facts::NONE),
            base: item.base.get(),
        }
    }
}
