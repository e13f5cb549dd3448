//! The core's operations: an input is a configuration, then acts of clients, closers and time. The
//! target is a daemon without sockets: it applies the effects to a table of fds that it only
//! counts, and has the core check its invariants. Clients may send anything; must never hand in
//! what no daemon would, such as a close that was never begun.

mod objects;

use crate::bytes::Bytes;
use fdbroker_core::{
    Arrived, Body, Caps, CapsOfScopes, ClientId, Config, Core, Declared, Deposit, DomainKey,
    Effect, Effects, Events, Former, FormerLife, FormerSlot, Granted, GroupId, Input, JobKey,
    JobName, Lane, LeaseId, Now, OwnerKey, Peer, Record, Redeposit, RequestId, Supply, Ticket,
    Wanted,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, FdType, MemoryKind, Resource, Scope, Share, Status, Unit,
};
use fdbrokerd::fuzzing;
use std::collections::BTreeSet;

const CLIENTS: u32 = 6;
const SLOTS: u32 = 12;
/// Steps from one check of every sum and list to the next.
const CHECK_EVERY: u32 = 4;
/// Polls at one instant before the core is said to spin.
const MOST_POLLS: u32 = 10_000;

pub fn run(data: &[u8]) {
    play(data).end();
}

/// The ledger that the broker of an input would hand over.
pub fn saved(data: &[u8]) -> Vec<u8> {
    let mut world = play(data);
    world.core.settle_parked(Now(world.now), &mut Effects::default());
    fuzzing::saved(&world.core)
}

fn play(data: &[u8]) -> World {
    let mut bytes = Bytes(data);
    let config = config(&mut bytes);
    let mut world = World::new(config, &mut bytes);
    while !bytes.is_empty() {
        world.act(&mut bytes);
    }
    world
}

/// A small broker, which is soon full.
pub fn config(bytes: &mut Bytes<'_>) -> Config {
    let caps = caps_of_scopes(bytes);
    Config {
        node: caps.node,
        domain: caps.domain,
        job: caps.job,
        client: caps.client,
        table_fds: 262 + u64::from(bytes.u8() & 63),
        max_clients: CLIENTS,
        max_domains: 1 + u32::from(bytes.u8() & 3),
        max_parked_per_client: u32::from(bytes.u8() & 3),
        max_refused_per_domain: u32::from(bytes.u8() & 3),
        max_slots: SLOTS,
        first_generation: if bytes.bool() { u32::MAX - 2 } else { 1 },
        base_credits: u32::from(bytes.u8() & 1),
        max_credits: 1 + u32::from(bytes.u8() & 7),
        recall_timeout_us: 1000,
        keep_ttl_us: 3000,
        object_ttl_us: 3000,
        grace_us: 2000,
        share_factor: 8,
        subordinate_uids: Default::default(),
    }
}

fn caps_of_scopes(bytes: &mut Bytes<'_>) -> CapsOfScopes {
    let (node, domain) = (caps(Scope::Node, bytes), caps(Scope::Domain, bytes));
    CapsOfScopes { node, domain, job: caps(Scope::Job, bytes), client: caps(Scope::Client, bytes) }
}

/// One byte says which resources have a cap, one more byte for each of them how much.
fn caps(scope: Scope, bytes: &mut Bytes<'_>) -> Caps {
    let which = bytes.u8();
    let mut caps = Caps::NONE;
    for (bit, resource) in (0..u8::BITS).zip(Resource::capped()) {
        if which & (1 << bit) == 0 {
            continue;
        }
        let unit = if resource.unit() == Unit::Bytes { 1024 } else { 1 };
        let cap = u64::from(bytes.u8() & 15) * unit;
        if resource.is_capped_in(scope) {
            caps[resource] = cap;
        }
    }
    caps
}

/// What the world knows of a client.
#[derive(Default)]
struct Client {
    is_connected: bool,
    /// The core knows that it is gone; its number is not free yet.
    is_gone: bool,
    /// It is to be disconnected; the core does not know yet that it is gone.
    is_lost: bool,
    leases: Vec<LeaseId>,
    recalls: Vec<AllocationId>,
    next_request: u64,
}

