//! The connections by number, and the lists that they are in: how many each user has, which have
//! not said hello and until when, which have a turn to come, which have events to come. Must never
//! let a list and the connections differ, nor give a number to two connections of the same serial.

use crate::clients::connection::{Connection, Phase, client_id, index};
use crate::clients::handshakes::{Handshake, Handshakes};
use crate::clients::lobby::{Caller, Lobby};
use crate::clients::turns::{Turns, Who};
use crate::fds::jobs::Process;
use fdbroker_core::{ClientId, DomainKey, Now, PodKey, SubordinateUids, UserKey};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;

/// Connections for which memory is taken at the start.
const EXPECTED: usize = 4096;

#[derive(Debug)]
pub struct Connections {
    by_number: Slab<Connection>,
    /// By uid, in a pod by that; no entry = none.
    of_users: HashMap<UserKey, u32>,
    last_serial: u64,
    subordinate_uids: SubordinateUids,
    /// Callers, and connections that are [`Phase::Silent`].
    pub lobby: Lobby,
    /// Clients that are let in and whose event socket has not joined.
    joining: usize,
    handshakes: Handshakes,
    /// Clients with something to read, each once: its connection says whether it is here.
    turns: Turns,
    /// Clients that the core has events for, likewise.
    eventful: VecDeque<ClientId>,
    nobody: Connection,
}

impl Connections {
    /// None yet, at most `most`. `is_shared`: by several users.
    pub fn new(most: usize, is_shared: bool, subordinate_uids: SubordinateUids) -> Self {
        Connections {
            by_number: Slab::with_capacity(most.min(EXPECTED)),
            of_users: HashMap::new(),
            last_serial: 0,
            subordinate_uids,
            lobby: Lobby::new(is_shared),
            joining: 0,
            handshakes: Handshakes::new(most),
            turns: Turns::default(),
            eventful: VecDeque::new(),
            nobody: Connection { phase: Phase::Gone, ..Connection::default() },
        }
    }

    /// Takes over the connections of another broker, by number, the serial that it gave last, and
    /// the times for hello.
    pub fn restore(
        &mut self,
        mut connections: Vec<(usize, Connection)>,
        last_serial: u64,
        handshakes: impl Iterator<Item = Handshake>,
    ) {
        for (_, connection) in &mut connections {
            connection.shares_as = self.shares_as(connection.domain);
            *self.of_users.entry(user(connection.domain)).or_default() += 1;
            if connection.phase == Phase::Silent {
                self.lobby.enter(connection.shares_as);
            }
            self.joining += usize::from(connection.is_joining());
        }
        (self.by_number, self.last_serial) = (connections.into_iter().collect(), last_serial);
        let handshakes = handshakes.inspect(|handshake| {
            if let Some(it) = self.by_number.get_mut(index(handshake.client)) {
                it.expires = handshake.until;
            }
        });
        self.handshakes.restore(handshakes);
    }

    /// Somebody has come in, and has until then to say who it is. Its number in the lobby.
    pub fn receive(&mut self, caller: Caller) -> u64 {
        self.lobby.enter(self.shares_as(caller.domain));
        self.lobby.keep(caller)
    }

    /// A caller leaves the lobby.
    pub fn dismiss(&mut self, number: u64) -> Option<Caller> {
        let caller = self.lobby.take(number)?;
        self.lobby.leave(self.shares_as(caller.domain));
        Some(caller)
    }

    /// The process of a caller has been looked at: it is of this domain from now on.
    pub fn place_caller(&mut self, number: u64, domain: DomainKey, process: Process) {
        let Some(former) = self.lobby.callers().get(&number).map(|it| it.domain) else { return };
        self.lobby.leave(self.shares_as(former));
        self.lobby.enter(self.shares_as(domain));
        self.lobby.note_process(number, domain, process);
    }

    /// Clients that are let in and whose event socket has not joined.
    pub fn joining(&self) -> usize {
        self.joining
    }

    /// A client is let in, and has until then for its event socket.
    pub fn await_events(&mut self, number: usize, until: Now) {
        let connection = &mut self[number];
        (connection.phase, connection.expires) = (Phase::Welcomed, until);
        let serial = connection.serial;
        self.joining += 1;
        let handshake = Handshake { client: client_id(number), serial, until };
        self.handshakes.add(handshake, &self.by_number);
    }

    /// The event socket of a client has joined.
    pub fn set_event(&mut self, number: usize, event: OwnedFd) {
        let connection = &mut self[number];
        (connection.event, connection.is_event_ready) = (Some(event), true);
        self.joining -= 1;
    }

