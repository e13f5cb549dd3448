//! The connections by number, and the lists that they are in: how many each user has, which have not said hello and until when,
//! which have a turn to come, which have events to come. Must never let a list and the connections differ, nor give a number to
//! two connections of the same serial.

use crate::clients::connection::{Connection, Phase, client_id, index};
use crate::clients::handshakes::{Handshake, Handshakes};
use crate::clients::lobby::Lobby;
use crate::clients::turns::{Turns, Who};
use fdbroker_core::{ClientId, DomainKey, Now};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;

/// Connections for which memory is taken at the start.
const EXPECTED: usize = 4096;

/// See the module.
pub struct Connections {
    by_number: Slab<Connection>,
    /// By uid; no entry = none.
    of_users: HashMap<u32, u32>,
    last_serial: u64,
    /// Connections that are [`Phase::Silent`].
    lobby: Lobby,
    handshakes: Handshakes,
    /// Clients with something to read, each once: its connection says whether it is here.
    turns: Turns,
    /// Clients that the core has events for, likewise.
    eventful: VecDeque<ClientId>,
}

impl Connections {
    /// None yet, at most `most`. `is_shared`: by several users.
    pub fn new(most: usize, is_shared: bool) -> Self {
        Connections {
            by_number: Slab::with_capacity(most.min(EXPECTED)),
            of_users: HashMap::new(),
            last_serial: 0,
            lobby: Lobby::new(is_shared),
            handshakes: Handshakes::new(most),
            turns: Turns::default(),
            eventful: VecDeque::new(),
        }
    }

    /// Takes over the connections of another broker, by number, the serial that it gave last, and the times for hello.
    pub fn restore(
        &mut self,
        connections: Vec<(usize, Connection)>,
        last_serial: u64,
        handshakes: impl Iterator<Item = Handshake>,
    ) {
        for (_, connection) in &connections {
            *self.of_users.entry(connection.domain.uid).or_default() += 1;
            if connection.phase == Phase::Silent {
                self.lobby.enter(connection.domain);
            }
        }
        (self.by_number, self.last_serial) = (connections.into_iter().collect(), last_serial);
        self.handshakes.restore(handshakes);
    }

    /// A new connection; its number. `until`: the time it has for its hello.
    pub fn add(&mut self, socket: OwnedFd, domain: DomainKey, pid: u32, until: Now) -> usize {
        self.last_serial += 1;
        *self.of_users.entry(domain.uid).or_default() += 1;
        self.lobby.enter(domain);
        let serial = self.last_serial;
        let number = self.by_number.insert(Connection::new(serial, socket, domain, pid));
        let handshake = Handshake { client: client_id(number), serial, until };
        self.handshakes.add(handshake, &self.by_number);
        number
    }

    /// Whether another connection of this domain may come in.
    pub fn has_room_in_lobby(&self, domain: DomainKey) -> bool {
        self.lobby.has_room(domain)
    }

    /// A connection is so far from now on. `false`: it was before.
    pub fn advance(&mut self, number: usize, phase: Phase) -> bool {
        let Some(connection) = self.by_number.get_mut(number) else { return false };
        let former = std::mem::replace(&mut connection.phase, phase);
        if former == Phase::Silent && phase != former {
            self.lobby.leave(connection.domain);
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
        let Some(connection) = self.by_number.get_mut(index(client)) else { return };
        if connection.is_serviceable() && !std::mem::replace(&mut connection.is_queued, true) {
            push(&mut self.turns, connection.who(), client);
        }
    }

    /// The client whose turn begins.
    pub fn next_turn(&mut self) -> Option<ClientId> {
        let client = self.turns.pop()?;
        if let Some(connection) = self.by_number.get_mut(index(client)) {
            connection.is_queued = false;
        }
        Some(client)
    }

    /// The core has events for a client.
    pub fn note_events(&mut self, client: ClientId) {
        let Some(connection) = self.by_number.get_mut(index(client)) else { return };
        connection.has_events = true;
        if !std::mem::replace(&mut connection.is_event_queued, true) {
            self.eventful.push_back(client);
        }
    }

    /// The next client that the core has events for.
    pub fn next_eventful(&mut self) -> Option<ClientId> {
        let client = self.eventful.pop_front()?;
        if let Some(connection) = self.by_number.get_mut(index(client)) {
            connection.is_event_queued = false;
        }
        Some(client)
    }

    /// How many clients the core has events for.
    pub fn eventful(&self) -> usize {
        self.eventful.len()
    }

    /// Frees a number.
    pub fn remove(&mut self, number: usize) -> Option<Connection> {
        let connection = self.by_number.try_remove(number)?;
        let uid = connection.domain.uid;
        if let Some(count) = self.of_users.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_users.remove(&uid);
            }
        }
        Some(connection)
    }

    /// Frees all numbers. No list has a connection any more.
    pub fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.of_users.clear();
        self.lobby.clear();
        self.handshakes.clear();
        self.turns.clear();
        self.eventful.clear();
        self.by_number.drain()
    }

    /// The connection with this number.
    pub fn get(&self, number: usize) -> Option<&Connection> {
        self.by_number.get(number)
    }

    /// The connection with this number, to be changed.
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

    /// How many a user has, by all listeners.
    pub fn of_user(&self, uid: u32) -> u32 {
        self.of_users.get(&uid).copied().unwrap_or(0)
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

impl Index<usize> for Connections {
    type Output = Connection;

    fn index(&self, number: usize) -> &Connection {
        &self.by_number[number]
    }
}

impl IndexMut<usize> for Connections {
    fn index_mut(&mut self, number: usize) -> &mut Connection {
        &mut self.by_number[number]
    }
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
