//! The manners of the simulated clients and what they do next: well-behaved, slow, silent,
//! refusing, lying, hoarding, abusive, mortal. Must only choose: the world hands each choice to the
//! core.

use crate::action::Action;
use crate::model::Phase;
use crate::rig;
use crate::rng::Rng;
use crate::world::World;
use fdbroker_core::{Arrived, Deposit, Judged, Lane, LeaseId, RecallEvent, Supply, Wanted};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, FdType, Gpu, MAX_BATCH, MemoryKind, Share, Status,
};

/// How often, in a thousand, a client misbehaves in each way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    /// Has no room in its socket for another message after a grant.
    pub slow: u64,
    /// Leaves events unread or recalls unanswered for long.
    pub silent: u64,
    /// Answers a recall with an error.
    pub refuse: u64,
    /// Answers a recall with another id or size.
    pub lie: u64,
    /// Does not release.
    pub hoard: u64,
    /// Names things that are another's, or invented, or the same thing twice.
    pub abuse: u64,
    /// Dies at its next act.
    pub die: u64,
    /// Does one thing only: the one that this number below 100 stands for in [`World::choose`].
    pub only: Option<u64>,
}

impl Manners {
    /// A client that behaves well, apart from dying once in a while.
    pub const GOOD: Manners = Manners {
        slow: 10,
        silent: 10,
        refuse: 10,
        lie: 2,
        hoard: 0,
        abuse: 5,
        die: 3,
        only: None,
    };

    /// Draws manners: of a thousand clients, `rogues` have one vice.
    pub fn draw(rng: &mut Rng, rogues: u64) -> Self {
        let mut manners = Self::GOOD;
        if !rng.chance(rogues) {
            return manners;
        }
        match rng.below(7) {
            0 => manners.slow = 400,
            1 => manners.silent = 400,
            2 => manners.refuse = 500,
            3 => manners.lie = 300,
            4 => manners.hoard = 950,
            5 => manners.abuse = 400,
            _ => manners.die = 60,
        }
        manners
    }
}

/// A simulated client's own state.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Counts the connections that had its number.
    pub order: u64,
    pub manners: Manners,
    /// Recalls taken and not answered.
    pub recalls: Vec<RecallEvent>,
    /// A message on its way, and how many messages the core had been given when it was sent.
    pub on_its_way: Option<(u64, Action)>,
    /// Leases that it will give back because it was asked to.
    pub asked_back: Vec<LeaseId>,
    /// A look at its events is scheduled.
    pub events_due: bool,
    /// An answer to its recalls is scheduled.
    pub supply_due: bool,
    /// Leases that it gave back, to be given back once more.
    pub old_leases: Vec<LeaseId>,
    /// Number of its next request.
    pub next_request: u64,
    /// Owner's id of its next allocation.
    pub next_id: u64,
}

impl Agent {
    pub fn new(order: u64, manners: Manners) -> Self {
        Agent {
            order,
            manners,
            recalls: Vec::new(),
            asked_back: Vec::new(),
            on_its_way: None,
            events_due: false,
            supply_due: false,
            old_leases: Vec::new(),
            next_request: 1,
            next_id: 1,
        }
    }
}

/// Leases of the past that a client remembers.
const OLD_LEASES: usize = 16;
const PAGE_BYTES: u64 = 4096;

impl World {
    /// What the client does next; `None` = nothing.
    pub fn choose(&mut self, client: u32) -> Option<Action> {
        let manners = self.agents.get(&client)?.manners;
        if self.rng.chance(manners.die) {
            return Some(Action::Gone { client });
        }
        if self.rng.chance(manners.abuse) {
            return self.choose_abuse(client);
        }
        if self.rng.chance(if self.former.is_empty() { 10 } else { 300 }) {
            return self.choose_return(client);
        }
        let credits = self.model.clients.get(&client)?.credits;
        if credits > 0 && manners.only.is_none() && self.rng.chance(250) {
            return self.choose_register(client);
        }
        match manners.only.unwrap_or_else(|| self.rng.below(100)) {
            0..=37 => self.choose_acquire(client),
            38..=61 => self.choose_release(client, manners),
            62..=72 => self.choose_mapped(client),
            73..=88 => self.choose_register(client),
            89..=95 => self.choose_unregister(client),
            96..=97 => self.choose_cancel(client),
            _ => self.choose_credits(client),
        }
    }

