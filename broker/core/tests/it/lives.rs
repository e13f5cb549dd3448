//! Tests of lives: work that a restart or a crash meets, and states that are refused.

use super::*;
use fdbroker_core::limits::{LEASES_SWEPT_PER_STEP, TEARDOWN_PER_STEP};
use std::collections::BTreeSet;

pub(super) fn id(slot: u32, generation: u32) -> AllocationId {
    AllocationId { slot, generation }
}

/// One of before a crash.
pub(super) const SLOT: AllocationId = AllocationId { slot: 3, generation: 9 };

/// What the owner was known by, and is known by again.
pub(super) const KEY: OwnerKey = OwnerKey { pid: 4000, started: 5, random: 7 };

/// What was remembered of a deposit of the owner.
pub(super) fn record() -> Record {
    let domain = DomainKey::new(0, 1000);
    Record {
        domain,
        gid: 100,
        kind: fdbroker_protocol::MemoryKind::Memfd,
        gpu: fdbroker_protocol::Gpu::NONE,
        size_bytes: deposit(1).facts.size_bytes,
        share: Share::Uid,
        recallable: true,
        owner: KEY,
    }
}

/// What was remembered when these were live.
pub(super) fn former(live: &[AllocationId]) -> Vec<FormerSlot> {
    let life = FormerLife::Live { record: record(), owner_lives: true };
    live.iter().map(|id| FormerSlot { id: *id, life }).collect()
}

pub(super) fn kept_deposit(base: u64) -> Deposit {
    Deposit { keep: true, driver_data: Some((3, [7; 64])), ..deposit(base) }
}

/// After a crash in which these were live.
pub(super) fn crashed(config: Config, live: &[AllocationId], kept: &[Kept]) -> World {
    let config = Config { first_generation: 100, ..config };
    let slots = former(live);
    let core =
        Core::after_crash(config, Former { slots: &slots, kept, ..Former::default() }, Now(0))
            .expect("it fits");
    let mut world = World { core, now: Now(0), fx: Effects::default(), requests: 100 };
    for client in [OWNER, USER, OTHER] {
        world.connect(client, 1000);
    }
    world.step(Input::Identify { client: OWNER, key: KEY });
    world
}

impl World {
    pub(super) fn redeposit(
        &mut self,
        client: ClientId,
        id: AllocationId,
        deposit: Deposit,
    ) -> Status {
        self.name(client, Redeposit { id: Ok(id), deposit, ended: false })
    }

    pub(super) fn name(&mut self, client: ClientId, item: Redeposit) -> Status {
        let request = self.request();
        let items = &[item];
        self.step(Body::Redeposit { items }.by(client, request));
        self.fx.registered[0].status
    }

    pub(super) fn gone(&mut self, client: ClientId) -> Vec<Effect> {
        self.step(Input::Gone { client })
    }

    /// A successor goes on: with a state that is the same, saved again.
    pub(super) fn restart(&mut self, config: Config) {
        self.fx.clear();
        self.core.settle_parked(self.now, &mut self.fx);
        let saved = self.core.save();
        self.core = Core::restore(config, saved.clone(), self.now).expect("it is sound");
        assert_eq!(self.core.save(), saved);
        self.core.check_invariants();
    }
}

// --- restart ------------------------------------------------------------------------------------

/// A broker with a bit of everything: held, evicted, recalled, ended and leased, kept without an
/// owner.
fn a_full_world() -> World {
    let mut world = World::new(node_fds(12));
    for base in 1..=4 {
        world.register(deposit(base));
        world.close_all();
    }
    world.register(kept_deposit(5));
    let held: Vec<_> = world.core.allocations(0..u32::MAX).map(|view| view.id).collect();
    world.grant(USER, held[2]);
    let mapped = world.grant(OTHER, held[3]);
    world.step(Body::Mapped { leases: &[mapped] }.by(OTHER, RequestId::ONE_WAY));
    world.unregister(OWNER, held[3]);
    let next = ClientId(5);
    world.connect(next, 2000);
    world.step(Body::Acquire { wanted: &[Ok(held[0])], deadline: Now(9) }.by(next, RequestId(7)));
    world
}

#[test]
fn restart_when_the_last_step_has_swept_all_that_it_may_then_the_rest_is_swept_before() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    let leases = 2 * LEASES_SWEPT_PER_STEP + 1;
    for _ in 0..leases {
        world.grant(USER, id);
    }
    world.unregister(OWNER, id);
    assert!(world.core.totals().gauges.leases_ending > 0, "one step does not sweep them all");
    world.restart(config());
    assert_eq!(world.core.leases(0..u32::MAX).count(), leases);
    assert_eq!(world.core.totals().gauges.leases_ending, 0);
}

#[test]
fn restart_when_an_owner_of_much_is_being_torn_down_then_all_that_it_kept_lives_for_the_ttl() {
    let mut world = World::new(config());
    let all: Vec<_> = (0..TEARDOWN_PER_STEP as u64 * 2 + 1)
        .map(|base| world.register(kept_deposit(base * 4096 + 4096)).id)
        .collect();
    world.at(5000);
    world.gone(OWNER);
    world.restart(config());
    for ms in [5001, 5002, 5999] {
        world.at(ms);
    }
    assert!(all.iter().all(|id| world.core.kept(id.slot).is_some_and(|kept| kept.id == *id)));
    // Each portion lives on from when it was torn down.
    while world.core.poll_timeout().is_some_and(|due| due <= Now(6002 * MS)) {
        world.at(6002);
    }
    assert!(all.iter().all(|id| world.core.kept(id.slot).is_none()));
}

