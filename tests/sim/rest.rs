//! A rest: no faults, all recalls answered, all fds closed, all leases given back. Then every
//! request that can be granted must have been, and the others must be answered at their deadline.
//! Must never read a clock: it moves the world's time.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Phase};
use crate::world::World;
use crate::{checks, waits};

/// Rounds of answering everything before the world is said never to rest.
const MAX_REST_ROUNDS: u64 = 4_000;

impl World {
    /// Lets everything settle, and checks that nothing is left; see the top of the file.
    pub fn rest(&mut self) -> Check {
        self.trace.step(|| format!("{} -- rest --", self.now));
        self.quiet = true;
        if self.model.draining.is_on {
            self.feed(Action::SetDraining { draining: false })?;
        }
        self.poll_until(self.now)?;
        let mut rounds = 0;
        while self.settle_round()? {
            rounds += 1;
            ensure!(rounds < MAX_REST_ROUNDS, "it does not settle");
        }
        waits::nothing_stuck(&self.model)?;
        // Waiting for deadlines far ahead would use up the world's time: such requests are
        // cancelled.
        let horizon = self.now + 10_000_000;
        for (client, request) in self.requests_after(horizon) {
            self.feed(Action::Cancel { client, request })?;
        }
        self.poll_until(horizon)?;
        while self.settle_round()? {}
        self.poll_until(self.now)?;
        checks::settled(&self.model, &self.core)?;
        self.quiet = false;
        self.stats.quiesced += 1;
        Ok(())
    }

    fn requests_after(&self, time: u64) -> Vec<(u32, u64)> {
        let clients = self.model.clients.iter();
        clients
            .flat_map(|(client, state)| {
                state.requests.iter().map(move |(number, request)| (*client, *number, request))
            })
            .filter(|(_, _, request)| request.may_wait_until().is_some_and(|at| at > time))
            .map(|(client, number, _)| (client, number))
            .collect()
    }

    /// Answers everything that can be answered now; false if there was nothing.
    fn settle_round(&mut self) -> Check<bool> {
        let mut moved = false;
        let clients: Vec<u32> = self.model.clients.keys().copied().collect();
        for client in clients {
            moved |= self.settle_client(client)?;
        }
        for ticket in self.closing.keys().copied().collect::<Vec<_>>() {
            moved = true;
            self.close(ticket)?;
        }
        self.poll_until(self.now)?;
        Ok(moved)
    }

    fn settle_client(&mut self, client: u32) -> Check<bool> {
        match self.phase(client) {
            Some(Phase::Connected | Phase::Dropped) => {
                self.feed(Action::Gone { client })?;
                return Ok(true);
            }
            Some(Phase::Active) => {}
            _ => return Ok(false),
        }
        let mut moved = false;
        if self.model.clients.get(&client).is_some_and(|state| !state.sendable) {
            moved = true;
            self.feed(Action::Sendable { client, sendable: true })?;
        }
        while self.phase(client) == Some(Phase::Active) && self.take_events(client)? {
            moved = true;
        }
        while let Some(supply) = self.choose_supply(client) {
            moved = true;
            self.feed(supply)?;
        }
        loop {
            let leases = self.all_leases(client);
            if leases.is_empty() {
                return Ok(moved);
            }
            moved = true;
            self.feed(Action::Release { client, request: None, leases })?;
        }
    }
}