    /// While a dead client is not torn down yet: now and then a client that was killed with it is
    /// gone before the daemon does anything else.
    pub fn choose_another_death(&mut self, client: u32) -> Option<Action> {
        if self.phase(client) != Some(Phase::Gone) || !self.rng.chance(300) {
            return None;
        }
        let clients = self.model.clients.iter();
        let here = clients.filter(|(_, state)| state.phase != Phase::Gone);
        let here: Vec<u32> = here.map(|(other, _)| *other).collect();
        Some(Action::Gone { client: self.rng.pick(&here)? })
    }

    /// The number of the client's next request.
    pub fn next_request(&mut self, client: u32) -> u64 {
        let Some(agent) = self.agents.get_mut(&client) else { return 0 };
        agent.next_request += 1;
        agent.next_request - 1
    }

    pub(crate) fn draw_deadline(&mut self) -> u64 {
        let wait = match self.rng.below(100) {
            0..=14 => 0,
            15..=54 => self.rng.between(100, 3_000),
            _ => self.rng.between(5_000, 50_000),
        };
        self.now + wait
    }

    fn choose_acquire(&mut self, client: u32) -> Option<Action> {
        if self.known.is_empty() {
            return self.choose_register(client);
        }
        let most = self.setup.config.max_parked_per_client as usize;
        let waits = self.model.clients.get(&client)?.requests.len();
        if waits >= most && self.rng.chance(900) {
            // The core would refuse more.
            return self.choose_release(client, self.agents.get(&client)?.manners);
        }
        if self.rng.chance(60) {
            return Some(self.choose_ahead(client));
        }
        let count = if self.rng.chance(700) { 1 } else { self.rng.skewed(1, self.setup.batch) };
        let wanted = (0..count).map(|_| self.draw_wanted(client)).collect();
        let (request, deadline) = (self.next_request(client), self.draw_deadline());
        Some(Action::Acquire { client, request, wanted, deadline })
    }

    pub fn draw_wanted(&mut self, client: u32) -> Wanted {
        match self.rng.below(1000) {
            0..=9 => Err(ErrorCode::BadHandle),
            10..=14 => Err(ErrorCode::WrongNode),
            15..=24 => Ok(self.draw_forged()),
            25..=39 => self.rng.pick(&self.old).ok_or(ErrorCode::BadHandle),
            _ => self.draw_live(client).ok_or(ErrorCode::BadHandle),
        }
    }

    fn draw_forged(&mut self) -> AllocationId {
        let slots = u64::from(self.setup.config.max_slots);
        let slot = match self.rng.below(4) {
            0 => u32::MAX,
            1 => self.setup.config.max_slots,
            _ => self.rng.below(slots) as u32,
        };
        let generation = match self.rng.below(4) {
            0 => 0,
            1 => u32::MAX,
            _ => self.setup.config.first_generation.saturating_add(self.rng.below(40) as u32),
        };
        AllocationId { slot, generation }
    }

    /// A handle that another client passed on: mostly of the same domain, mostly alive.
    fn draw_live(&mut self, client: u32) -> Option<AllocationId> {
        let domain = self.model.clients.get(&client)?.domain;
        let foreign = self.rng.chance(60);
        let evicted = self.rng.chance(300);
        let mut found = None;
        for _ in 0..8 {
            let at = self.rng.index(self.known.len())?;
            let id = self.known[at];
            let Some(allocation) = self.model.live(id) else {
                self.known.swap_remove(at);
                self.remember_old(id);
                continue;
            };
            found = Some(id);
            let shared = allocation.domain == domain || allocation.deposit.share == Share::Any;
            if foreign || shared && (!evicted || !self.model.is_held(id)) {
                break;
            }
        }
        found
    }

    fn remember_old(&mut self, id: AllocationId) {
        if self.old.len() < 32 {
            self.old.push(id);
        } else if let Some(at) = self.rng.index(self.old.len()) {
            self.old[at] = id;
        }
    }

    fn draw_leases(&mut self, client: u32, open_only: bool) -> Vec<LeaseId> {
        let Some(state) = self.model.clients.get(&client) else { return Vec::new() };
        let candidates: Vec<u64> = state
            .leases
            .iter()
            .copied()
            .filter(|lease| {
                !open_only || self.model.leases.get(lease).is_some_and(|lease| !lease.mapped)
            })
            .take(MAX_BATCH)
            .collect();
        let count = self.rng.skewed(1, 1 + candidates.len() as u64 / 2) as usize;
        let start = self.rng.index(candidates.len()).unwrap_or(0);
        candidates
            .iter()
            .cycle()
            .skip(start)
            .take(count.min(candidates.len()))
            .copied()
            .map(LeaseId)
            .collect()
    }

