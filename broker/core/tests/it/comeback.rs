//! Tests of coming back after a crash: who may do what in the grace time, and what an end is
//! called.

use super::lives::{KEY, SLOT, crashed, id, kept_deposit, record};
use super::*;
use std::collections::BTreeSet;

const STRANGER: ClientId = ClientId(4);
/// A client of the owner's process, in the same domain.
const SECOND: OwnerKey = OwnerKey { random: 8, ..KEY };

impl World {
    /// The status of one handle, not waited for.
    fn code(&mut self, client: ClientId, id: AllocationId) -> Option<ErrorCode> {
        self.acquire(client, &[Ok(id)], 0);
        self.fx.granted[0].status.result().err()
    }

    fn complete(&mut self, client: ClientId) {
        self.step(Body::Complete.by(client, RequestId::ONE_WAY));
        self.poll_all();
    }

    /// Until nothing is due now.
    pub(super) fn poll_all(&mut self) {
        while self.core.poll_timeout().is_some_and(|due| due <= self.now) {
            self.fx.clear();
            self.core.poll(self.now, &mut self.fx);
            self.core.check_invariants();
        }
    }
}

fn crashed_with(slots: &[FormerSlot]) -> World {
    let config = Config { first_generation: 100, ..config() };
    let core = Core::after_crash(config, Former { slots, kept: &[], ..Former::default() }, Now(0))
        .expect("it fits");
    let mut world = World { core, now: Now(0), fx: Effects::default(), requests: 100 };
    for client in [OWNER, USER, OTHER] {
        world.connect(client, 1000);
    }
    world.step(Input::Identify { client: OWNER, key: KEY });
    world.poll_all();
    world
}

fn live(slot: u32, record: Record) -> FormerSlot {
    FormerSlot { id: id(slot, 9), life: FormerLife::Live { record, owner_lives: true } }
}

// --- the grace time -----------------------------------------------------------------------------

#[test]
fn grace_when_a_client_of_another_domain_has_handle_and_token_then_not_permitted_as_in_life() {
    let mut world = crashed(config(), &[SLOT], &[]);
    world.connect(STRANGER, 2000);
    assert_eq!(world.code(STRANGER, SLOT), Some(ErrorCode::NotPermitted));
    let declared = world.declare(STRANGER, SLOT, true).expect_err("another user's");
    assert_eq!(declared.result(), Err(ErrorCode::NotPermitted));
    let named = world.redeposit(STRANGER, SLOT, deposit(1));
    assert_eq!(named.result(), Err(ErrorCode::NotPermitted));
    assert_eq!(world.code(USER, SLOT), Some(ErrorCode::Again), "its own domain waits");
    assert!(world.redeposit(OWNER, SLOT, deposit(1)).is_ok());
}

#[test]
fn grace_when_shared_with_any_or_a_group_then_those_wait_and_declare_and_nobody_else() {
    let any = live(3, Record { share: Share::Any, ..record() });
    let group = live(4, Record { share: Share::Gid, gid: 7, ..record() });
    let mut world = crashed_with(&[any, group]);
    world.connect(STRANGER, 2000);
    let member = ClientId(5);
    let domain = DomainKey { listener: 0, uid: 2001 };
    let peer = Peer { domain, job: None, pid: 1, gid: 1, groups: &[7] };
    world.step(Input::Connect { client: member, peer });
    let (request, deadline) = (RequestId(1), Now(0));
    world.step(Body::Hello { own_fds: 0, deadline }.by(member, request));
    assert_eq!(world.code(STRANGER, id(3, 9)), Some(ErrorCode::Again));
    assert_eq!(world.code(STRANGER, id(4, 9)), Some(ErrorCode::NotPermitted));
    assert_eq!(world.code(member, id(4, 9)), Some(ErrorCode::Again));
    world.declare(member, id(4, 9), false).expect("of the group");
    world.declare(STRANGER, id(3, 9), false).expect("anybody");
    // A client of the owner's user with another group must not become the owner: the group would be
    // another one.
    assert_eq!(
        world.redeposit(OWNER, id(4, 9), Deposit { share: Share::Gid, ..deposit(1) }).result(),
        Err(ErrorCode::NotPermitted)
    );
}

#[test]
fn redeposit_when_it_claims_another_share_then_it_stays_as_it_was() {
    let mut world = crashed(config(), &[SLOT], &[]);
    world.connect(STRANGER, 2000);
    assert!(world.redeposit(OWNER, SLOT, Deposit { share: Share::Any, ..deposit(1) }).is_ok());
    assert_eq!(world.code(STRANGER, SLOT), Some(ErrorCode::NotPermitted));
}