/// The daemon without sockets.
struct World {
    core: Core,
    /// With the present caps.
    config: Config,
    now: u64,
    fx: Effects,
    clients: Vec<Client>,
    /// Handles in circulation.
    known: Vec<AllocationId>,
    /// Groups of objects that were begun.
    groups: Vec<GroupId>,
    /// Slots that have an fd.
    held: BTreeSet<u32>,
    /// Fds in the closers.
    tickets: BTreeSet<Ticket>,
    steps: u32,
}

impl World {
    /// A first broker, or the successor of a killed one.
    fn new(mut config: Config, bytes: &mut Bytes<'_>) -> Self {
        let mut known = Vec::new();
        for slot in (0..SLOTS).take(usize::from(bytes.u8() & 3)) {
            known.push(AllocationId { slot, generation: 1 + u32::from(bytes.u8() & 7) });
        }
        if !known.is_empty() {
            config.first_generation = config.first_generation.max(9);
        }
        let domain = DomainKey::new(0, 1000);
        let owner = OwnerKey { pid: 1, started: 1, random: 1 };
        let share = if bytes.bool() { Share::Any } else { Share::Uid };
        let (kind, gpu, size_bytes) = (MemoryKind::Memfd, fdbroker_protocol::Gpu::NONE, 4096);
        let record =
            Record { domain, gid: 1, kind, gpu, size_bytes, share, recallable: true, owner };
        let code = ErrorCode::Stale;
        let leased = FormerLife::Leased { record, owner_lives: true, code };
        let live = FormerLife::Live { record, owner_lives: true };
        let lives = [live, leased, FormerLife::Ended(code)];
        let slots: Vec<_> = known
            .iter()
            .map(|id| FormerSlot { id: *id, life: lives[bytes.u8() as usize % lives.len()] })
            .collect();
        let former = Former { slots: &slots, kept: &[], groups: &[], last_version: 0 };
        let core = Core::after_crash(config.clone(), former, Now(1));
        World {
            core: core.expect("the numbers can work"),
            config,
            now: 1,
            fx: Effects::default(),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            known,
            groups: Vec::new(),
            held: BTreeSet::new(),
            tickets: BTreeSet::new(),
            steps: 0,
        }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let client = ClientId(bytes.below(CLIENTS as usize) as u32);
        let Client { is_connected, is_gone, .. } = *self.of(client);
        match choice % 24 {
            19 => self.administer(bytes),
            18 => self.restart(),
            17 => self.set_caps(bytes),
            16 => self.pass(bytes),
            15 => self.close_some(bytes),
            _ if is_gone => {}
            _ if !is_connected => self.connect(client, bytes),
            20.. => self.objects(client, bytes),
            0 => self.gone(client),
            1 => {
                let (request, own_fds) = (self.request(client, bytes), u32::from(bytes.u8() >> 4));
                let deadline = self.deadline(bytes);
                self.step(Body::Hello { own_fds, deadline }.by(client, request), 0);
            }
            2 | 3 => self.register(client, bytes),
            4..=6 => self.acquire(client, bytes),
            7 => self.leases(client, bytes),
            8 => {
                let ids = self.some(bytes, Self::id);
                let request = self.request(client, bytes);
                self.step(Body::Unregister { ids: &ids }.by(client, request), 0);
            }
            9 => {
                let request = RequestId(bytes.u8().into());
                self.step(Body::Cancel.by(client, request), 0);
            }
            10 => self.step(Input::Sendable { client, sendable: bytes.bool() }, 0),
            11 | 12 => self.supply(client, bytes),
            13 => self.take_events(client),
            _ => self.after_crash(client, bytes),
        }
    }

    /// An act of the administrator.
    fn administer(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let ids = self.some(bytes, Self::id);
        match what & 3 {
            0 => self.step(Input::Evict { ids: &ids }, 0),
            1 => self.step(Input::Revoke { ids: &ids }, 0),
            _ => self.step(Input::SetDraining { draining: what & 1 != 0 }, 0),
        }
    }

