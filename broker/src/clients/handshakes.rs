//! The time that new connections have for their hello. Must never remember more than two for each client that there may
//! be, however fast connections come and go.

use crate::clients::connection::{Connection, Phase, index};
use crate::clients::connections::Connections;
use fdbroker_core::{ClientId, Now};
use std::collections::VecDeque;

/// A new connection's time for its hello.
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
#[derive(Debug, Default)]
pub struct Handshakes(VecDeque<Handshake>);

impl Handshakes {
    /// Those of another broker, in their order.
    pub fn restored(handshakes: impl Iterator<Item = Handshake>) -> Self {
        Handshakes(handshakes.collect())
    }

    /// One more; `most`: clients that there may be.
    pub fn add(&mut self, handshake: Handshake, most: usize, connections: &Connections) {
        self.0.push_back(handshake);
        if self.0.len() > 2 * most {
            self.0.retain(|handshake| is_awaited(handshake, connections));
        }
    }

    /// When the first time is over.
    pub fn due(&self) -> Option<Now> {
        self.0.front().map(|handshake| handshake.until)
    }

    /// Forgets the first one if its hello has come, or its time is over; `None`: neither is so. The client is named if it
    /// is too late.
    pub fn pop(&mut self, now: Now, connections: &Connections) -> Option<Option<ClientId>> {
        let handshake = self.0.front()?;
        let is_waiting = is_awaited(handshake, connections);
        if is_waiting && handshake.until > now {
            return None;
        }
        let client = handshake.client;
        self.0.pop_front();
        Some(is_waiting.then_some(client))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Handshake> {
        self.0.iter()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

fn is_awaited(handshake: &Handshake, connections: &Connections) -> bool {
    let is_without_hello = |it: &Connection| it.phase == Phase::Silent || it.hello_reply.is_some();
    let connection = connections.get(index(handshake.client));
    connection.is_some_and(|it| it.serial == handshake.serial && is_without_hello(it))
}