    fn draw_reply(&mut self, client: u32) -> Option<u64> {
        self.rng.chance(500).then(|| self.next_request(client))
    }

    fn choose_release(&mut self, client: u32, manners: Manners) -> Option<Action> {
        if self.rng.chance(manners.hoard) {
            return None;
        }
        let leases = self.draw_leases(client, false);
        if leases.is_empty() {
            return None;
        }
        let agent = self.agents.get_mut(&client)?;
        agent.old_leases.extend(leases.iter().take(2));
        let excess = agent.old_leases.len().saturating_sub(OLD_LEASES);
        agent.old_leases.drain(..excess);
        let request = self.draw_reply(client);
        Some(Action::Release { client, request, leases })
    }

    fn choose_mapped(&mut self, client: u32) -> Option<Action> {
        let leases = self.draw_leases(client, true);
        let request = self.draw_reply(client);
        (!leases.is_empty()).then_some(Action::Mapped { client, request, leases })
    }

    fn choose_register(&mut self, client: u32) -> Option<Action> {
        let state = self.model.clients.get(&client)?;
        let (has, taken, owned) = (state.credits, state.credits_taken, state.owns.len());
        // It may not know yet that some were taken back.
        let credits = has + if self.rng.chance(300) { taken } else { 0 };
        if owned >= self.setup.owned {
            return self.choose_unregister(client);
        }
        if credits == 0 {
            return self.choose_credits(client);
        }
        let count = self.rng.skewed(1, credits.min(self.setup.batch));
        self.register(client, count)
    }

    /// A register of `count` deposits.
    fn register(&mut self, client: u32, count: u64) -> Option<Action> {
        let deposits = (0..count).map(|_| self.draw_deposit(client)).collect();
        let credits_wanted = match self.rng.below(4) {
            0 => 0,
            1 => u32::MAX,
            _ => self.rng.skewed(0, 300) as u32,
        };
        let (request, deadline) = (self.next_request(client), self.draw_deadline());
        Some(Action::Register { client, request, deposits, credits_wanted, deadline })
    }

    /// A register of 0 items, which waits for credit if the client has none.
    fn choose_credits(&mut self, client: u32) -> Option<Action> {
        self.register(client, 0)
    }

    fn draw_deposit(&mut self, client: u32) -> Arrived {
        let mut arrived = self.fresh_deposit(client);
        let owns = self.model.clients.get(&client).map(|c| c.owns.as_slice()).unwrap_or_default();
        let old = self.rng.pick(owns).and_then(|id| self.model.live(id)).map(|a| a.deposit);
        let Some(old) = old else { return arrived };
        let at = move |base| {
            arrived.judged.map(|it| Judged { claimed: Deposit { base, ..it.claimed }, ..it })
        };
        match self.rng.below(100) {
            // The same deposit again: it is counted.
            0..=7 => return rig::arrived(old),
            // The address was reused.
            8..=14 => arrived.judged = at(old.base),
            // It begins or ends inside a live one.
            15..=19 => arrived.judged = at(old.base.saturating_add(PAGE_BYTES)),
            // Same id, another size.
            20..=21 => {
                let size_bytes = old.facts.size_bytes.saturating_add(PAGE_BYTES);
                let claimed = rig::sized(size_bytes, old.claimed);
                arrived = rig::arrived(Judged { claimed, ..old });
            }
            // The same, and another file.
            22..=23 => {
                let file = self.draw_file();
                arrived = rig::arrived(Judged { file, ..old });
            }
            // The same, on another GPU.
            24..=25 => {
                arrived = rig::arrived(Judged { claimed: on_another_gpu(old.claimed), ..old })
            }
            _ => {}
        }
        arrived
    }