#[test]
fn after_crash_when_reserved_then_charged_to_its_domain_and_then_to_its_owner() {
    let mut world = crashed(config(), &[SLOT], &[]);
    let domain = |world: &World| world.core.domains(0).next().expect("one").account;
    assert_eq!(domain(&world).now(Resource::Allocations), 1);
    assert!(world.redeposit(OWNER, SLOT, deposit(1)).is_ok());
    assert_eq!(domain(&world).now(Resource::Allocations), 1);
    assert_eq!(world.client(OWNER).account.now(Resource::Allocations), 1);
}

#[test]
fn redeposit_when_named_then_the_page_shows_it_again() {
    let mut world = crashed(config(), &[SLOT], &[]);
    assert!(world.redeposit(OWNER, SLOT, deposit(1)).is_ok());
    let Effect::Publish { slot, generation } = world.fx.list[0] else { panic!("not published") };
    assert_eq!(id(slot, generation), SLOT);
    let (named, told) = world.core.record(SLOT.slot).expect("it lives");
    assert_eq!((named, told), (SLOT, record()));
}

#[test]
fn redeposit_when_requests_wait_for_several_then_the_older_request_goes_before_the_younger() {
    let node = Caps { held_bytes: 8192, ..Caps::NONE };
    let mut world = crashed(Config { node, ..config() }, &[id(3, 9), id(4, 9)], &[]);
    world.register(Deposit { recallable: false, ..deposit(1) });
    world.acquire(USER, &[Ok(id(3, 9))], 500);
    world.acquire(OTHER, &[Ok(id(4, 9))], 500);
    // There is room for the first alone, and the second is looked at first.
    let large = sized(8192, deposit(4));
    let items = [(id(4, 9), large), (id(3, 9), deposit(3))];
    let items = items.map(|(id, deposit)| Redeposit { id: Ok(id), deposit, ended: false });
    world.step(Body::Redeposit { items: &items }.by(OWNER, RequestId(9)));
    world.poll_all();
    assert_eq!(world.state(id(3, 9)), AllocationState::Recalling);
    assert_eq!(world.state(id(4, 9)), AllocationState::Evicted);
}

#[test]
fn supply_when_a_kept_allocation_is_back_then_all_are_served_that_waited_for_room_to_ask_for_it() {
    let client = Caps { held_fds: 1, ..Caps::NONE };
    let mut world = crashed(Config { client, base_credits: 0, ..config() }, &[SLOT], &[]);
    let another = world.register(deposit(3)).id;
    world.step(Input::Evict { ids: &[another] });
    world.close_all();
    let pinning = world.register(Deposit { recallable: false, ..deposit(2) }).id;
    assert!(world.redeposit(OWNER, SLOT, kept_deposit(1)).is_ok());
    let first = world.acquire(USER, &[Ok(SLOT)], 500);
    // Found the account full, so that the one behind it is not looked at.
    world.acquire(USER, &[Ok(another)], 500);
    let last = world.acquire(OTHER, &[Ok(SLOT)], 500);
    world.unregister(OWNER, pinning);
    world.close_all();
    assert_eq!(world.state(SLOT), AllocationState::Recalling, "for the first of them");
    let effects = world.supply(SLOT, Ok(0), 1);
    let answers = [first, last].map(|request| answer(&world, &effects, request));
    assert_eq!(answers, [Some(Status::OK); 2]);
}

// --- complete -----------------------------------------------------------------------------------

