//! The sending side of the simulated daemon: sockets that fill up, clients that read slowly, and
//! times at which no send of fds works. Must only decide what could be sent; the core decides what
//! follows.

use crate::action::Action;
use crate::tally::Fault;
use crate::world::{Todo, World};
use fdbroker_core::Granted;

impl World {
    /// Whether a grant cannot be sent.
    pub fn send_fails(&mut self, client: u32, grants: &[Granted]) -> bool {
        if self.quiet || self.replies.is_some() {
            return false;
        }
        if grants.iter().all(|grant| !grant.status.is_ok()) {
            // The daemon keeps a message without fds until the socket takes it.
            return false;
        }
        if self.now > self.refs_full_until + 20_000 && self.rng.chance(5) {
            self.refs_full_until = self.now + self.rng.between(100, 3_000);
            self.stats.fault(Fault::NoReferences);
        }
        let slow = self.agents.get(&client).map_or(0, |agent| agent.manners.slow);
        self.now < self.refs_full_until || self.rng.chance(slow / 2 + 5)
    }

    /// The inputs that follow a grant that could not be sent.
    pub fn send_failed(&mut self, client: u32, unsent: Action, follow: &mut Vec<Action>) {
        let unsendable = Action::Sendable { client, sendable: false };
        match self.rng.below(4) {
            0 => follow.extend([unsent, unsendable]),
            _ => follow.extend([unsendable, unsent]),
        }
        self.sendable_later(client);
    }

    /// A grant was sent: the socket may have no room for another.
    pub fn sent(&mut self, client: u32, grants: &[Granted], follow: &mut Vec<Action>) {
        let slow = self.agents.get(&client).map_or(0, |agent| agent.manners.slow);
        let carries = grants.iter().any(|grant| grant.status.is_ok());
        if carries && !self.quiet && self.replies.is_none() && self.rng.chance(slow) {
            follow.push(Action::Sendable { client, sendable: false });
            self.sendable_later(client);
        }
    }

    fn sendable_later(&mut self, client: u32) {
        let Some(order) = self.agents.get(&client).map(|agent| agent.order) else { return };
        let wait = self.rng.skewed(10, 30_000);
        self.schedule(wait, Todo::Sendable { client, order });
    }
}
