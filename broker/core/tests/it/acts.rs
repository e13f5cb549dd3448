//! Tests of what an administrator may do: evict, revoke, drain; and of what is noted for whoever
//! watches.

use super::*;
use fdbroker_core::limits::DRAINED_PER_STEP;
use fdbroker_protocol::admin::{ActOutcome, EventKind};
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;

const LATE: ClientId = ClientId(5);

impl World {
    fn evict(&mut self, ids: &[AllocationId]) -> Vec<ActOutcome> {
        self.step(Input::Evict { ids });
        self.fx.acted.iter().map(|acted| acted.outcome).collect()
    }

    fn revoke(&mut self, ids: &[AllocationId]) -> Vec<ActOutcome> {
        self.step(Input::Revoke { ids });
        self.fx.acted.iter().map(|acted| acted.outcome).collect()
    }

    fn notes(&mut self) -> Vec<EventKind> {
        let mut notes = Vec::new();
        assert_eq!(self.core.take_notes(&mut notes), 0);
        notes.iter().map(|note| note.kind).collect()
    }

    /// Its deposit, by another client than the owner.
    fn deposit_of(&mut self, client: ClientId, base: u64) -> Status {
        let (request, deadline) = (self.request(), Now(0));
        let deposits = &[arrived(deposit(base))];
        self.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(client, request));
        self.fx.registered[0].status
    }
}

#[test]
fn acts_when_of_more_than_a_message_may_name_then_the_rest_is_left_out() {
    let mut world = World::new(config());
    let count = ENDS_PER_MESSAGE as u64 + 2;
    let ids: Vec<AllocationId> = (1..=count).map(|base| world.register(deposit(base)).id).collect();
    assert_eq!(world.evict(&ids), [ActOutcome::Done; ENDS_PER_MESSAGE]);
    assert_eq!(world.revoke(&ids), [ActOutcome::Done; ENDS_PER_MESSAGE]);
    let is_live = |view: &AllocationView<'_>| view.state != AllocationState::Ended;
    assert_eq!(world.core.allocations(0..u32::MAX).filter(is_live).count(), 2);
}

#[test]
fn drain_when_begun_then_all_that_can_be_is_evicted_in_portions_and_leases_are_asked_for() {
    let mut world = World::new(config());
    let count = 2 * DRAINED_PER_STEP + 1;
    let ids: Vec<AllocationId> =
        (1..=count as u64).map(|base| world.register(deposit(base)).id).collect();
    let resident = world.register(Deposit { recallable: false, ..deposit(9_999) }).id;
    let [open, mapped] = [ids[0], ids[1]].map(|id| world.grant(USER, id));
    world.step(Body::Mapped { leases: &[mapped] }.by(USER, RequestId::ONE_WAY));
    world.step(Input::SetDraining { draining: true });
    assert!(world.core.is_draining());
    for left in [count - DRAINED_PER_STEP, 1, 0] {
        assert_eq!(world.core.totals().gauges.stored_fds, left as u64 + 1);
        assert!(world.core.poll_timeout().is_some_and(|at| left == 0 || at <= world.now));
        world.at(0);
    }
    assert_eq!(world.state(resident), AllocationState::Resident);
    let asked = [world.core.take_events(USER), world.core.take_events(USER)];
    assert_eq!(asked, [Some(Events::Reclaim(vec![open, mapped])), None]);
    // A recall is answered as ever, and what came goes again.
    let request = world.acquire(OTHER, &[Ok(ids[5])], 1000);
    let effects = world.supply(ids[5], Ok(0), 6);
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
    world.at(1000);
    assert_eq!(world.state(ids[5]), AllocationState::Evicted);
}

#[test]
fn drain_when_begun_then_whoever_comes_late_deposits_nothing_until_it_is_undone() {
    let mut world = World::new(config());
    let id = world.register(deposit(1)).id;
    world.step(Input::SetDraining { draining: true });
    world.connect(LATE, 1000);
    world.core.set_watched(true);
    let before = world.core.totals().counters.refusals;
    assert_eq!(world.deposit_of(LATE, 2).result(), Err(ErrorCode::ShuttingDown));
    world.refused_once(before);
    assert!(matches!(world.fx.list[0], Effect::CloseArrived { .. }));
    assert!(world.deposit_of(USER, 3).is_ok());
    // Consumers of what is there are served.
    let request = world.acquire(LATE, &[Ok(id)], 1000);
    let effects = world.supply(id, Ok(0), 1);
    assert_eq!(answer(&world, &effects, request), Some(Status::OK));
    world.restart_now();
    assert!(world.core.is_draining());
    assert_eq!(world.deposit_of(LATE, 2).result(), Err(ErrorCode::ShuttingDown));
    // Beginning it again does not let them in.
    world.step(Input::SetDraining { draining: true });
    assert_eq!(world.deposit_of(LATE, 2).result(), Err(ErrorCode::ShuttingDown));
    world.step(Input::SetDraining { draining: false });
    assert!(!world.core.is_draining());
    assert!(world.deposit_of(LATE, 2).is_ok());
    world.at(1000);
    assert_eq!(world.core.poll_timeout(), None);
}