#[test]
fn complete_when_not_named_then_stale_at_once_and_what_was_named_or_anothers_is_not() {
    let others = Record { owner: SECOND, ..record() };
    let mut world = crashed_with(&[live(3, record()), live(4, record()), live(5, others)]);
    assert!(world.redeposit(OWNER, id(3, 9), deposit(1)).is_ok());
    let lease = world.declare(USER, id(4, 9), false).expect("nobody has said yet");
    let request = world.acquire(USER, &[Ok(id(4, 9))], 500);
    let effects = world.step(Body::Complete.by(OWNER, RequestId::ONE_WAY));
    assert_eq!(effects, [], "it ends in polls");
    assert_eq!(world.code(USER, id(4, 9)), Some(ErrorCode::Stale), "before its end");
    assert_eq!(world.redeposit(OWNER, id(4, 9), deposit(2)).result(), Err(ErrorCode::Stale));
    world.fx.clear();
    world.core.poll(world.now, &mut world.fx);
    let effects = world.fx.list.clone();
    assert_eq!(answer(&world, &effects, request), Some(ErrorCode::Stale.into()));
    let told = RevokedEvent { id: id(4, 9), lease, code: ErrorCode::Stale };
    assert_eq!(world.core.take_events(USER), Some(Events::Revoked(vec![told])));
    assert!(world.release(USER, lease).is_ok());
    assert_eq!(world.code(USER, id(4, 9)), Some(ErrorCode::Stale), "after its end");
    assert_eq!(world.code(USER, id(3, 9)), Some(ErrorCode::Again));
    assert_eq!(world.code(USER, id(5, 9)), Some(ErrorCode::Again));
    assert_eq!(world.core.reserved(), 1);
}

#[test]
fn complete_when_said_by_another_client_or_user_then_nothing_ends() {
    let mut world = crashed_with(&[live(3, record())]);
    world.connect(STRANGER, 2000);
    world.step(Input::Identify { client: USER, key: SECOND });
    world.step(Input::Identify { client: STRANGER, key: KEY });
    for client in [USER, OTHER, STRANGER] {
        world.complete(client);
        assert_eq!(world.core.reserved(), 1);
    }
    world.complete(OWNER);
    assert_eq!(world.core.reserved(), 0);
}

#[test]
fn complete_when_a_million_were_freed_then_they_end_in_bounded_steps_between_others() {
    const ALL: u32 = 100_000;
    let second = Record { owner: SECOND, ..record() };
    let slots: Vec<_> = (0..ALL).map(|slot| live(slot, record())).collect();
    let config = Config { first_generation: 100, max_slots: ALL + 1, ..config() };
    let slots = [slots, vec![live(ALL, second)]].concat();
    let former = Former { slots: &slots, kept: &[], ..Former::default() };
    let core = Core::after_crash(config, former, Now(0)).expect("it fits");
    let mut world = World { core, now: Now(0), fx: Effects::default(), requests: 100 };
    for (client, key) in [(OWNER, KEY), (USER, SECOND)] {
        world.connect(client, 1000);
        world.step(Input::Identify { client, key });
        world.step(Body::Complete.by(client, RequestId::ONE_WAY));
    }
    let mut polls = 0;
    while world.core.reserved() > 0 {
        world.fx.clear();
        world.core.poll(world.now, &mut world.fx);
        assert!(world.fx.list.len() <= limits::RESERVED_ENDS_PER_STEP);
        polls += 1;
        let is_second_there = world.core.end_of(id(ALL, 9)).is_none();
        assert!(polls < 3 || !is_second_there, "the small owner waits for the large one");
        assert!(polls < 2 * ALL, "it does not end");
    }
    world.end_grace();
    assert_eq!(world.core.poll_timeout(), None);
}

#[test]
fn complete_when_restarted_in_between_then_it_goes_on() {
    let mut world = crashed_with(&[live(3, record()), live(4, record())]);
    world.step(Body::Complete.by(OWNER, RequestId::ONE_WAY));
    world.restart(Config { first_generation: 100, ..config() });
    assert_eq!(world.code(USER, id(3, 9)), Some(ErrorCode::Stale));
    world.poll_all();
    assert_eq!(world.core.reserved(), 0);
}

#[test]
fn complete_when_a_kept_one_is_not_named_then_stale_and_its_fd_leaves_the_store() {
    let mut before = World::new(config());
    before.step(Input::Identify { client: OWNER, key: KEY });
    let kept: Vec<_> = [1, 2].map(|base| before.register(kept_deposit(base)).id).into();
    let fds: Vec<_> = kept.iter().map(|id| before.core.kept(id.slot).expect("kept")).collect();
    let mut world = crashed(config(), &kept, &fds);
    assert_eq!(world.code(USER, kept[1]), None, "its fd is here");
    assert!(world.redeposit(OWNER, kept[0], kept_deposit(1)).is_ok());
    world.step(Body::Complete.by(OWNER, RequestId::ONE_WAY));
    assert_eq!(world.code(USER, kept[1]), Some(ErrorCode::Stale));
    world.poll_all();
    assert_eq!(world.core.kept(kept[1].slot), None);
    assert!(world.core.kept(kept[0].slot).is_some());
}

// --- reasons ------------------------------------------------------------------------------------