    fn fresh_deposit(&mut self, client: u32) -> Arrived {
        let next_id = self.agents.get_mut(&client).map_or(1, |agent| {
            agent.next_id += 1;
            agent.next_id
        });
        let file = self.draw_file();
        let rng = &mut self.rng;
        let kind = [MemoryKind::DmaBuf, MemoryKind::CudaVmm, MemoryKind::Memfd];
        let share = [Share::Uid, Share::Uid, Share::Any];
        let refused = rng.chance(40);
        let base =
            if rng.chance(100) { 0 } else { 0x10_0000 + rng.below(self.setup.pages) * PAGE_BYTES };
        let driver_data = rng.chance(200).then(|| {
            let mut bytes = [0; 64];
            let length = rng.between(1, 64) as u8;
            bytes[..usize::from(length)].fill(next_id as u8);
            (length, bytes)
        });
        let gpu = [Gpu::NONE, Gpu::cuda([1; 16], 0, false), Gpu::cuda([2; 16], 0, true)];
        // Drawn in this order, or old seeds play otherwise.
        let (device, fd_offset) = (rng.below(2) as u32, rng.below(16) * PAGE_BYTES);
        let (kind, size_bytes) = (kind[rng.below(3) as usize], rng.between(1, 8) * PAGE_BYTES);
        let claimed = Deposit {
            facts: Facts::new(kind, size_bytes)
                .device(device)
                .gpu(gpu[next_id as usize % 3])
                .fd_offset(fd_offset)
                .owner_allocation_id(next_id),
            share: if rng.chance(150) { Share::Gid } else { share[rng.below(3) as usize] },
            recallable: rng.chance(900),
            keep: rng.chance(120),
            base,
            driver_data,
            virtual_fd: false,
        };
        if refused {
            let status = Status::with_value(ErrorCode::UnsupportedFd, FdType::Socket as u64);
            return Arrived { judged: Err(status), lane: Lane::Refused };
        }
        rig::arrived(Judged { claimed, file })
    }

    fn choose_unregister(&mut self, client: u32) -> Option<Action> {
        let owns = self.model.clients.get(&client)?.owns.clone();
        let count = self.rng.skewed(1, 1 + owns.len() as u64 / 4);
        let mut ids: Vec<AllocationId> = Vec::new();
        for _ in 0..count.min(MAX_BATCH as u64) {
            ids.extend(self.rng.pick(&owns));
        }
        let request = self.next_request(client);
        (!ids.is_empty()).then_some(Action::Unregister { client, request, ids })
    }

    fn choose_cancel(&mut self, client: u32) -> Option<Action> {
        let requests: Vec<u64> =
            self.model.clients.get(&client)?.requests.keys().copied().collect();
        let request = self.rng.pick(&requests).unwrap_or(self.rng.below(1000));
        Some(Action::Cancel { client, request })
    }

    fn choose_abuse(&mut self, client: u32) -> Option<Action> {
        let request = self.draw_reply(client);
        match self.rng.below(11) {
            0 | 1 => {
                let leases = self.draw_bad_leases(client);
                Some(Action::Release { client, request, leases })
            }
            2 => {
                let leases = self.draw_bad_leases(client);
                Some(Action::Mapped { client, request, leases })
            }
            3 | 4 => {
                let request = self.next_request(client);
                let ids = (0..self.rng.below(4)).map(|_| self.draw_bad_id()).collect();
                Some(Action::Unregister { client, request, ids })
            }
            5 => {
                let state = self.model.clients.get(&client)?;
                let credits = state.credits + state.credits_taken;
                let count = (credits + self.rng.skewed(1, 8)).min(MAX_BATCH as u64);
                self.register(client, count)
            }
            // A world whose views are compared only now and then cannot tell which recalls are on
            // their way.
            6 if self.model.exact => self.choose_uninvited(client),
            7 => {
                let wanted = (0..self.rng.below(253)).map(|_| Ok(self.draw_forged())).collect();
                let (request, deadline) = (self.next_request(client), self.draw_deadline());
                Some(Action::Acquire { client, request, wanted, deadline })
            }
            8 => self.choose_extreme(client),
            9 if self.rng.chance(100) => {
                let request = self.next_request(client);
                Some(Action::Hello { client, request, own_fds: 1, deadline: self.now })
            }
            _ => Some(Action::Sendable { client, sendable: true }),
        }
    }

    fn draw_bad_leases(&mut self, client: u32) -> Vec<LeaseId> {
        let mut leases = self.draw_leases(client, false);
        leases.extend(leases.clone());
        let old = self.agents.get(&client).map(|agent| agent.old_leases.clone());
        leases.extend(old.unwrap_or_default());
        leases.push(LeaseId(self.rng.below(8)));
        leases.push(LeaseId(self.rng.next()));
        leases.push(LeaseId(u64::MAX));
        let others: Vec<u64> = self.model.leases.keys().take(8).copied().collect();
        leases.extend(self.rng.pick(&others).map(LeaseId));
        leases.truncate(MAX_BATCH);
        leases
    }

    fn draw_bad_id(&mut self) -> AllocationId {
        let forged = self.draw_forged();
        match self.rng.below(3) {
            0 => forged,
            1 => self.rng.pick(&self.old).unwrap_or(forged),
            _ => self.rng.pick(&self.known).unwrap_or(forged),
        }
    }

