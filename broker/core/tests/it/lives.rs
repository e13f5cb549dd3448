//! Tests of what outlives an owner or a broker: keep, share by group, restart, crash.

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
    let domain = DomainKey { listener: 0, uid: 1000 };
    Record { domain, gid: 100, share: Share::Uid, recallable: true, owner: KEY }
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

    pub(super) fn declare(
        &mut self,
        client: ClientId,
        id: AllocationId,
        open: bool,
    ) -> Result<LeaseId, Status> {
        let request = self.request();
        let items = &[Declared { wanted: Ok(id), open }];
        self.step(Body::Declare { items }.by(client, request));
        let granted = self.fx.granted[0];
        if granted.status.is_ok() { Ok(granted.lease) } else { Err(granted.status) }
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
    let held: Vec<_> = world.core.allocations(0).map(|view| view.id).collect();
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
fn restart_when_anything_is_under_way_then_the_successor_knows_it_all() {
    let mut world = a_full_world();
    let before: Vec<_> = world.core.allocations(0).collect();
    let leases: Vec<_> = world.core.leases(0).collect();
    let events = [OWNER, USER, OTHER];
    world.restart(node_fds(12));
    assert_eq!(world.core.allocations(0).collect::<Vec<_>>(), before);
    assert_eq!(world.core.leases(0).collect::<Vec<_>>(), leases);
    // What was to be told before is told after.
    assert!(matches!(world.core.take_events(OTHER), Some(Events::Revoked(_))));
    assert!(events.into_iter().all(|client| world.core.take_events(client).is_none()));
}

#[test]
fn restart_when_requests_are_parked_then_each_is_answered_again_first() {
    let (mut world, id) = one_evicted();
    let request = world.acquire(USER, &[Ok(id)], 1000);
    world.close_all();
    world.fx.clear();
    world.core.settle_parked(world.now, &mut world.fx);
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, request), Some(ErrorCode::Again.into()));
    // The recall stays under way.
    world.restart(node_fds(2));
    assert_eq!(world.state(id), AllocationState::Recalling);
    assert!(matches!(world.core.take_events(OWNER), Some(Events::Recall(_))));
    world.supply(id, Ok(0), 1);
    assert_eq!(world.state(id), AllocationState::Held);
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
    assert_eq!(world.core.leases(0).count(), leases);
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

#[test]
fn restart_when_a_slot_was_freed_then_its_pair_is_never_given_again() {
    let config = Config { max_slots: 1, ..config() };
    let mut world = World::new(config.clone());
    let old = world.register(deposit(1)).id;
    world.unregister(OWNER, old);
    world.restart(config);
    let new = world.register(deposit(2)).id;
    assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
}