    /// A new connection; its number. `until`: the time it has for its hello.
    pub fn add(&mut self, socket: OwnedFd, domain: DomainKey, pid: u32, until: Now) -> usize {
        self.last_serial += 1;
        *self.of_users.entry(user(domain)).or_default() += 1;
        let (serial, shares_as) = (self.last_serial, self.shares_as(domain));
        self.lobby.enter(shares_as);
        let new = Connection::bare(serial, domain, pid);
        let new = Connection { socket: Some(socket), shares_as, expires: until, ..new };
        let number = self.by_number.insert(new);
        let handshake = Handshake { client: client_id(number), serial, until };
        self.handshakes.add(handshake, &self.by_number);
        number
    }

    /// The domain that a connection of this one shares with.
    pub fn shares_as(&self, domain: DomainKey) -> DomainKey {
        match self.subordinate_uids.user_of_domain(domain) {
            Some((uid, _)) => DomainKey { uid, ..domain },
            None => domain,
        }
    }

    /// Whether another connection of this domain may come in.
    pub fn has_room_in_lobby(&self, domain: DomainKey) -> bool {
        self.lobby.has_room(self.shares_as(domain))
    }

    /// A connection is so far from now on. `false`: it was before.
    pub fn advance(&mut self, number: usize, phase: Phase) -> bool {
        let connection = &mut self[number];
        let (was_joining, shares_as) = (connection.is_joining(), connection.shares_as);
        let former = std::mem::replace(&mut connection.phase, phase);
        self.joining -= usize::from(was_joining);
        if former == Phase::Silent && phase != former {
            self.lobby.leave(shares_as);
        }
        former != phase
    }

    /// The times for hello.
    pub fn handshakes(&self) -> &Handshakes {
        &self.handshakes
    }

    /// As for [`Handshakes::pop`].
    pub fn pop_handshake(&mut self, now: Now) -> Option<Option<ClientId>> {
        self.handshakes.pop(now, &self.by_number)
    }

    /// Whose turn it is.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Gives a client with something to do a turn.
    pub fn enqueue(&mut self, client: ClientId) {
        self.enqueue_by(client, Turns::push_fresh);
    }

    /// Gives a client another turn: its turn has ended before its work has.
    pub fn enqueue_rest(&mut self, client: ClientId) {
        self.enqueue_by(client, Turns::push_rest);
    }

    fn enqueue_by(&mut self, client: ClientId, push: fn(&mut Turns, Who, ClientId)) {
        // One that was paused may have gone.
        let Some(connection) = self.by_number.get_mut(index(client)) else { return };
        if connection.is_serviceable() && !std::mem::replace(&mut connection.is_queued, true) {
            push(&mut self.turns, connection.who(), client);
        }
    }

    /// The client whose turn begins.
    pub fn next_turn(&mut self) -> Option<ClientId> {
        loop {
            let client = self.turns.pop()?;
            // One may have gone since it was queued.
            if let Some(connection) = self.get_mut(index(client)) {
                connection.is_queued = false;
                return Some(client);
            }
        }
    }

    /// The core has events for a client.
    pub fn note_events(&mut self, client: ClientId) {
        let connection = &mut self[index(client)];
        connection.has_events = true;
        if !std::mem::replace(&mut connection.is_event_queued, true) {
            self.eventful.push_back(client);
        }
    }

    /// The next client that the core has events for.
    pub fn next_eventful(&mut self) -> Option<ClientId> {
        loop {
            let client = self.eventful.pop_front()?;
            if let Some(connection) = self.get_mut(index(client)) {
                connection.is_event_queued = false;
                return Some(client);
            }
        }
    }

    /// How many clients the core has events for.
    pub fn eventful(&self) -> usize {
        self.eventful.len()
    }