    fn connect(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let domain = DomainKey::new(u32::from(what & 1), u32::from(what >> 1 & 3));
        let groups: &[u32] = if what & 64 != 0 { &[1, 2] } else { &[] };
        let job = (what & 8 != 0).then_some((JobKey(u64::from(what >> 4 & 3)), JobName::NONE));
        let peer = Peer { domain, job, pid: client.0 + 100, gid: u32::from(what >> 7), groups };
        *self.of(client) = Client { is_connected: true, ..Client::default() };
        self.step(Input::Connect { client, peer }, 0);
        if what & 128 == 0 {
            let request = self.request(client, bytes);
            self.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, request), 0);
        }
    }

    fn gone(&mut self, client: ClientId) {
        self.of(client).is_gone = true;
        self.step(Input::Gone { client }, 0);
    }

    fn register(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        let deposits = self.some(bytes, |_, bytes| arrived(bytes));
        let request = self.request(client, bytes);
        let credits_wanted = bytes.u8().into();
        let deadline = self.deadline(bytes);
        let deposits = &deposits;
        let input = Body::Register { deposits, credits_wanted, deadline }.by(client, request);
        self.step(input, deposits.len());
    }

    fn acquire(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        let mut wanted: Vec<Wanted> = self.some(bytes, Self::wanted);
        wanted.extend(wanted.is_empty().then_some(Err(ErrorCode::BadHandle)));
        let request = self.request(client, bytes);
        let deadline = self.deadline(bytes);
        self.step(Body::Acquire { wanted: &wanted, deadline }.by(client, request), 0);
        if bytes.u8() == 2 {
            self.step(Body::AcquireAhead { wanted: &wanted }.by(client, RequestId::ONE_WAY), 0);
        }
        if bytes.u8() == 1 {
            self.unsend();
        }
    }

    /// Tells the core that the grants of the last step could not be sent.
    fn unsend(&mut self) {
        let granted = self.fx.list.iter().filter_map(|effect| match effect {
            Effect::Granted { client, request, range, deadline, seq } => {
                Some((*client, *request, self.fx.granted[range.clone()].to_vec(), *deadline, *seq))
            }
            _ => None,
        });
        for (client, request, grants, deadline, seq) in granted.collect::<Vec<_>>() {
            let state = self.of(client);
            if !state.is_connected || state.is_gone {
                continue;
            }
            let leases: Vec<LeaseId> = grants.iter().map(|grant| grant.lease).collect();
            self.of(client).leases.retain(|lease| !leases.contains(lease));
            self.step(Input::Unsent { client, request, grants: &grants, deadline, seq }, 0);
        }
    }

    fn leases(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let leases: Vec<LeaseId> = self.some(bytes, |world, bytes| {
            let own = world.clients[client.0 as usize].leases.clone();
            match bytes.u8() {
                0 => Some(LeaseId(bytes.u64())),
                // A lease of another client.
                1 => world.clients[bytes.below(CLIENTS as usize)].leases.first().copied(),
                _ => bytes.one_of(&own),
            }
        });
        let request = if what & 1 != 0 { self.request(client, bytes) } else { RequestId::ONE_WAY };
        let leases = &leases[..];
        let body = match what & 2 {
            0 => Body::Release { leases },
            _ => Body::Mapped { leases },
        };
        self.step(body.by(client, request), 0);
    }

    fn supply(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        self.take_events(client);
        let mut next_fd = 0;
        let supplies = self.some(bytes, |world, bytes| {
            let recalled = bytes.one_of(&world.clients[client.0 as usize].recalls);
            let id = if bytes.u8() == 0 { world.id(bytes) } else { recalled.unwrap_or(NOTHING) };
            let what = bytes.u8();
            let mut fd = Err(ErrorCode::ALL[bytes.below(ErrorCode::ALL.len())]);
            let mut refused_fd = None;
            if what & 3 != 0 {
                let index = next_fd;
                next_fd += 1;
                match what & 4 {
                    0 => fd = Ok(index),
                    _ => refused_fd = Some((index, lane(what))),
                }
            }
            let owner_allocation_id = u64::from(what >> 4 & 1);
            let size_bytes = u64::from(what >> 5) * 512;
            let facts =
                Facts::new(MemoryKind::Memfd, size_bytes).owner_allocation_id(owner_allocation_id);
            Supply { id, fd, refused_fd, file: None, facts }
        });
        self.of(client).recalls.clear();
        self.step(
            Body::Supply { supplies: &supplies }.by(client, RequestId::ONE_WAY),
            next_fd.into(),
        );
    }

    /// Names allocations or leases of an earlier broker.
    fn after_crash(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        let request = self.request(client, bytes);
        if bytes.u8() % 8 == 7 {
            let key = OwnerKey { pid: 1, started: 1, random: u64::from(bytes.u8() & 1) };
            self.step(Input::Identify { client, key }, 0);
            return self.step(Body::Complete.by(client, RequestId::ONE_WAY), 0);
        }
        if bytes.bool() {
            let items = self.some(bytes, |world, bytes| Redeposit {
                id: world.wanted(bytes),
                deposit: deposit(bytes).1,
                ended: bytes.u8() % 4 == 3,
            });
            self.step(Body::Redeposit { items: &items }.by(client, request), 0);
        } else {
            let items = self.some(bytes, |world, bytes| Declared {
                wanted: world.wanted(bytes),
                open: bytes.bool(),
            });
            self.step(Body::Declare { items: &items }.by(client, request), 0);
        }
    }

    fn set_caps(&mut self, bytes: &mut Bytes<'_>) {
        let caps = caps_of_scopes(bytes);
        let CapsOfScopes { node, domain, job, client } = caps;
        self.config = Config { node, domain, job, client, ..self.config.clone() };
        self.step(Input::SetCaps { caps: &caps }, 0);
    }

    /// A planned restart: a successor goes on with the saved state.
    fn restart(&mut self) {
        self.fx.clear();
        self.core.settle_parked(Now(self.now), &mut self.fx);
        self.apply(0);
        self.core.check_invariants();
        let saved = fuzzing::saved(&self.core);
        let restored = fuzzing::restored(&saved, &self.config, Now(self.now));
        let mut restored = restored.expect("what was saved can be restored");
        restored.check_invariants();
        assert_eq!(without_peak(&restored), without_peak(&self.core), "saved, restored, saved");
        self.core = restored;
        // The closers end with their process: the successor knows nothing of their fds.
        self.tickets.clear();
        self.tell_the_lost();
    }

    /// Time passes, and the core is polled when due.
    fn pass(&mut self, bytes: &mut Bytes<'_>) {
        self.now += u64::from(bytes.u16() & 4095);
        self.poll();
    }

    fn poll(&mut self) {
        for _ in 0..MOST_POLLS {
            if self.core.poll_timeout().is_none_or(|due| due.0 > self.now) {
                return;
            }
            self.fx.clear();
            self.core.poll(Now(self.now), &mut self.fx);
            self.apply(0);
            self.tell_the_lost();
        }
        panic!("the core wants to be polled again and again");
    }

    fn close_some(&mut self, bytes: &mut Bytes<'_>) {
        for _ in 0..=bytes.u8() & 7 {
            let Some(ticket) = self.tickets.pop_first() else { return };
            self.step(Input::Closed { ticket }, 0);
        }
    }

    fn take_events(&mut self, client: ClientId) {
        while let Some(events) = self.core.take_events(client) {
            let client = self.of(client);
            assert!(client.is_connected && !client.is_gone, "events for nobody");
            match events {
                Events::Recall(recalls) => {
                    assert!(!recalls.is_empty());
                    client.recalls.extend(recalls.iter().map(|recall| recall.id));
                }
                Events::Reclaim(leases) => assert!(!leases.is_empty()),
                Events::Revoked(events) => assert!(!events.is_empty()),
                Events::Drained(events) => assert!(!events.is_empty()),
                Events::Objects(news) => assert!(!news.is_empty()),
            }
        }
    }

    /// Hands an input in, with as many fds, and applies what comes of it.
    fn step(&mut self, input: Input<'_>, fds: usize) {
        self.fx.clear();
        self.core.step(Now(self.now), input, &mut self.fx);
        self.apply(fds);
        self.tell_the_lost();
    }

    /// Tells the core that the clients it disconnected are gone.
    fn tell_the_lost(&mut self) {
        let lost = (0..CLIENTS).filter(|client| self.clients[*client as usize].is_lost);
        for client in lost.collect::<Vec<_>>() {
            // Once, and after everything else, as a daemon does.
            self.clients[client as usize].is_lost = false;
            let kept = std::mem::take(&mut self.fx);
            self.gone(ClientId(client));
            self.fx = kept;
        }
    }

    fn apply(&mut self, fds: usize) {
        let mut arrived: BTreeSet<usize> = (0..fds).collect();
        let list = std::mem::take(&mut self.fx.list);
        for effect in &list {
            match effect {
                Effect::StoreArrived { index, slot } => {
                    assert!(arrived.remove(&usize::from(*index)), "fd {index} is not there");
                    assert!(self.held.insert(*slot), "slot {slot} has an fd");
                }
                Effect::MeetArrived { index, .. } => {
                    assert!(arrived.contains(&usize::from(*index)), "fd {index} is not there");
                }
                Effect::CloseArrived { index, ticket, .. } => {
                    assert!(arrived.remove(&usize::from(*index)), "fd {index} is not there");
                    assert!(self.tickets.insert(*ticket), "{ticket:?} twice");
                }
                Effect::CloseHeld { slot, ticket, .. } => {
                    assert!(self.held.remove(slot), "slot {slot} has no fd");
                    assert!(self.tickets.insert(*ticket), "{ticket:?} twice");
                }
                Effect::Granted { client, range, .. } => {
                    let grants = &self.fx.granted[range.clone()];
                    let slots: Vec<u32> = grants.iter().filter_map(sent_slot).collect();
                    assert!(slots.iter().all(|slot| self.held.contains(slot)), "granted, not held");
                    let leases = grants.iter().filter(|grant| grant.status.is_ok());
                    let leases: Vec<LeaseId> = leases.map(|grant| grant.lease).collect();
                    self.of(*client).leases.extend(leases);
                }
                Effect::Declared { client, range, .. } | Effect::GrantedAhead { client, range } => {
                    let leases = self.fx.granted[range.clone()].iter();
                    let leases = leases.filter(|grant| grant.status.is_ok());
                    let leases: Vec<LeaseId> = leases.map(|grant| grant.lease).collect();
                    self.of(*client).leases.extend(leases);
                }
                Effect::Registered { range, .. } => {
                    let made = &self.fx.registered[range.clone()];
                    let ids = made.iter().filter(|one| one.status.is_ok()).map(|one| one.id);
                    self.known.extend(ids);
                }
                Effect::Publish { slot, .. } => assert!(*slot < SLOTS),
                Effect::Disconnect { client, .. } => {
                    let client = self.of(*client);
                    client.is_lost = client.is_connected && !client.is_gone;
                }
                Effect::Forget { client } => *self.of(*client) = Client::default(),
                Effect::Statuses { range, .. } => assert!(range.end <= self.fx.statuses.len()),
                Effect::ObjectsGot { client, objects, grants, .. } => {
                    let (got, grants) = (&self.fx.objects[objects.clone()], grants.clone());
                    let grants = &self.fx.granted[grants];
                    assert!(got.iter().all(|one| usize::from(one.grant) < grants.len()));
                    let slots: Vec<u32> = grants.iter().filter_map(sent_slot).collect();
                    assert_eq!(slots.len(), grants.len(), "all or none");
                    assert!(slots.iter().all(|slot| self.held.contains(slot)), "got, not held");
                    let leases: Vec<LeaseId> = grants.iter().map(|grant| grant.lease).collect();
                    self.of(*client).leases.extend(leases);
                }
                Effect::ObjectsCreated { group, .. } => self.groups.push(*group),
                Effect::ObjectsSealed { .. }
                | Effect::Keep { .. }
                | Effect::KeptChanged { .. }
                | Effect::Unkeep { .. }
                | Effect::Welcome { .. }
                | Effect::Failed { .. }
                | Effect::Events { .. }
                | Effect::Ended { .. } => {}
            }
        }
        self.fx.list = list;
        assert!(arrived.is_empty(), "fds that nothing was done with: {arrived:?}");
        self.steps += 1;
        if self.steps.is_multiple_of(CHECK_EVERY) {
            self.core.check_invariants();
        }
    }

    /// All clients go, time passes: nothing may be left.
    fn end(&mut self) {
        for client in (0..CLIENTS).map(ClientId) {
            let Client { is_connected, is_gone, .. } = *self.of(client);
            if is_connected && !is_gone {
                self.gone(client);
            }
        }
        for _ in 0..16 {
            self.now += 10_000;
            self.poll();
            while let Some(ticket) = self.tickets.pop_first() {
                self.step(Input::Closed { ticket }, 0);
            }
        }
        self.core.check_invariants();
        let totals = self.core.totals();
        assert!(totals.node.is_zero(), "{totals:?}");
        assert!(
            self.held.is_empty()
                && totals.gauges.stored_fds == 0
                && totals.node.now(Resource::ParkedRequests) == 0
        );
    }

    fn of(&mut self, client: ClientId) -> &mut Client {
        &mut self.clients[client.0 as usize]
    }

    fn request(&mut self, client: ClientId, bytes: &mut Bytes<'_>) -> RequestId {
        // A client may use a number twice.
        if bytes.u8() == 1 {
            return RequestId(1);
        }
        let client = self.of(client);
        client.next_request += 1;
        RequestId(client.next_request)
    }

    fn deadline(&self, bytes: &mut Bytes<'_>) -> Now {
        Now(self.now + u64::from(bytes.u8()) * 16)
    }

    fn id(&mut self, bytes: &mut Bytes<'_>) -> AllocationId {
        let known = bytes.one_of(&self.known);
        match bytes.u8() {
            0 => AllocationId { slot: bytes.u32(), generation: bytes.u32() },
            _ => known.unwrap_or(NOTHING),
        }
    }

    fn wanted(&mut self, bytes: &mut Bytes<'_>) -> Wanted {
        match bytes.u8() {
            0 => Err(ErrorCode::WrongNode),
            _ => Ok(self.id(bytes)),
        }
    }

    /// Up to seven items, made one by one; `None` is left out.
    fn some<T, R: Into<Option<T>>>(
        &mut self,
        bytes: &mut Bytes<'_>,
        mut one: impl FnMut(&mut Self, &mut Bytes<'_>) -> R,
    ) -> Vec<T> {
        let count = bytes.u8() & 7;
        (0..count).filter_map(|_| one(self, bytes).into()).collect()
    }
}

