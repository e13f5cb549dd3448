//! Tests of coming back after a crash: work in bounded steps, and what a restart meets in between.

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
fn redeposit_when_it_claims_another_share_then_it_stays_as_it_was() {
    let mut world = crashed(config(), &[SLOT], &[]);
    world.connect(STRANGER, 2000);
    assert!(world.redeposit(OWNER, SLOT, Deposit { share: Share::Any, ..deposit(1) }).is_ok());
    assert_eq!(world.code(STRANGER, SLOT), Some(ErrorCode::NotPermitted));
}

#[test]
fn redeposit_when_on_a_gpu_then_on_the_one_that_was_remembered_alone() {
    let on = |gpu, deposit: Deposit| Deposit { facts: deposit.facts.gpu(gpu), ..deposit };
    let [first, second] = [1, 2].map(|uuid| fdbroker_protocol::Gpu::cuda([uuid; 16], 0, false));
    let record = Record { gpu: first, ..record() };
    let (other, ended) = (id(7, 9), id(8, 9));
    let leased = FormerLife::Leased { record, owner_lives: true, code: ErrorCode::Stale };
    let leased = FormerSlot { id: ended, life: leased };
    let mut world = crashed_with(&[live(SLOT.slot, record), live(other.slot, record), leased]);
    let gpu = |world: &World, id: AllocationId| world.core.facts(id.slot).map(|it| it.gpu);
    assert_eq!(gpu(&world, SLOT), Some(first), "before it is named");
    assert_eq!(world.core.now_in_node(Resource::Gpus), 1);
    let refused = world.redeposit(OWNER, SLOT, on(second, deposit(1)));
    assert_eq!(refused, Status::error(ErrorCode::Protocol));
    assert!(world.redeposit(OWNER, SLOT, on(first, deposit(1))).is_ok());
    assert!(world.redeposit(OWNER, other, deposit(2)).is_ok(), "it does not say which");
    assert_eq!(world.name_ended(OWNER, ended), Status::OK);
    assert_eq!([SLOT, other, ended].map(|id| gpu(&world, id)), [Some(first); 3]);
    world.unregister(OWNER, SLOT);
    world.unregister(OWNER, other);
    world.end_grace();
    world.close_all();
    world.drained();
    assert_eq!(world.core.now_in_node(Resource::Gpus), 0);
}

/// After a crash that the fd of one has outlived.
fn crashed_with_kept() -> World {
    let Record { domain, gid, .. } = record();
    let kept = Kept { id: SLOT, domain, gid, job: None, deposit: kept_deposit(1).into() };
    let world = crashed(config(), &[SLOT], &[kept]);
    assert!(world.core.kept(SLOT.slot).is_some(), "it is found");
    world
}

#[test]
fn redeposit_when_a_kept_one_was_ended_meanwhile_then_it_ends_and_drains_when_the_time_is_over() {
    let mut world = crashed_with_kept();
    assert_eq!(world.name_ended(OWNER, SLOT), Status::OK);
    assert_eq!(world.code(USER, SLOT), Some(ErrorCode::Stale));
    assert!(world.core.kept(SLOT.slot).is_none());
    world.close_all();
    assert_eq!(world.drained(), [], "a lease may be declared");
    world.end_grace();
    assert_eq!(world.drained(), [SLOT]);
}

#[test]
fn redeposit_when_a_kept_one_of_a_former_connection_was_ended_then_it_ends() {
    let mut world = World::new(config());
    let id = world.register(kept_deposit(1)).id;
    let lease = world.grant(USER, id);
    world.gone(OWNER);
    world.poll_all();
    world.connect(STRANGER, 2000);
    assert_eq!(world.name_ended(STRANGER, id), Status::error(ErrorCode::NotPermitted));
    world.connect(OWNER, 1000);
    assert_eq!(world.name_ended(OWNER, id), Status::OK);
    assert_eq!(world.code(USER, id), Some(ErrorCode::Stale));
    world.close_all();
    assert_eq!(world.drained(), [], "it is leased");
    world.step(Body::Release { leases: &[lease] }.by(USER, RequestId::ONE_WAY));
    assert_eq!(world.drained(), [id]);
}

#[test]
fn redeposit_when_a_kept_one_is_where_something_else_is_then_stale_and_it_ends() {
    let mut world = crashed_with_kept();
    world.register(deposit(1));
    assert_eq!(world.redeposit(OWNER, SLOT, kept_deposit(1)), Status::error(ErrorCode::Stale));
    assert_eq!(world.code(USER, SLOT), Some(ErrorCode::Stale));
    assert!(world.core.kept(SLOT.slot).is_none());
    world.close_all();
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
        assert!(world.fx.ended.len() <= limits::RESERVED_ENDS_PER_STEP);
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

// --- ended around the crash ---------------------------------------------------------------------

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
}

fn leased(slot: u32, owner_lives: bool) -> FormerSlot {
    let code = ErrorCode::Stale;
    let life = FormerLife::Leased { record: record(), owner_lives, code };
    FormerSlot { id: id(slot, 9), life }
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