/// Numbers of the serde form that no rule binds, in [`a_full_world`]: any value of them is sound.
/// The second half is made again from the rest by whoever reads it.
const UNBOUND: [&str; 19] = [
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
fn redeposit_when_reserved_then_evicted_under_its_old_id_and_who_waited_is_served() {
    let mut world = crashed(config(), &[id(3, 9)], &[]);
    assert_eq!(world.core.reserved(), 1);
    let request = world.acquire(USER, &[Ok(id(3, 9))], 500);
    assert!(world.fx.list.is_empty(), "it waits");
    assert!(world.redeposit(OWNER, id(3, 9), deposit(1)).is_ok());
    assert_eq!(world.core.reserved(), 0);
    assert_eq!(world.client(OWNER).account.now(Resource::Allocations), 1);
    assert_eq!(world.state(id(3, 9)), AllocationState::Recalling);
    assert!(matches!(world.core.take_events(OWNER), Some(Events::Recall(_))));
    let effects = world.supply(id(3, 9), Ok(0), 1);
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
    assert_eq!(
        world.core.poll_timeout(),
        Some(Now(1_000_000)),
        "the grace time alone is waited for"
    );
}

#[test]
fn redeposit_when_not_of_before_the_crash_or_anothers_then_refused() {
    let mut world = crashed(config(), &[id(3, 9)], &[]);
    let new = world.register(deposit(2)).id;
    let code = |status: Status| status.result().err();
    assert_eq!(code(world.redeposit(OWNER, new, deposit(2))), Some(ErrorCode::Stale));
    assert_eq!(code(world.redeposit(USER, new, deposit(2))), Some(ErrorCode::NotPermitted));
    assert_eq!(code(world.redeposit(USER, id(3, 8), deposit(1))), Some(ErrorCode::Stale));
    assert_eq!(code(world.redeposit(USER, id(9, 200), deposit(1))), Some(ErrorCode::Stale));
    assert!(world.redeposit(OWNER, id(3, 9), deposit(1)).is_ok());
    assert_eq!(code(world.redeposit(USER, id(3, 9), deposit(1))), Some(ErrorCode::NotPermitted));
    assert!(world.redeposit(OWNER, id(3, 9), deposit(1)).is_ok(), "counted");
    assert_eq!(world.unregister(OWNER, id(3, 9)), Status::OK);
    assert_eq!(world.unregister(OWNER, id(3, 9)), Status::OK);
    assert_eq!(world.unregister(OWNER, id(3, 9)).result(), Err(ErrorCode::Stale));
}

#[test]
fn redeposit_when_a_cap_is_full_then_no_quota_and_it_may_try_again() {
    let client = Caps { allocations: 1, ..Caps::NONE };
    let mut world = crashed(Config { client, ..config() }, &[id(3, 9)], &[]);
    let other = world.register(deposit(2)).id;
    assert_eq!(world.redeposit(OWNER, id(3, 9), deposit(1)).result(), Err(ErrorCode::NoQuota));
    world.unregister(OWNER, other);
    assert!(world.redeposit(OWNER, id(3, 9), deposit(1)).is_ok());
}

#[test]
fn redeposit_when_the_address_is_used_again_then_stale_and_holders_are_told() {
    let mut world = crashed(config(), &[id(3, 9)], &[]);
    world.declare(USER, id(3, 9), true).expect("reserved");
    world.register(deposit(1));
    assert_eq!(world.redeposit(OWNER, id(3, 9), deposit(1)).result(), Err(ErrorCode::Stale));
    assert!(matches!(world.core.take_events(USER), Some(Events::Revoked(_))));
}

#[test]
fn declare_when_of_before_the_crash_then_charged_and_capped_and_of_after_it_stale() {
    let client = Caps { open_leases: 1, ..Caps::NONE };
    let mut world = crashed(Config { client, ..config() }, &[id(3, 9)], &[]);
    let lease = world.declare(USER, id(3, 9), true).expect("reserved");
    assert_eq!(world.client(USER).account.now(Resource::OpenLeases), 1);
    let refused = world.declare(USER, id(3, 9), true).expect_err("full");
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    world.declare(USER, id(3, 9), false).expect("mapped has no cap");
    let born = world.register(deposit(2)).id;
    let stale = world.declare(USER, born, true).expect_err("born after");
    assert_eq!(stale.result(), Err(ErrorCode::Stale));
    let gone = world.declare(USER, id(4, 9), true).expect_err("was not live");
    assert_eq!(gone.result(), Err(ErrorCode::Stale));
    assert!(world.release(USER, lease).is_ok());
}

#[test]
fn grace_when_over_then_what_nobody_named_ends_in_bounded_steps() {
    let live: Vec<_> = (0..700).map(|slot| id(slot, 9)).collect();
    let mut world = crashed(config(), &live, &[]);
    world.declare(USER, id(5, 9), true).expect("reserved");
    let request = world.acquire(OTHER, &[Ok(id(699, 9))], 60_000);
    let effects = world.at(1000);
    assert_eq!(answer(&world, &effects, request), Some(ErrorCode::OwnerGone.into()));
    let is_end = |effect: &&Effect| matches!(effect, Effect::Publish { generation: 0, .. });
    let mut ended = effects.iter().filter(is_end).count();
    while world.core.reserved() > 0 {
        assert_eq!(world.core.poll_timeout(), Some(Now(0)));
        let ends = world.at(1000).iter().filter(is_end).count();
        assert!((1..=limits::RESERVED_ENDS_PER_STEP).contains(&ends), "{ends}");
        ended += ends;
    }
    assert_eq!(ended, 700);
    assert!(
        matches!(world.core.take_events(USER), Some(Events::Revoked(told)) if told[0].code == ErrorCode::OwnerGone)
    );
    assert_eq!(world.redeposit(OWNER, id(7, 9), deposit(1)).result(), Err(ErrorCode::OwnerGone));
    world.acquire(USER, &[Ok(id(7, 9)), Ok(id(7, 99)), Ok(id(7, 100))], 0);
    let codes: Vec<_> = world.fx.granted.iter().map(|item| item.status.result().err()).collect();
    assert_eq!(codes, [ErrorCode::OwnerGone, ErrorCode::Stale, ErrorCode::Stale].map(Some));
}

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
        assert!(fx.list.len() <= limits::RESERVED_ENDS_PER_STEP);
        ended += fx.list.len();
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

#[test]
fn after_crash_when_a_kept_fd_is_there_then_granted_at_once_and_adopted_by_its_owner() {
    let mut before = World::new(config());
    let kept_id = before.register(kept_deposit(1)).id;
    let kept = before.core.kept(kept_id.slot).expect("it is kept");
    let mut world = crashed(config(), &[kept_id], &[kept]);
    assert_eq!(world.core.kept(kept_id.slot), Some(kept));
    assert_eq!(world.core.driver_data(kept_id), Some((3, &[7; 64])));
    world.grant(USER, kept_id);
    assert!(world.redeposit(OWNER, kept_id, kept_deposit(1)).is_ok());
    assert_eq!(world.client(OWNER).account.now(Resource::KeptAllocations), 1);
    assert_eq!(world.client(OWNER).account.now(Resource::HeldBytes), 4096);
}

#[test]
fn after_crash_when_more_is_kept_than_the_caps_allow_now_then_it_stays_and_none_is_added() {
    let mut before = World::new(config());
    let ids = [1, 2].map(|base| before.register(kept_deposit(base)).id);
    let kept = ids.map(|id| before.core.kept(id.slot).expect("it is kept"));
    let node = Caps { kept_allocations: 1, ..Caps::NONE };
    let mut world = crashed(Config { node, ..config() }, &ids, &kept);
    world.grant(USER, ids[0]);
    world.grant(USER, ids[1]);
    assert_eq!(world.register(kept_deposit(3)).status.result(), Err(ErrorCode::NoQuota));
    world.at(1000);
    assert!(world.register(kept_deposit(3)).status.is_ok());
}

// --- keep ---------------------------------------------------------------------------------------

#[test]
fn keep_when_its_owner_dies_then_it_lives_for_the_ttl_charged_to_the_domain() {
    let mut world = World::new(config());
    let kept = world.register(kept_deposit(1)).id;
    assert!(world.fx.list.contains(&Effect::Keep { slot: kept.slot }));
    let effects = world.gone(OWNER);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Publish { .. })), "{effects:?}");
    let lease = world.grant(USER, kept);
    let domain = world.core.domains(0).next().expect("one").account;
    assert_eq!(domain.now(Resource::KeptAllocations), 1);
    assert_eq!(world.client(USER).account.now(Resource::KeptAllocations), 0);
    world.at(999);
    world.grant(USER, kept);
    let effects = world.at(1000);
    let at = |wanted: fn(&Effect) -> bool| effects.iter().position(wanted);
    let unkept = at(|effect| matches!(effect, Effect::Unkeep { .. })).expect("unkept");
    assert!(unkept < at(|effect| matches!(effect, Effect::CloseHeld { .. })).expect("closed"));
    world.acquire(USER, &[Ok(kept)], 0);
    assert_eq!(world.fx.granted[0].status.result(), Err(ErrorCode::OwnerGone));
    assert_eq!(world.now_of(Resource::KeptAllocations), 0);
    assert!(world.release(USER, lease).is_ok());
    world.close_all();
}