    /// Answers to recalls that were never sent.
    fn choose_uninvited(&mut self, client: u32) -> Option<Action> {
        let count = self.rng.skewed(1, 6);
        let mut supplies = Vec::new();
        for index in 0..count as u16 {
            let id = self.draw_bad_id();
            let fd = match self.rng.below(3) {
                0 => Err(ErrorCode::Stale),
                _ => Ok(index),
            };
            let refused_fd = fd.is_err().then_some((index, Lane::Refused));
            supplies.push(Supply {
                id,
                fd,
                refused_fd,
                file: None,
                facts: Facts::new(MemoryKind::DmaBuf, PAGE_BYTES),
            });
        }
        Some(Action::Supply { client, supplies })
    }

    /// Sizes and addresses at the end of the number range.
    fn choose_extreme(&mut self, client: u32) -> Option<Action> {
        let credits = self.model.clients.get(&client)?.credits;
        let mut arrived = self.fresh_deposit(client);
        let base = u64::MAX - self.rng.below(3) * PAGE_BYTES;
        let (size_bytes, fd_offset) = (u64::MAX >> self.rng.below(64), u64::MAX);
        arrived.judged = arrived.judged.map(|judged| {
            let facts = judged.facts.size_bytes(size_bytes).fd_offset(fd_offset);
            Judged { claimed: Deposit { base, facts, ..judged.claimed }, ..judged }
        });
        let deposits = if credits > 0 { vec![arrived] } else { Vec::new() };
        let (request, deadline) = (self.next_request(client), u64::MAX >> self.rng.below(30));
        let deadline = deadline.max(self.now);
        Some(Action::Register { client, request, deposits, credits_wanted: u32::MAX, deadline })
    }

    /// Answers recalls that the client has taken: all of them during a rest, otherwise some.
    pub fn choose_supply(&mut self, client: u32) -> Option<Action> {
        let (quiet, agent) = (self.quiet, self.agents.get_mut(&client)?);
        if agent.recalls.is_empty() {
            return None;
        }
        let count = if quiet {
            agent.recalls.len()
        } else {
            self.rng.between(1, agent.recalls.len() as u64) as usize
        };
        let events: Vec<RecallEvent> = agent.recalls.drain(..count.min(MAX_BATCH)).collect();
        let manners = agent.manners;
        let mut fds = 0;
        let supplies =
            events.iter().map(|event| self.answer_recall(event, manners, &mut fds)).collect();
        Some(Action::Supply { client, supplies })
    }

    fn answer_recall(&mut self, event: &RecallEvent, manners: Manners, fds: &mut u16) -> Supply {
        let file = self.model.live(event.id).and_then(|known| self.model.file_now(known));
        let mut supply =
            Supply { id: event.id, fd: Ok(*fds), refused_fd: None, file, facts: event.facts };
        let lies = !self.quiet && self.rng.chance(manners.lie);
        let refuses = !self.quiet && self.rng.chance(manners.refuse);
        if refuses {
            self.stats.refusals += 1;
            // Any code: a client may answer what it likes.
            supply.fd = Err(self.rng.pick(ErrorCode::ALL).unwrap_or(ErrorCode::Again));
            let bad_fd = self.rng.chance(300);
            supply.refused_fd = bad_fd.then_some((*fds, Lane::Refused));
            *fds += u16::from(bad_fd);
            return supply;
        }
        *fds += 1;
        if lies {
            match self.rng.below(3) {
                0 => supply.facts.owner_allocation_id ^= 1 << 40,
                1 if supply.id.slot.is_multiple_of(2) => {
                    supply.facts.gpu = Gpu::cuda([9; 16], 0, false);
                }
                1 => supply.facts.size_bytes += PAGE_BYTES,
                _ => supply.facts.size_bytes = 0,
            }
        } else if self.rng.chance(200) {
            supply.facts.fd_offset = self.rng.below(16) * PAGE_BYTES;
        }
        supply
    }

    /// The leases that the client holds, at most one message of them.
    pub fn all_leases(&self, client: u32) -> Vec<LeaseId> {
        let leases = self.model.clients.get(&client).map(|c| c.leases.as_slice());
        leases.unwrap_or_default().iter().take(MAX_BATCH).copied().map(LeaseId).collect()
    }
}

/// A GPU that no deposit names else.
pub fn on_another_gpu(deposit: Deposit) -> Deposit {
    let gpu = Gpu::cuda([3; 16], 0, false);
    Deposit { facts: deposit.facts.gpu(gpu), ..deposit }
}
