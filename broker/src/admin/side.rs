//! The connections of administrators, and of users that look: their places, their turns, their
//! watches. Must never answer a query, nor let administrators that watch take the places of
//! administrators that ask, nor one user the places of others.

use crate::admin::comer::{Class, Comer};
use crate::admin::rights::{Rights, Sight};
use crate::admin::watch::Watch;
use crate::clients::calls::Calls;
use crate::kernel::KernelFeatures;
use crate::limits::{ADMIN_IDLE, ADMIN_TURN, MAX_ADMIN_CONNECTIONS, MAX_MONITORS, MAX_VIEWERS};
use crate::node::listeners::Listener;
use crate::past::Of;
use crate::{clock, kernel};
use fdbroker_core::{DomainKey, Note, Now, PodKey};
use fdbroker_protocol::admin::EventRecord;
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::errno::Errno;
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use slab::Slab;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The administrators' listener, those of users that look, and the connections of both.
pub(crate) struct AdminSide {
    /// The administrators' first.
    listeners: Vec<Entrance>,
    connections: Slab<AdminConnection>,
    /// All places of administrators are taken and a connection waits: when to look again whether
    /// one gives way.
    room_at: Option<Now>,
    /// Whose turn it is, of administrators and of users that look; and which of the two is first.
    next: [usize; 2],
    is_for_viewers: bool,
    /// No room for an fd: no query has one.
    received: ReceivedFds,
    /// The sights of those that watch.
    watched: Vec<Sight>,
    /// For what the core has noted; reused.
    notes: Vec<Note>,
    /// The connection that wants to take over, and the format that it reads.
    takeover: Option<(usize, u64)>,
}

/// A listener by which connections come.
struct Entrance {
    listener: Listener,
    /// The number of the clients' listener beside which it stands; `None`: it is the
    /// administrators'.
    beside: Option<u32>,
    is_ready: bool,
    /// A connection waits for which there was no room.
    is_accept_due: bool,
}

impl Entrance {
    fn new(listener: Listener, beside: Option<u32>) -> Self {
        Entrance { listener, beside, is_ready: false, is_accept_due: false }
    }
}

struct AdminConnection {
    socket: OwnedFd,
    comer: Comer,
    is_ready: bool,
    /// Its payer owes for long calls: it is neither read from nor sent to.
    is_away: bool,
    /// When it came or last asked.
    used_at: Now,
    /// When it asked for the first time, if it has.
    first_at: Option<Now>,
    /// An answer that the socket did not take; no query is read before it has gone.
    pending: Option<Vec<u8>>,
    /// What it is to be told, if it watches.
    watch: Option<Box<Watch>>,
}

pub(crate) enum Turn {
    /// It may have sent something, or has room for an answer.
    Serve(usize),
    /// It is to be told what has happened.
    Tell(usize),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Done,
    /// Until the socket takes it.
    Kept,
    Gone,
}

impl AdminConnection {
    fn new(socket: OwnedFd, comer: Comer, now: Now) -> Self {
        AdminConnection {
            socket,
            comer,
            is_ready: true,
            is_away: false,
            used_at: now,
            first_at: None,
            pending: None,
            watch: None,
        }
    }

    /// Until when it keeps its place; `None`: while it is as it is now.
    fn keeps_until(&self) -> Option<Now> {
        let is_idle = !self.is_ready && self.pending.is_none();
        match self.first_at {
            _ if self.watch.is_some() => None,
            _ if is_idle => Some(clock::after(self.used_at, ADMIN_IDLE)),
            Some(first_at) => Some(clock::after(first_at, ADMIN_TURN)),
            // Its first turn comes soon.
            None => None,
        }
    }

    /// It may be read from and sent to.
    fn is_ready(&self) -> bool {
        self.is_ready && !self.is_away
    }

    /// It is of a user that looks.
    fn is_viewer(&self) -> bool {
        !self.comer.rights.may_act
    }