#[test]
fn after_crash_when_the_owner_is_dead_or_cannot_export_again_then_owner_gone_at_once() {
    let dead = FormerLife::Live { record: record(), owner_lives: false };
    let resident = live(4, Record { recallable: false, ..record() });
    let ended = FormerLife::Ended(ErrorCode::Stale);
    let former = [FormerSlot { id: id(3, 9), life: dead }, resident];
    let former = [&former[..], &[FormerSlot { id: id(5, 9), life: ended }]].concat();
    let mut world = crashed_with(&former);
    assert_eq!(world.core.reserved(), 0);
    assert_eq!(world.code(USER, id(3, 9)), Some(ErrorCode::OwnerGone));
    assert_eq!(world.code(USER, id(4, 9)), Some(ErrorCode::OwnerGone));
    assert_eq!(world.code(USER, id(5, 9)), Some(ErrorCode::Stale));
    for slot in 3..6 {
        assert_eq!(world.code(USER, id(slot, 8)), Some(ErrorCode::Stale), "older");
    }
}

#[test]
fn end_when_the_owner_dies_then_owner_gone_for_all_who_ask_until_the_slot_is_used_again() {
    let mut world = World::new(Config { max_slots: 1, ..config() });
    let old = world.register(deposit(1)).id;
    world.step(Input::Gone { client: OWNER });
    world.close_all();
    for _ in 0..40 {
        assert_eq!(world.code(USER, old), Some(ErrorCode::OwnerGone));
    }
    world.connect(OWNER, 1000);
    let new = world.register(deposit(1)).id;
    assert_eq!(new.slot, old.slot);
    assert_eq!(world.code(USER, old), Some(ErrorCode::Stale));
}

#[test]
fn end_when_unregistered_before_the_owner_dies_then_stale_whether_leased_or_not() {
    let mut world = World::new(config());
    let [free, leased] = [1, 2].map(|base| world.register(deposit(base)).id);
    let lease = world.grant(USER, leased);
    world.unregister(OWNER, free);
    world.unregister(OWNER, leased);
    world.step(Input::Gone { client: OWNER });
    assert_eq!(world.code(USER, free), Some(ErrorCode::Stale));
    assert_eq!(world.code(USER, leased), Some(ErrorCode::Stale));
    world.release(USER, lease);
    assert_eq!(world.code(USER, leased), Some(ErrorCode::Stale));
    world.restart(config());
    assert_eq!(world.code(USER, leased), Some(ErrorCode::Stale));
}

// --- ended around the crash ---------------------------------------------------------------------

const DRAINED: Status = Status::DRAINED;

impl World {
    fn name_ended(&mut self, client: ClientId, id: AllocationId) -> Status {
        self.name(client, Redeposit { id: Ok(id), deposit: deposit(1), ended: true })
    }

    /// The grace time is over.
    fn end_grace(&mut self) {
        self.now = Now(1_000_000);
        self.poll_all();
    }