impl World {
    /// One request of the late client was refused since `before`: counted, and told to whoever
    /// watches.
    fn refused_once(&mut self, before: u64) {
        assert_eq!(self.core.totals().counters.refusals, before + 1);
        let mut notes = Vec::new();
        self.core.take_notes(&mut notes);
        let refused: Vec<_> = notes.iter().filter(|it| it.kind == EventKind::Refusal).collect();
        assert_eq!(refused.len(), 1, "{notes:?}");
        let (client, status) = (Some(LATE), ErrorCode::ShuttingDown.into());
        assert_eq!((refused[0].client, refused[0].status), (client, status));
    }

    fn restart_now(&mut self) {
        self.fx.clear();
        self.core.settle_parked(self.now, &mut self.fx);
        let saved = self.core.save();
        self.core = Core::restore(config(), saved, self.now).expect("it is sound");
        self.core.check_invariants();
    }
}

#[test]
fn connect_when_refused_then_counted_and_told_with_its_process_and_user() {
    let mut world = World::new(Config { max_clients: 3, ..config() });
    world.core.set_watched(true);
    let before = world.core.totals().counters.refusals;
    let late = ClientId(3);
    let effects = world.step(connect(late, DomainKey::new(0, 1000), 77));
    let status = Status::no_quota(Resource::Connections, Scope::Node, 3, 0);
    assert_eq!(effects[0], Effect::Disconnect { client: late, status });
    assert_eq!(world.core.totals().counters.refusals, before + 1);
    let mut notes = Vec::new();
    world.core.take_notes(&mut notes);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert_eq!((note.kind, note.client, note.status), (EventKind::Refusal, None, status));
    assert_eq!((note.pid, note.domain.uid), (77, 1000));
}

#[test]
fn drain_when_a_late_client_has_no_credit_then_it_is_told_so_and_waits_for_nothing() {
    let mut world = World::new(Config { base_credits: 0, ..config() });
    world.step(Input::SetDraining { draining: true });
    world.connect(LATE, 1000);
    world.core.set_watched(true);
    let before = world.core.totals().counters.refusals;
    let (client, request, deadline) = (LATE, world.request(), Now(u64::MAX));
    let effects = world
        .step(Body::Register { deposits: &[], credits_wanted: 1, deadline }.by(client, request));
    assert_eq!(answer(&world, &effects, request), Some(ErrorCode::ShuttingDown.into()));
    world.refused_once(before);
}

#[test]
fn notes_when_watched_then_each_thing_once_and_in_order() {
    let mut world = World::new(config());
    world.register(deposit(8));
    assert_eq!(world.notes(), []);
    world.core.set_watched(true);
    world.connect(LATE, 1000);
    let id = world.register(deposit(1)).id;
    world.evict(&[id]);
    world.close_all();
    world.acquire(USER, &[Ok(id)], 1000);
    world.at(200);
    world.revoke(&[id]);
    world.step(Input::SetDraining { draining: true });
    world.step(Input::SetDraining { draining: false });
    world.step(Input::Gone { client: LATE });
    let all = world.notes();
    let of = |kind| all.iter().filter(|other| **other == kind).count();
    assert_eq!(all[..2], [EventKind::Connected, EventKind::Deposit], "{all:?}");
    for kind in [
        EventKind::Recall,
        EventKind::Silent,
        EventKind::End,
        EventKind::Drain,
        EventKind::Undrain,
        EventKind::Gone,
    ] {
        assert_eq!(of(kind), 1, "{kind}: {all:?}");
    }
    assert_eq!(world.notes(), []);
}

#[test]
fn notes_when_a_cap_is_full_then_the_refusal_says_which_and_whose() {
    let mut world =
        World::new(Config { client: Caps { allocations: 1, ..Caps::NONE }, ..config() });
    world.core.set_watched(true);
    world.register(deposit(1));
    let status = world.register(deposit(2)).status;
    let mut notes = Vec::new();
    world.core.take_notes(&mut notes);
    let refusal = notes.last().expect("noted");
    assert_eq!((refusal.kind, refusal.status), (EventKind::Refusal, status));
    assert_eq!((refusal.client, refusal.pid, refusal.domain.uid), (Some(OWNER), 4000, 1000));
    world.core.set_watched(false);
    world.register(deposit(3));
    assert_eq!(world.notes(), []);
}

#[test]
fn notes_when_nobody_takes_them_then_bounded_and_the_rest_counted() {
    let mut world = World::new(config());
    world.core.set_watched(true);
    let extra = 3;
    for at in 0..fdbroker_core::limits::NOTES_KEPT + extra {
        world.step(Input::SetDraining { draining: at % 2 == 0 });
    }
    let mut notes = Vec::new();
    assert_eq!(world.core.take_notes(&mut notes), extra as u64);
    assert_eq!(notes.len(), fdbroker_core::limits::NOTES_KEPT);
}