    /// It has events to be sent, and room for them as far as is known.
    fn is_watch_due(&self) -> bool {
        !self.is_away
            && self.pending.is_none()
            && self.watch.as_ref().is_some_and(|watch| watch.is_due())
    }
}

impl AdminSide {
    /// `viewers`: each with the number of the clients' listener that it stands beside.
    pub fn new(admin: Listener, viewers: Vec<(u32, Listener)>) -> Self {
        let places =
            MAX_ADMIN_CONNECTIONS + if viewers.is_empty() { 0 } else { MAX_VIEWERS + MAX_MONITORS };
        let viewers = viewers.into_iter().map(|(beside, it)| Entrance::new(it, Some(beside)));
        AdminSide {
            listeners: std::iter::once(Entrance::new(admin, None)).chain(viewers).collect(),
            connections: Slab::with_capacity(places),
            room_at: None,
            next: [0; 2],
            is_for_viewers: false,
            received: ReceivedFds::with_capacity(0),
            watched: Vec::new(),
            notes: Vec::new(),
            takeover: None,
        }
    }

    /// All listeners, the administrators' first.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().map(|it| &it.listener)
    }

    pub fn listeners_mut(&mut self) -> impl Iterator<Item = &mut Listener> {
        self.listeners.iter_mut().map(|it| &mut it.listener)
    }

    pub fn note_listener(&mut self, number: usize) {
        if let Some(entrance) = self.listeners.get_mut(number) {
            entrance.is_ready = true;
        }
    }

    /// A connection wants to take over, and reads this format.
    pub fn ask_takeover(&mut self, index: usize, format: u64) {
        self.takeover = Some((index, format));
    }

    /// The connection that wants to take over, once.
    pub fn take_takeover(&mut self) -> Option<(usize, u64)> {
        self.takeover.take()
    }

    /// There may be room again.
    pub fn retry_accept(&mut self) {
        for entrance in &mut self.listeners {
            entrance.is_ready |= std::mem::take(&mut entrance.is_accept_due);
        }
    }

    pub fn note(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.is_ready = true;
        }
    }

    /// Accepts an administrator's connection if one waits and there is a place; its number. An
    /// error: there is no room for it. `first`: the number of the listener in whose domain of the
    /// user the connection pays.
    pub fn accept(
        &mut self,
        features: KernelFeatures,
        first: u32,
        now: Now,
    ) -> Result<Option<usize>, Errno> {
        if !self.listeners[0].is_ready || !self.make_room(now) {
            return Ok(None);
        }
        let Some(socket) = self.accept_at(0)? else { return Ok(None) };
        kernel::refuse_rights(socket.as_fd(), features);
        // Acts look at the user themselves. Root can stop the broker anyway.
        let peer = getsockopt(&socket, PeerCredentials).map_or(0, |peer| peer.uid());
        let payer = match peer {
            0 => DomainKey::NOBODYS,
            uid => DomainKey::new(first, uid),
        };
        let comer = Comer { rights: Rights::ADMINISTRATOR, uid: peer, pid: 0, payer };
        Ok(Some(self.connections.insert(AdminConnection::new(socket, comer, now))))
    }

    /// Accepts the connection of a user that looks, if one waits, with the number of the clients'
    /// listener beside which it came. It has no place yet. An error: as above.
    pub fn accept_viewer(&mut self) -> Result<Option<(u32, OwnedFd)>, Errno> {
        let ready = self.listeners.iter().position(|it| it.is_ready && it.beside.is_some());
        let Some(number) = ready else { return Ok(None) };
        let beside = self.listeners[number].beside.unwrap_or_default();
        Ok(self.accept_at(number)?.map(|socket| (beside, socket)))
    }

    fn accept_at(&mut self, number: usize) -> Result<Option<OwnedFd>, Errno> {
        let entrance = &mut self.listeners[number];
        while entrance.is_ready {
            match kernel::accept(entrance.listener.as_fd()) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(errno) => {
                    entrance.is_ready = false;
                    if errno != Errno::EAGAIN {
                        entrance.is_accept_due = true;
                        return Err(errno);
                    }
                }
            }
        }
        Ok(None)
    }

    /// A place for the connection of a user that looks; its number. An error: neither of the user's
    /// places nor of all is free, nor does a connection give way. One that does is given back.
    pub fn add_viewer(
        &mut self,
        socket: OwnedFd,
        comer: Comer,
        now: Now,
    ) -> Result<(usize, Option<(OwnedFd, Comer)>), OwnedFd> {
        let alike = || self.alike(comer);
        let own = || alike().filter(|(_, it)| it.comer.user() == comer.user());
        let (places, of_user) = comer.class().places();
        let leaving = match () {
            () if own().count() >= of_user => Some(oldest(own(), now)),
            () if alike().count() >= places => {
                Some(oldest(alike(), now).or_else(|| of_greedy(alike, comer.user())))
            }
            () => None,
        };
        let left = match leaving {
            Some(None) => return Err(socket),
            Some(Some(index)) => self.end(index),
            None => None,
        };
        Ok((self.connections.insert(AdminConnection::new(socket, comer, now)), left))
    }

    /// Those that share places with one.
    fn alike(&self, comer: Comer) -> impl Iterator<Item = (usize, &AdminConnection)> + Clone {
        self.connections.iter().filter(move |(_, it)| it.comer.class() == comer.class())
    }

    /// The next connection that has something to do. Administrators and users that look take turns,
    /// however many the others are.
    pub fn next_turn(&mut self) -> Option<Turn> {
        self.is_for_viewers = !self.is_for_viewers;
        let first = self.is_for_viewers;
        self.next_turn_of(first).or_else(|| self.next_turn_of(!first))
    }

    fn next_turn_of(&mut self, viewers: bool) -> Option<Turn> {
        let next = &mut self.next[usize::from(viewers)];
        let turn = |it: &AdminConnection, index: usize| match it {
            it if it.is_viewer() != viewers => None,
            it if it.is_ready() => Some(Turn::Serve(index)),
            it if it.is_watch_due() => Some(Turn::Tell(index)),
            _ => None,
        };
        let found = |from: usize, to: usize| {
            (from..to).find_map(|index| turn(self.connections.get(index)?, index))
        };
        let all = self.connections.capacity();
        let turn = found(*next, all).or_else(|| found(0, *next))?;
        let (Turn::Serve(index) | Turn::Tell(index)) = turn;
        *next = index + 1;
        Some(turn)
    }

    /// Whose a connection is.
    pub fn comer(&self, index: usize) -> Option<Comer> {
        self.connections.get(index).map(|it| it.comer)
    }

    /// Whether the message to read has fds: the kernel would close them on the loop. An
    /// administrator's are theirs to answer for.
    pub fn has_fds(&self, index: usize, calls: &mut Calls) -> bool {
        let it = &self.connections[index];
        let look = || fdbroker_scm::is_control_next(it.socket.as_fd());
        it.is_viewer() && calls.time(it.comer.payer, 0, look)
    }

    /// Reads a message into `buffer`; its length. `None`: there is none. An error: the connection
    /// is to end.
    pub fn recv(
        &mut self,
        index: usize,
        buffer: &mut [u8],
        calls: &mut Calls,
        now: Now,
    ) -> Result<Option<usize>, RecvError> {
        let connection = &mut self.connections[index];
        let socket = connection.socket.as_fd();
        let recv = || fdbroker_scm::recv(socket, buffer, &mut self.received);
        match calls.time(connection.comer.payer, 0, recv) {
            Ok(received) => {
                connection.used_at = now;
                connection.first_at.get_or_insert(now);
                Ok(Some(received.len))
            }
            Err(RecvError::WouldBlock) => {
                connection.is_ready = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a message, or keeps it: no query of the connection is read before it has gone.
    pub fn send(&mut self, index: usize, bytes: &[u8], calls: &mut Calls) -> Sent {
        let connection = &mut self.connections[index];
        let (socket, payer) = (connection.socket.as_fd(), connection.comer.payer);
        let is_away = calls.debts.is_away(payer);
        let sent = if is_away {
            Err(SendError::WouldBlock)
        } else {
            calls.time(payer, 0, || fdbroker_scm::send(socket, bytes, &[]))
        };
        match sent {
            Ok(()) => Sent::Done,
            Err(SendError::WouldBlock) => {
                connection.pending = Some(bytes.to_vec());
                // Only time tells when it has paid.
                connection.is_ready = is_away;
                Sent::Kept
            }
            Err(_) => Sent::Gone,
        }
    }

    /// The connections of a payer are served from now on, or are not.
    pub fn set_away(&mut self, payer: DomainKey, is_away: bool) {
        let own = self.connections.iter_mut().filter(|(_, it)| it.comer.payer == payer);
        own.for_each(|(_, it)| it.is_away = is_away);
    }

    /// The connections of a payer.
    pub fn connections_of(&self, payer: DomainKey) -> Vec<usize> {
        let own = self.connections.iter().filter(|(_, it)| it.comer.payer == payer);
        own.map(|(index, _)| index).collect()
    }

    /// The message that is kept, to be sent again.
    pub fn take_pending(&mut self, index: usize) -> Option<Vec<u8>> {
        self.connections[index].pending.take()
    }

    /// Whether a message is kept.
    pub fn is_pending(&self, index: usize) -> bool {
        self.connections[index].pending.is_some()
    }

    pub fn is_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Whether somebody watches what is of this domain.
    pub fn is_domain_watched(&self, domain: DomainKey) -> bool {
        self.watched.iter().any(|sight| sight.has(domain))
    }

    /// An empty list for what the core has noted; to be given back.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Takes the list back, for the next time.
    pub fn keep_notes(&mut self, notes: Vec<Note>) {
        self.notes = notes;
    }

    /// Ends all connections, for whoever is at their other ends.
    pub fn shut_down(&self) {
        for (_, connection) in &self.connections {
            let _ = shutdown(connection.socket.as_raw_fd(), Shutdown::Both);
        }
    }

    /// The socket of a connection.
    pub fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.connections.get(index).map(|connection| connection.socket.as_fd())
    }

    /// Ends a connection. That of a user that looks is given back, with whose it is: fds may lie in
    /// it.
    #[must_use = "a lane closes it"]
    pub fn end(&mut self, index: usize) -> Option<(OwnedFd, Comer)> {
        let ended = self.connections.try_remove(index).filter(AdminConnection::is_viewer)?;
        Some((ended.socket, ended.comer))
    }

    /// Whether there is something to do at once; `may_turn_away`: connections of users that look
    /// can be accepted.
    pub fn is_ready(&self, may_turn_away: bool) -> bool {
        let administrators = self.connections.iter().filter(|(_, it)| !it.is_viewer()).count();
        let may_accept = administrators < MAX_ADMIN_CONNECTIONS || self.room_at.is_none();
        let may_enter =
            |it: &Entrance| if it.beside.is_some() { may_turn_away } else { may_accept };
        self.listeners.iter().any(|it| it.is_ready && may_enter(it))
            || self.connections.iter().any(|(_, it)| it.is_ready() || it.is_watch_due())
    }

    /// When to look again for a connection that gives way to one that waits.
    pub fn room_at(&self) -> Option<Now> {
        self.room_at
    }

    /// Whether there is a place for one more administrator; when all are taken, the connection that
    /// has asked nothing for longest ends, of those that may.
    fn make_room(&mut self, now: Now) -> bool {
        self.room_at = None;
        let administrators = || self.connections.iter().filter(|(_, it)| !it.is_viewer());
        if administrators().count() < MAX_ADMIN_CONNECTIONS {
            return true;
        }
        let longest = oldest(administrators(), now);
        // An event tells when another connection comes.
        let entrance = &mut self.listeners[0];
        entrance.is_ready = kernel::is_readable(entrance.listener.as_fd());
        if !entrance.is_ready {
            return false;
        }
        match longest {
            Some(index) => {
                log::debug!(
                    "an administrator's connection gives way to another: all places are taken"
                );
                self.connections.remove(index);
            }
            None => {
                // A busy connection may be idle by then.
                self.room_at = Some(clock::after(now, ADMIN_IDLE));
            }
        }
        longest.is_some()
    }

    /// Whether a connection may watch from now on; one that does may choose again, but for a
    /// user's: each time takes a while. One that gives way for it ends; that of a user is given
    /// back.
    pub fn may_watch(&mut self, index: usize) -> (bool, Option<(OwnedFd, Comer)>) {
        let Some(comer) = self.comer(index) else { return (true, None) };
        let alike = || self.alike(comer).filter(|(_, it)| it.watch.is_some());
        let own = alike().filter(|(_, it)| it.comer.user() == comer.user()).count();
        let (most, of_user) = comer.class().watches();
        if self.connections.get(index).is_some_and(|it| it.watch.is_some()) {
            return (comer.class() != Class::Users, None);
        }
        if own >= of_user {
            return (false, None);
        }
        if alike().count() < most {
            return (true, None);
        }
        match of_greedy(alike, comer.user()) {
            Some(greedy) => (true, self.end(greedy)),
            None => (false, None),
        }
    }

    /// A connection watches from now on.
    pub fn set_watch(&mut self, index: usize, watch: Watch) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.watch = Some(Box::new(watch));
        }
    }

    /// What a watcher is to be told.
    pub fn watch(&mut self, index: usize) -> Option<&mut Watch> {
        self.connections.get_mut(index)?.watch.as_deref_mut()
    }

    /// Tells all watchers of an event; `of`: its client's.
    pub fn tell(&mut self, event: &EventRecord, of: Of) {
        let all = self.connections.iter_mut();
        all.filter_map(|(_, it)| it.watch.as_deref_mut()).for_each(|watch| watch.offer(event, of));
    }

    /// Notes what is watched.
    pub fn count_watches(&mut self) {
        let watches = self.connections.iter().filter_map(|(_, it)| it.watch.as_ref());
        self.watched.clear();
        self.watched.extend(watches.map(|watch| watch.sight()));
    }
}