#[test]
fn restart_when_the_caps_are_lower_then_what_is_there_stays_and_nothing_is_added() {
    let mut world = World::new(config());
    let one = world.register(deposit(1)).id;
    world.grant(USER, one);
    world.grant(USER, one);
    let client = Caps { open_leases: 1, ..Caps::NONE };
    world.restart(Config { client, ..config() });
    world.acquire(USER, &[Ok(one)], 0);
    assert_eq!(world.fx.granted[0].status.result(), Err(ErrorCode::NoQuota));
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 2);
}

/// Numbers of the serde form that no rule binds, in [`a_full_world`]: any value of them is sound.
/// The second half is made again from the rest by whoever reads it.
const UNBOUND: [&str; 20] = [
    "/allocations/entries/content/Full/device",
    "/allocations/entries/content/Full/file",
    "/allocations/entries/content/Full/owner_allocation_id",
    "/allocations/entries/content/Full/state/Ended",
    "/beside/driver_data",
    "/clients/gid",
    "/clients/key/pid",
    "/clients/key/random",
    "/clients/key/started",
    "/clients/pid",
    "/domains/entries/content/Full/key/listener",
    "/domains/entries/content/Full/key/pod",
    "/domains/entries/content/Full/key/uid",
    "/leases/entries/content/Full/asked",
    "/peaks",
    "/table_peak",
    "/clients/act",
    "/clients/scope",
    "/domains/entries/content/Full/scope",
    "/domains/entries/content/Full/clients",
];

/// Changes each number of the serde form. Unless nothing depends on it, a rule refuses some of
/// these changes.
#[test]
fn restore_when_the_data_is_damaged_then_refused_or_sound_and_never_a_panic() {
    let mut world = a_full_world();
    world.core.settle_parked(world.now, &mut world.fx);
    let saved = world.core.save();
    let sound = serde_json::to_value(&saved).expect("plain data");
    let mut leaves = Vec::new();
    numbers(&sound, &mut String::new(), &mut leaves);
    let (mut bound, mut all) = (BTreeSet::new(), BTreeSet::new());
    for path in &leaves {
        let is_name = |part: &&str| part.parse::<u32>().is_err();
        let field = path.split('/').filter(is_name).collect::<Vec<_>>().join("/");
        for change in [
            |_| 0,
            |n: u64| n.wrapping_add(1),
            |n| n ^ 1,
            |_| 4_294_967_295,
            |_| u64::MAX,
            |n| n + 40,
        ] {
            let mut damaged = sound.clone();
            let leaf = damaged.pointer_mut(path).expect("it is there");
            *leaf = change(leaf.as_u64().expect("a number")).into();
            let Ok(damaged) = serde_json::from_value::<Saved>(damaged) else { continue };
            match Core::restore(node_fds(12), damaged, Now(0)) {
                Err(_) => _ = bound.insert(field.clone()),
                Ok(core) => {
                    let mut world =
                        World { core, now: Now(0), fx: Effects::default(), requests: 900 };
                    world.core.check_invariants();
                    // It works on, to the end of everybody.
                    let clients: Vec<_> = world.core.clients(0).map(|view| view.id).collect();
                    for client in clients {
                        while world.core.take_events(client).is_some() {}
                        world.gone(client);
                    }
                    (1..9).for_each(|second| drop(world.at(second * 1_000_000)));
                }
            }
        }
        all.insert(field);
    }
    let unbound = all.difference(&bound).map(String::as_str);
    assert_eq!(unbound.collect::<BTreeSet<_>>(), BTreeSet::from(UNBOUND));
}

/// Where the numbers are, as JSON pointers.
fn numbers(value: &serde_json::Value, path: &mut String, found: &mut Vec<String>) {
    let mut below = |key: &str, value| {
        let length = path.len();
        path.push('/');
        path.push_str(key);
        numbers(value, path, found);
        path.truncate(length);
    };
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| below(key, value));
        }
        serde_json::Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| below(&at.to_string(), value));
        }
        serde_json::Value::Number(number) if number.is_u64() => found.push(path.clone()),
        _ => {}
    }
}

// --- crash --------------------------------------------------------------------------------------

#[test]
fn grace_when_a_million_are_reserved_then_no_step_ends_more_than_its_share() {
    let ids: Vec<_> = (0..1_000_000).map(|slot| id(slot, 1)).collect();
    let slots = former(&ids);
    let config = Config { max_slots: 1_000_000, first_generation: 2, ..config() };
    let mut core =
        Core::after_crash(config, Former { slots: &slots, kept: &[], ..Former::default() }, Now(0))
            .expect("fits");
    let (mut fx, mut steps, mut ended) = (Effects::default(), 0, 0);
    while core.reserved() > 0 {
        fx.clear();
        core.poll(Now(1_000_000), &mut fx);
        assert!(fx.ended.len() <= limits::RESERVED_ENDS_PER_STEP);
        ended += fx.ended.len();
        steps += 1;
        assert!(steps < 2 * 1_000_000 / limits::RESERVED_ENDS_PER_STEP, "it does not end");
    }
    assert_eq!(ended, 1_000_000);
    core.check_invariants();
}

#[test]
fn after_crash_when_the_page_does_not_fit_then_refused() {
    let wrong: [&[AllocationId]; 4] =
        [&[id(3, 0)], &[id(2000, 1)], &[id(3, 100)], &[id(3, 1), id(3, 2)]];
    for live in wrong {
        let config = Config { first_generation: 100, ..config() };
        let slots = former(live);
        let former = Former { slots: &slots, kept: &[], ..Former::default() };
        assert!(Core::after_crash(config, former, Now(0)).is_err(), "{live:?}");
    }
}
