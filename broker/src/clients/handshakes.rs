//! The time that new connections have for their hello, and for their event socket. Must never
//! remember more than two for each client that there may be, however fast connections come and go.

use crate::clients::connection::{Connection, Phase, index};
use fdbroker_core::{ClientId, Now};
use slab::Slab;
use std::collections::VecDeque;

/// A new connection's time for its hello, or for its event socket.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    /// The client, whose number is given again once it has gone.
    pub client: ClientId,
    /// Tells it from others of the same number.
    pub serial: u64,
    /// When it is over.
    pub until: Now,
}

/// See the module. In the order in which their times are over.
#[derive(Debug)]
pub struct Handshakes {
    queue: VecDeque<Handshake>,
    most_clients: usize,
}

impl Handshakes {
    /// None; there may be so many clients.
    pub fn new(most_clients: usize) -> Self {
        Handshakes { queue: VecDeque::new(), most_clients }
    }

    /// Takes over those of another broker, in their order.
    pub fn restore(&mut self, handshakes: impl Iterator<Item = Handshake>) {
        self.queue = handshakes.collect();
    }

    /// Puts one behind all others.
    pub fn add(&mut self, handshake: Handshake, connections: &Slab<Connection>) {
        self.queue.push_back(handshake);
        if self.queue.len() > 2 * self.most_clients {
            self.queue.retain(|handshake| is_awaited(handshake, connections));
        }
    }

    /// When the first time is over.
    pub fn due(&self) -> Option<Now> {
        self.queue.front().map(|handshake| handshake.until)
    }

    /// Forgets the first one if what it waits for has come, or its time is over; `None`: neither is
    /// so. The client is named if it is too late.
    pub fn pop(&mut self, now: Now, connections: &Slab<Connection>) -> Option<Option<ClientId>> {
        let handshake = self.queue.front()?;
        let is_waiting = is_awaited(handshake, connections);
        if is_waiting && handshake.until > now {
            return None;
        }
        let client = handshake.client;
        self.queue.pop_front();
        Some(is_waiting.then_some(client))
    }

    /// In the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Handshake> {
        self.queue.iter()
    }

    pub fn clear(&mut self) {
        self.queue.clear();
    }
}

fn is_awaited(handshake: &Handshake, connections: &Slab<Connection>) -> bool {
    let Some(it) = connections.get(index(handshake.client)) else { return false };
    (it.serial, it.expires) == (handshake.serial, handshake.until)
        && (it.phase == Phase::Silent || it.hello_reply.is_some() || it.is_joining())
}
