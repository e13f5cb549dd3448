//! What the clients of these worlds do next. Must only choose.

use super::action::{Action, How, New, Touch};
use super::world::World;
use fdbroker_core::{ClientId, Inherits};
use fdbroker_protocol::ErrorCode;

/// Names that clients use: few, so that they meet.
const NAMES: u64 = 6;

impl World {
    /// What happens next.
    pub fn choose(&mut self) -> Action {
        let clients: Vec<u32> = self.model.clients.keys().copied().collect();
        let spawn = clients.len() < 2 || clients.len() < 6 && self.rng.chance(60);
        let Some(client) = self.rng.pick(&clients).filter(|_| !spawn) else {
            return self.choose_connect();
        };
        match self.rng.below(100) {
            // Without a credit it would have to ask for one first.
            0..=19 if self.core.deposit_credits(ClientId(client)) == 0 => Action::Poll,
            0..=19 => self.choose_create(client),
            20..=25 if !self.is_hurried => {
                let (request, objects) = (self.next_request(), self.draw_objects());
                Action::Add { client, request, group: self.draw_group(client), objects }
            }
            20..=41 => {
                let (request, group) = (self.next_request(), self.draw_group(client));
                let is_busy = self.rng.chance(50);
                let checked = if is_busy { Err(ErrorCode::SealedBusy) } else { Ok(()) };
                Action::Seal { client, request, group, checked }
            }
            42..=46 => {
                let (request, group) = (self.next_request(), self.draw_group(client));
                Action::Abort { client, request, group }
            }
            47..=48 if self.may_watch => self.choose_watch(client),
            49..=53 => self.choose_touch(client),
            47..=69 => self.choose_get(client),
            70..=77 => self.choose_delete(client),
            78..=90 => {
                let leases: Vec<u64> = self.model.clients[&client].leases.keys().copied().collect();
                match self.rng.pick(&leases) {
                    Some(lease) => Action::Release { client, lease },
                    None => self.choose_get(client),
                }
            }
            91..=92 => {
                let gets: Vec<u64> = self.model.clients[&client].gets.keys().copied().collect();
                match self.rng.pick(&gets) {
                    Some(request) => Action::Cancel { client, request },
                    None => Action::Poll,
                }
            }
            93..=94 => {
                let sendable = !self.model.clients[&client].sendable || self.rng.chance(300);
                Action::Sendable { client, sendable }
            }
            95 => Action::Gone { client },
            96 if self.rng.chance(200) => Action::Restart,
            97 if self.rng.chance(200) => Action::Crash,
            _ => {
                let tickets: Vec<u32> = self.closing.iter().copied().collect();
                match self.rng.pick(&tickets) {
                    Some(ticket) => Action::Closed { ticket },
                    None => Action::Poll,
                }
            }
        }
    }

    fn choose_connect(&mut self) -> Action {
        let client = (0..).find(|client| !self.used.contains(client)).unwrap_or(u32::MAX);
        Action::Connect { client, scope: self.draw_scope() }
    }

    fn choose_create(&mut self, client: u32) -> Action {
        let keep_us = self.rng.chance(450).then(|| self.rng.between(100, 20_000));
        let pin = self.rng.chance(100);
        // Whether it says that it is not to be kept, or not pinned.
        let says = [self.rng.chance(300), self.rng.chance(300)];
        let how = How {
            of_job: self.rng.chance(200),
            replace: self.rng.chance(400),
            keep_us,
            pin,
            inherits: Inherits { keep: keep_us.is_none() && !says[0], pin: !pin && !says[1] },
            outlives: self.rng.chance(100),
            evictable: self.rng.chance(700),
            size_bytes: 4096,
        };
        Action::Create { client, request: self.next_request(), how, objects: self.draw_objects() }
    }

    fn choose_get(&mut self, client: u32) -> Action {
        let (request, of_job) = (self.next_request(), self.rng.chance(200));
        let count = self.rng.skewed(1, 4);
        let names = (0..count).map(|_| self.draw_name()).collect();
        let wait = if self.rng.chance(400) { 0 } else { self.rng.between(1, 5_000) };
        Action::Get { client, request, of_job, names, deadline: self.now + wait }
    }

    fn choose_touch(&mut self, client: u32) -> Action {
        let request = self.next_request();
        let touch = Touch {
            of_job: self.rng.chance(200),
            keep_us: self.rng.chance(400).then(|| self.rng.between(100, 20_000)),
            pin: self.rng.chance(300).then(|| self.rng.chance(500)),
        };
        let count = self.rng.skewed(1, 3);
        let names = (0..count).map(|_| self.draw_name()).collect();
        Action::Touch { client, request, touch, names }
    }

    fn choose_watch(&mut self, client: u32) -> Action {
        let (request, of_job) = (self.next_request(), self.rng.chance(300));
        let prefix = match self.rng.below(3) {
            0 => Vec::new(),
            1 => b"n".to_vec(),
            _ => self.draw_name(),
        };
        let is_wanted = self.rng.chance(700);
        Action::Watch { client, request, of_job, prefix, is_wanted }
    }

    fn choose_delete(&mut self, client: u32) -> Action {
        let (request, of_job) = (self.next_request(), self.rng.chance(200));
        let count = self.rng.skewed(1, 3);
        let names = (0..count).map(|_| {
            let version = if self.rng.chance(700) { 0 } else { self.draw_version() };
            (self.draw_name(), version)
        });
        Action::Delete { client, request, of_job, names: names.collect() }
    }

    fn draw_name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.below(NAMES)).into_bytes()
    }

    /// A version given not long ago, or none.
    fn draw_version(&mut self) -> u64 {
        self.model.version.saturating_sub(self.rng.below(4))
    }

    fn draw_objects(&mut self) -> Vec<New> {
        let many = self.rng.chance(10);
        let count = if many { self.rng.between(200, 254) } else { self.rng.skewed(1, 4) };
        let numbered = |at: u64| format!("m{at}").into_bytes();
        let objects = (0..count).map(|at| New {
            name: if many { numbered(at) } else { self.draw_name() },
            offset: self.draw_offset(),
            size_bytes: self.rng.below(200),
            expect: self.rng.chance(150).then(|| self.draw_version()),
            metadata: vec![7; self.rng.skewed(0, 40) as usize],
        });
        objects.collect()
    }

    /// Mostly within the memory.
    fn draw_offset(&mut self) -> u64 {
        let most = if self.rng.chance(20) { 70 } else { 60 };
        64 * self.rng.below(most)
    }

    /// A group that the client has begun, mostly.
    fn draw_group(&mut self, client: u32) -> fdbroker_core::GroupId {
        let pid = self.model.clients[&client].pid;
        let all = self.model.groups.iter();
        let its: Vec<_> = all.filter(|it| it.creator_pid == pid).map(|it| it.id).collect();
        let recent = &its[its.len().saturating_sub(4)..];
        let any: Vec<_> = self.model.groups.iter().rev().take(8).map(|it| it.id).collect();
        let own = self.rng.pick(recent).filter(|_| !self.rng.chance(50));
        own.or_else(|| self.rng.pick(&any)).unwrap_or(fdbroker_core::GroupId(1 << 32))
    }
}