/// The state that would be saved, without the table's peak: in a broker that has done nothing yet
/// it has the reserve.
pub fn without_peak(core: &Core) -> String {
    let text = format!("{:?}", core.save());
    let (before, after) = text.split_once("table_peak: ").expect("a field of it");
    format!("{before}{}", after.split_once(',').expect("others follow").1)
}

/// An id that no allocation has.
const NOTHING: AllocationId = AllocationId { slot: 0, generation: 0 };

/// The slot whose fd goes with a grant.
fn sent_slot(grant: &Granted) -> Option<u32> {
    grant.wanted.ok().filter(|_| grant.status.is_ok()).map(|id| id.slot)
}

fn lane(what: u8) -> Lane {
    if what & 8 != 0 { Lane::Accepted } else { Lane::Refused }
}

fn arrived(bytes: &mut Bytes<'_>) -> Arrived {
    let (what, deposit) = deposit(bytes);
    if what & 7 == 7 {
        let refused = Status::with_value(ErrorCode::UnsupportedFd, FdType::Pipe as u64);
        return Arrived { judged: Err(refused), lane: lane(what) };
    }
    Arrived { judged: Ok(deposit.into()), lane: Lane::Accepted }
}

/// A deposit, and a number to draw more from.
fn deposit(bytes: &mut Bytes<'_>) -> (u8, Deposit) {
    let (what, more) = (bytes.u8(), bytes.u8());
    let kind = MemoryKind::ALL[usize::from(what >> 4) % MemoryKind::ALL.len()];
    let size_bytes = u64::from(more >> 5) * 512 + 512;
    let deposit = Deposit {
        facts: Facts::new(kind, size_bytes).owner_allocation_id(u64::from(more >> 4 & 1)),
        share: Share::ALL[usize::from(what >> 6) % Share::ALL.len()],
        recallable: more & 1 != 0,
        keep: more & 6 == 6,
        // Some deposits overlap.
        base: u64::from(more >> 3 & 3) * 1024,
        driver_data: (what & 8 != 0).then_some((3, [7; 64])),
        virtual_fd: false,
    };
    (what, deposit)
}