    /// Frees a number; the connection that had it.
    pub fn remove(&mut self, number: usize) -> Option<Connection> {
        let connection = self.by_number.try_remove(number)?;
        let user = user(connection.domain);
        if let Some(count) = self.of_users.get_mut(&user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_users.remove(&user);
            }
        }
        Some(connection)
    }

    /// Frees all numbers. No list has a connection any more.
    pub fn drain(&mut self) -> impl Iterator<Item = Connection> {
        (self.of_users, self.joining) = (HashMap::new(), 0);
        self.handshakes.clear();
        self.turns.clear();
        self.eventful.clear();
        self.by_number.drain()
    }

    /// The connection of a client, unless it was an earlier one of the same number.
    pub fn find(&self, client: ClientId, serial: u64) -> Option<&Connection> {
        self.get(index(client)).filter(|it| it.serial == serial)
    }

    /// The connection with this number, for whoever has the number from an event or a list that may
    /// be older.
    pub fn get(&self, number: usize) -> Option<&Connection> {
        self.by_number.get(number)
    }

    /// As [`Connections::get`], to be changed.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Connection> {
        self.by_number.get_mut(number)
    }

    /// All of them, by number.
    pub fn iter(&self) -> slab::Iter<'_, Connection> {
        self.by_number.iter()
    }

    /// How many there are, those included that have ended and linger.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// How many a domain's user has, by all listeners.
    pub fn of_user(&self, domain: DomainKey) -> u32 {
        self.of_users.get(&user(domain)).copied().unwrap_or(0)
    }

    /// The serial given last.
    pub fn last_serial(&self) -> u64 {
        self.last_serial
    }

    /// Whether nothing is counted.
    #[cfg(test)]
    pub fn is_nobody_counted(&self) -> bool {
        self.of_users.is_empty() && self.lobby.is_empty()
    }
}

/// The connection of a client that the core knows, or of which a socket is left: its record is
/// there until [`Connections::remove`]. If it is not, that is a bug, but no reason to take
/// everybody's connections away: it is as one that has ended.
impl Index<usize> for Connections {
    type Output = Connection;

    fn index(&self, number: usize) -> &Connection {
        self.by_number.get(number).unwrap_or_else(|| missing(number, &self.nobody))
    }
}

impl IndexMut<usize> for Connections {
    fn index_mut(&mut self, number: usize) -> &mut Connection {
        match self.by_number.get_mut(number) {
            Some(connection) => connection,
            None => missing(number, &mut self.nobody),
        }
    }
}

/// Whose the domains of all listeners are: a uid's, in a pod those of all uids.
fn user(DomainKey { uid, pod, .. }: DomainKey) -> UserKey {
    if pod == PodKey::NONE { (uid, pod) } else { (u32::MAX, pod) }
}

#[cold]
fn missing<T>(number: usize, nobody: T) -> T {
    log::error!("internal: there is no client {number}");
    debug_assert!(false, "there is no client {number}");
    nobody
}

impl<'a> IntoIterator for &'a Connections {
    type Item = (usize, &'a Connection);
    type IntoIter = slab::Iter<'a, Connection>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_number.iter()
    }
}

impl<'a> IntoIterator for &'a mut Connections {
    type Item = (usize, &'a mut Connection);
    type IntoIter = slab::IterMut<'a, Connection>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_number.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::SubordinateRange;
    use std::fs::File;

    #[test]
    fn connections_when_a_pod_comes_under_many_uids_then_these_are_counted_as_one() {
        let mut connections = Connections::new(64, true, SubordinateUids::new(Vec::new()));
        let of = |uid, pod| DomainKey { pod: PodKey([pod, 0]), ..DomainKey::new(0, uid) };
        for uid in 1000.. {
            if !connections.has_room_in_lobby(of(uid, 1)) {
                break;
            }
            connections.add(File::open("/dev/null").unwrap().into(), of(uid, 1), 1, Now(0));
        }
        assert_eq!(connections.len(), crate::limits::LOBBY_PER_DOMAIN as usize);
        assert!(connections.has_room_in_lobby(of(1000, 2)), "another pod");
        assert!(connections.has_room_in_lobby(DomainKey::new(0, 1000)), "no pod");
        assert_eq!(connections.of_user(of(5, 1)), crate::limits::LOBBY_PER_DOMAIN);
        assert_eq!(connections.of_user(of(1000, 2)), 0);
    }

    #[test]
    fn connections_when_a_user_comes_under_subordinate_uids_then_these_have_one_part_of_the_lobby()
    {
        let range = SubordinateRange { first: 100_000, count: 10, user: Some(1000) };
        let mut connections = Connections::new(64, true, SubordinateUids::new(vec![range]));
        let domain = |uid| DomainKey::new(0, uid);
        let mut first = None;
        for uid in (1000..1001).chain(100_000..100_010).cycle() {
            if !connections.has_room_in_lobby(domain(uid)) {
                break;
            }
            let socket = File::open("/dev/null").unwrap().into();
            let number = connections.add(socket, domain(uid), 1, Now(0));
            first.get_or_insert(number);
        }
        assert_eq!(connections.len(), crate::limits::LOBBY_PER_DOMAIN as usize);
        assert!(!connections.has_room_in_lobby(domain(100_009)), "another of its uids");
        assert!(connections.has_room_in_lobby(domain(100_010)), "another user");
        connections.advance(first.unwrap(), Phase::Gone);
        assert!(connections.has_room_in_lobby(domain(100_009)));
    }
}
