//! Clients to which events are to be sent, in turn. Must never have a client twice.

use crate::clients::connection::{Connection, index};
use crate::clients::connections::Connections;
use fdbroker_core::ClientId;
use std::collections::VecDeque;

/// See the module. Each client once: its connection says whether it is here.
#[derive(Default)]
pub struct Eventful(VecDeque<ClientId>);

impl Eventful {
    /// The core has events for the client.
    pub fn add(&mut self, client: ClientId, connections: &mut Connections) {
        let Some(connection) = connections.get_mut(index(client)) else { return };
        connection.has_events = true;
        if !std::mem::replace(&mut connection.is_event_queued, true) {
            self.0.push_back(client);
        }
    }

    /// The next client.
    pub fn pop(&mut self, connections: &mut Connections) -> Option<ClientId> {
        let client = self.0.pop_front()?;
        let unqueue = |connection: &mut Connection| connection.is_event_queued = false;
        connections.get_mut(index(client)).map(unqueue);
        Some(client)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// There is none any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