/// Of these connections the one that has rested for longest, if it may end.
fn oldest<'a>(all: impl Iterator<Item = (usize, &'a AdminConnection)>, now: Now) -> Option<usize> {
    let may_end = |it: &AdminConnection| it.keeps_until().is_some_and(|until| until <= now);
    let old = all.filter(|(_, it)| may_end(it)).min_by_key(|(_, it)| it.used_at);
    old.map(|(index, _)| index)
}

/// Of these connections one of the user that has most of them, if these are at least two more than
/// `user` has: then that user still has as many as this one gets. One that watches is the last.
fn of_greedy<'a, I: Iterator<Item = (usize, &'a AdminConnection)>>(
    all: impl Fn() -> I,
    user: (u32, PodKey),
) -> Option<usize> {
    let count = |user: (u32, PodKey)| all().filter(|(_, it)| it.comer.user() == user).count();
    let greedy = all().map(|(_, it)| it.comer.user()).max_by_key(|user| count(*user))?;
    let of_it = all().filter(|(_, it)| it.comer.user() == greedy);
    let last = of_it.min_by_key(|(_, it)| (it.watch.is_some(), it.used_at));
    last.map(|(index, _)| index).filter(|_| count(greedy) >= count(user) + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::chosen::Chosen;
    use crate::limits::{MAX_VIEWER_WATCHES, MAX_VIEWERS_PER_USER, MAX_WATCHES_PER_USER};
    use crate::node::lock::Remains;
    use fdbroker_protocol::admin::Filter;

    struct Place {
        side: AdminSide,
        /// The peers' ends.
        peers: Vec<OwnedFd>,
        _dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let listener =
                |name| Listener::bind(&dir.path().join(name), 0o600, &Remains::NONE).unwrap();
            let side = AdminSide::new(listener("admin.sock"), vec![(0, listener("view.sock"))]);
            Place { side, peers: Vec::new(), _dir: dir }
        }

        /// A user's connection that asks at once and goes on asking, unless there is no place for
        /// it.
        fn ask(&mut self, user: u32, sight: Sight) -> Option<usize> {
            let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
            self.peers.push(theirs.into());
            let payer = DomainKey::new(0, user);
            let rights = Rights { sight, may_act: false };
            let comer = Comer { rights, uid: user, pid: 1, payer };
            let index = self.side.add_viewer(ours.into(), comer, Now(1)).ok()?.0;
            self.side.connections[index].first_at = Some(Now(1));
            Some(index)
        }

        fn ask_own(&mut self, user: u32) -> Option<usize> {
            self.ask(user, Sight::Domain(DomainKey::new(0, user)))
        }

        fn watch(&mut self, index: Option<usize>) -> bool {
            let index = index.unwrap();
            let (may_watch, _left) = self.side.may_watch(index);
            if may_watch {
                let all = Chosen { filter: Filter::None, value: 0 };
                let sight = self.side.comer(index).unwrap().rights.sight;
                self.side.set_watch(index, Watch::new(sight, all));
            }
            may_watch
        }

        fn count(&self, user: u32, watching: bool) -> usize {
            let all = self.side.connections.iter().map(|(_, it)| it);
            all.filter(|it| it.comer.uid == user && (!watching || it.watch.is_some())).count()
        }
    }

    #[test]
    fn add_viewer_when_some_users_take_all_places_then_each_other_finds_one() {
        let mut place = Place::new();
        let users = 0..u32::try_from(MAX_VIEWERS / MAX_VIEWERS_PER_USER).unwrap();
        for user in users.clone() {
            assert!((0..MAX_VIEWERS_PER_USER).all(|_| place.ask_own(user).is_some()));
        }
        let others = 100..100 + u32::try_from(MAX_VIEWERS).unwrap();
        let mut let_in = 0;
        for user in others {
            let_in += usize::from(place.ask_own(user).is_some());
            assert!(users.clone().all(|user| place.count(user, false) > 0));
        }
        // As long as somebody has two.
        assert_eq!(let_in, MAX_VIEWERS - MAX_VIEWERS / MAX_VIEWERS_PER_USER);
        assert_eq!(
            place.ask_own(0),
            None,
            "one that has a place takes none of users that have one"
        );
    }

    #[test]
    fn add_viewer_when_users_take_all_places_then_monitors_have_theirs() {
        let mut place = Place::new();
        for user in 0..u32::try_from(MAX_VIEWERS).unwrap() {
            place.ask_own(user).unwrap();
        }
        for monitor in 100..100 + u32::try_from(MAX_MONITORS).unwrap() {
            assert!(place.ask(monitor, Sight::Node).is_some());
        }
        assert_eq!(place.ask(500, Sight::Node), None);
        assert_eq!(place.ask_own(501), None);
    }

    #[test]
    fn may_watch_when_users_have_all_watches_then_places_to_ask_are_left_and_another_user_finds_one()
     {
        let mut place = Place::new();
        let users = u32::try_from(MAX_VIEWER_WATCHES / MAX_WATCHES_PER_USER).unwrap();
        for user in 0..users {
            for _ in 0..MAX_WATCHES_PER_USER {
                let index = place.ask_own(user);
                assert!(place.watch(index));
                assert!(!place.watch(index), "a user's may not choose again");
            }
        }
        for user in 100..100 + users {
            let index = place.ask_own(user);
            assert!(place.watch(index));
            assert_eq!(place.count(user, true), 1);
            let index = place.ask_own(user);
            assert!(!place.watch(index), "all have one at least");
        }
        assert!((0..users).all(|user| place.count(user, true) == 1));
        // Never ended by its time, a watch has left half of the places to those that ask.
        let watching = place.side.connections.iter().filter(|(_, it)| it.watch.is_some());
        assert_eq!(watching.count(), MAX_VIEWER_WATCHES);
        let monitor = place.ask(500, Sight::Node);
        assert!(place.watch(monitor) && place.watch(monitor));
    }
}