    fn drained(&mut self) -> Vec<AllocationId> {
        match self.core.take_events(OWNER) {
            Some(Events::Drained(all)) => all.iter().map(|event| event.id).collect(),
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    fn pinned(&self, client: ClientId) -> u64 {
        self.client(client).account.now(Resource::PinnedBytes)
    }
}

fn leased(slot: u32, owner_lives: bool) -> FormerSlot {
    let code = ErrorCode::Stale;
    let life = FormerLife::Leased { record: record(), owner_lives, code };
    FormerSlot { id: id(slot, 9), life }
}

#[test]
fn unregister_when_in_the_grace_time_then_stale_at_once_and_drained_when_it_is_over() {
    let mut world = crashed(config(), &[SLOT], &[]);
    assert!(world.redeposit(OWNER, SLOT, deposit(1)).is_ok());
    world.step(Body::Complete.by(OWNER, RequestId::ONE_WAY));
    assert_eq!(world.unregister(OWNER, SLOT), Status::OK, "not drained yet");
    assert_eq!(world.code(USER, SLOT), Some(ErrorCode::Stale));
    world.poll_all();
    assert_eq!(world.drained(), []);
    assert!(world.core.is_ended_here(SLOT));
    world.end_grace();
    assert_eq!(world.drained(), [SLOT]);
    assert!(!world.core.is_ended_here(SLOT));
    assert_eq!(world.core.poll_timeout(), None);
}

#[test]
fn declare_when_its_owner_has_ended_it_in_the_outage_then_a_lease_told_and_charged_until_released()
{
    let mut world = crashed(config(), &[SLOT, id(4, 9)], &[]);
    assert_eq!(world.name_ended(OWNER, SLOT), Status::OK);
    assert_eq!(world.name_ended(OWNER, id(4, 9)), Status::OK);
    let Effect::Publish { slot, generation: 0 } = world.fx.list[0] else { panic!("on the page") };
    assert_eq!(slot, 4);
    world.step(Body::Complete.by(OWNER, RequestId::ONE_WAY));
    assert_eq!(world.code(USER, SLOT), Some(ErrorCode::Stale));
    let lease = world.declare(USER, SLOT, false).expect("its owner waits for its holders");
    let told = RevokedEvent { id: SLOT, lease, code: ErrorCode::Stale };
    assert_eq!(world.core.take_events(USER), Some(Events::Revoked(vec![told])));
    assert_eq!(world.pinned(USER), 4096);
    world.end_grace();
    assert_eq!(world.drained(), [id(4, 9)], "the other one is held");
    let late = world.declare(OTHER, SLOT, false).expect_err("the time is over");
    assert_eq!(late.result(), Err(ErrorCode::Stale));
    assert!(world.release(USER, lease).is_ok());
    assert_eq!((world.drained(), world.pinned(USER)), (vec![SLOT], 0));
}

#[test]
fn declare_when_released_and_declared_by_another_in_the_grace_time_then_drained_after_the_last() {
    let mut world = crashed(config(), &[SLOT], &[]);
    assert_eq!(world.name_ended(OWNER, SLOT), Status::OK);
    let lease = world.declare(USER, SLOT, true).expect("a lease");
    assert!(world.release(USER, lease).is_ok());
    assert_eq!(world.drained(), [], "others may come");
    let other = world.declare(OTHER, SLOT, true).expect("a lease");
    world.restart(Config { first_generation: 100, ..config() });
    world.end_grace();
    assert_eq!(world.drained(), []);
    assert!(world.release(OTHER, other).is_ok());
    assert_eq!(world.drained(), [SLOT]);
}

#[test]
fn restart_when_ended_ones_linger_then_the_successor_drains_them_when_the_time_is_over() {
    let former = [live(3, record()), live(4, record()), leased(5, true), leased(6, true)];
    let mut world = crashed_with(&former);
    assert!(world.redeposit(OWNER, id(3, 9), deposit(3)).is_ok());
    world.unregister(OWNER, id(3, 9));
    for slot in [4, 5] {
        assert_eq!(world.name_ended(OWNER, id(slot, 9)), Status::OK);
    }
    world.restart(Config { first_generation: 100, ..config() });
    assert_eq!(world.drained(), []);
    assert_eq!(world.name_ended(OWNER, id(6, 9)), Status::OK, "it waits still");
    world.end_grace();
    let all: BTreeSet<_> = world.drained().into_iter().collect();
    assert_eq!(all, [3, 4, 5, 6].map(|slot| id(slot, 9)).into());
}

#[test]
fn restart_when_the_time_is_just_over_then_the_successor_drains_what_lingers() {
    let mut world = crashed(config(), &[SLOT], &[]);
    assert_eq!(world.name_ended(OWNER, SLOT), Status::OK);
    world.now = Now(1_000_000);
    world.core.poll(world.now, &mut world.fx);
    world.restart(Config { first_generation: 100, ..config() });
    world.poll_all();
    assert_eq!(world.drained(), [SLOT]);
}

#[test]
fn leased_at_the_crash_when_its_holder_comes_before_its_owner_then_drained_after_its_release() {
    let mut world = crashed_with(&[leased(3, true)]);
    assert_eq!(world.code(USER, id(3, 9)), Some(ErrorCode::Stale), "nobody waits for it");
    let lease = world.declare(USER, id(3, 9), false).expect("it is told");
    assert!(matches!(world.core.take_events(USER), Some(Events::Revoked(_))));
    assert_eq!(world.name_ended(OWNER, id(3, 9)), Status::OK);
    world.end_grace();
    assert_eq!(world.drained(), []);
    assert!(world.release(USER, lease).is_ok());
    assert_eq!(world.drained(), [id(3, 9)]);
}

#[test]
fn leased_at_the_crash_when_its_owner_is_dead_or_does_not_name_it_then_its_slot_is_free() {
    let mut world = crashed_with(&[leased(3, false), leased(4, true)]);
    assert!(!world.core.is_ended_here(id(3, 9)));
    assert!(world.core.is_ended_here(id(4, 9)));
    world.complete(OWNER);
    assert!(!world.core.is_ended_here(id(4, 9)));
    let named = world.name_ended(OWNER, id(4, 9));
    assert_eq!(named.result(), Err(ErrorCode::Stale), "nobody has waited for its holders");
}

#[test]
fn name_ended_when_it_was_drained_before_the_crash_then_so_until_the_slot_is_used_again() {
    let ended = FormerLife::Ended(ErrorCode::Stale);
    let mut world = crashed_with(&[FormerSlot { id: id(3, 9), life: ended }]);
    assert_eq!(world.name_ended(OWNER, id(3, 9)), DRAINED);
    world.restart(Config { first_generation: 100, ..config() });
    assert_eq!(world.name_ended(OWNER, id(3, 9)), DRAINED);
    assert_eq!(world.name_ended(OWNER, id(3, 8)).result(), Err(ErrorCode::Stale), "older");
    assert_eq!(world.name_ended(OWNER, id(9, 9)).result(), Err(ErrorCode::Stale), "unknown");
}

#[test]
fn name_ended_when_it_is_anothers_or_lives_or_is_young_then_refused() {
    let mut world = crashed(config(), &[SLOT, id(4, 9)], &[]);
    world.connect(STRANGER, 2000);
    assert_eq!(world.name_ended(STRANGER, SLOT).result(), Err(ErrorCode::NotPermitted));
    assert!(world.redeposit(OWNER, SLOT, deposit(1)).is_ok());
    for client in [OWNER, USER] {
        assert_eq!(world.name_ended(client, SLOT).result(), Err(ErrorCode::Stale));
    }
    let young = world.register(deposit(2)).id;
    assert_eq!(world.name_ended(OWNER, young).result(), Err(ErrorCode::Stale));
    assert_eq!(world.unregister(OWNER, young), DRAINED, "nobody had it before the crash");
}

#[test]
fn lingering_when_its_owner_dies_then_its_slot_is_free_and_nobody_is_told() {
    let mut world = crashed(config(), &[SLOT], &[]);
    assert_eq!(world.name_ended(OWNER, SLOT), Status::OK);
    world.gone(OWNER);
    world.poll_all();
    assert!(!world.core.is_ended_here(SLOT));
    world.end_grace();
    assert_eq!(world.core.poll_timeout(), None);
}

#[test]
fn revoke_when_reserved_then_its_owner_hears_of_the_drain_when_the_time_is_over() {
    let mut world = crashed(config(), &[SLOT], &[]);
    world.step(Input::Revoke { ids: &[SLOT] });
    assert_eq!((world.core.reserved(), world.code(USER, SLOT)), (0, Some(ErrorCode::Stale)));
    assert_eq!(world.redeposit(OWNER, SLOT, deposit(1)).result(), Err(ErrorCode::Stale));
    assert_eq!(world.name_ended(OWNER, SLOT), Status::OK);
    assert_eq!(world.drained(), []);
    world.end_grace();
    assert_eq!(world.drained(), [SLOT]);
}

#[test]
fn lingering_when_there_are_many_then_drained_in_bounded_steps() {
    const ALL: u32 = 1000;
    let slots: Vec<_> = (0..ALL).map(|slot| leased(slot, true)).collect();
    let config = Config { first_generation: 100, max_slots: ALL, ..config() };
    let former = Former { slots: &slots, kept: &[], ..Former::default() };
    let core = Core::after_crash(config, former, Now(0)).expect("it fits");
    let mut world = World { core, now: Now(0), fx: Effects::default(), requests: 100 };
    world.connect(OWNER, 1000);
    world.step(Input::Identify { client: OWNER, key: KEY });
    for slot in 0..ALL {
        assert_eq!(world.name_ended(OWNER, id(slot, 9)), Status::OK);
    }
    world.now = Now(1_000_000);
    let (mut polls, mut drained) = (0, 0);
    while world.core.poll_timeout().is_some_and(|due| due <= world.now) {
        world.fx.clear();
        world.core.poll(world.now, &mut world.fx);
        let now: usize =
            std::iter::from_fn(|| Some(world.drained().len()).filter(|n| *n > 0)).sum();
        assert!(now <= limits::RESERVED_ENDS_PER_STEP);
        (polls, drained) = (polls + 1, drained + now);
        assert!(polls < ALL, "it does not end");
    }
    assert_eq!(drained, ALL as usize);
}