#[test]
fn keep_when_its_cap_is_full_then_no_quota_names_it_on_every_level() {
    let one = Caps { kept_allocations: 1, ..Caps::NONE };
    for (config, scope) in [
        (Config { client: one, ..config() }, Scope::Client),
        (Config { domain: one, ..config() }, Scope::Domain),
        (Config { node: one, ..config() }, Scope::Node),
    ] {
        let mut world = World::new(config);
        world.register(kept_deposit(1));
        let refused = world.register(kept_deposit(2)).status;
        assert_eq!(refused, Status::no_quota(Resource::KeptAllocations, scope, 1, 4000));
        assert!(world.register(deposit(3)).status.is_ok());
    }
}

#[test]
fn keep_when_room_is_needed_then_never_evicted() {
    let mut world = World::new(node_fds(2));
    let kept = world.register(kept_deposit(1)).id;
    world.register(deposit(2));
    world.register(deposit(3));
    assert_eq!(world.state(kept), AllocationState::Resident);
}

#[test]
fn keep_when_a_successor_of_its_domain_has_the_token_then_adopted_with_all_charges() {
    let mut world = World::new(config());
    let kept = world.register(kept_deposit(1)).id;
    assert_eq!(
        world.redeposit(USER, kept, kept_deposit(1)).result(),
        Err(ErrorCode::NotPermitted),
        "its owner lives"
    );
    world.gone(OWNER);
    let stranger = ClientId(4);
    world.connect(stranger, 2000);
    let refused = world.redeposit(stranger, kept, kept_deposit(1));
    assert_eq!(refused.result(), Err(ErrorCode::NotPermitted));
    let larger = sized(8192, kept_deposit(1));
    assert_eq!(world.redeposit(USER, kept, larger).result(), Err(ErrorCode::Protocol));
    assert!(world.redeposit(USER, kept, kept_deposit(9)).is_ok());
    assert_eq!(world.client(USER).account.now(Resource::KeptAllocations), 1);
    world.at(5000);
    world.grant(OTHER, kept);
    assert_eq!(world.unregister(USER, kept), Status::OK);
    assert_eq!(world.state(kept), AllocationState::Ended);
}

#[test]
fn keep_when_named_again_after_a_crash_without_its_fd_then_kept_from_the_first_recall_on() {
    let mut world = crashed(config(), &[id(3, 9)], &[]);
    assert!(world.redeposit(OWNER, id(3, 9), kept_deposit(1)).is_ok());
    assert_eq!(world.core.kept(3), None);
    let request = world.acquire(USER, &[Ok(id(3, 9))], 500);
    let effects = world.supply(id(3, 9), Ok(0), 1);
    assert!(effects.contains(&Effect::Keep { slot: 3 }));
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
    assert_eq!(world.state(id(3, 9)), AllocationState::Resident);
    assert!(world.core.kept(3).is_some());
}

// --- share --------------------------------------------------------------------------------------

#[test]
fn share_when_by_group_then_those_of_the_owners_group_on_its_listener_alone() {
    let mut world = World::new(config());
    let shared = world.register(Deposit { share: Share::Gid, ..deposit(1) }).id;
    let mut code = |client, listener, uid, gid, groups: &[u32]| {
        let (client, domain) = (ClientId(client), DomainKey { listener, uid });
        let peer = Peer { domain, job: None, pid: 1, gid, groups };
        world.step(Input::Connect { client, peer });
        world.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1)));
        world.acquire(client, &[Ok(shared)], 0);
        world.fx.granted[0].status.result().err()
    };
    assert_eq!(code(4, 0, 2000, 100, &[]), None);
    assert_eq!(code(5, 0, 2001, 7, &[3, 100, 200]), None);
    assert_eq!(code(6, 0, 2002, 7, &[3, 200]), Some(ErrorCode::NotPermitted));
    assert_eq!(code(7, 1, 2003, 100, &[100]), Some(ErrorCode::NotPermitted));
    assert_eq!(code(8, 0, 1000, 7, &[]), None, "the same user");
}
