//! Tests of what a job leaves behind: kept allocations whose owner is gone are their job's still.

use super::jobs::{JOB, connect_in_job, job_of};
use super::lives::kept_deposit;
use super::*;
use fdbroker_protocol::admin::ActOutcome;
use serde_json::{Value, from_value, to_value};

const FIRST: ClientId = ClientId(3);

/// The first client of the job has kept something, and is gone.
fn left() -> (World, AllocationId) {
    let mut world = World::new(config());
    connect_in_job(&mut world, FIRST, JOB);
    let (request, deadline) = (world.request(), Now(u64::MAX));
    let deposits = &[arrived(kept_deposit(1))];
    world.step(Body::Register { deposits, credits_wanted: 0, deadline }.by(FIRST, request));
    let id = world.fx.registered[0].id;
    world.gone(FIRST);
    (world, id)
}

/// The job that an allocation is listed with.
fn job_told(world: &World, id: AllocationId) -> Option<JobKey> {
    world.core.allocations(id.slot..u32::MAX).next().filter(|view| view.id == id)?.job
}

#[test]
fn left_when_revoked_then_the_job_is_forgotten_though_a_duplicate_is_out() {
    let (mut world, id) = left();
    let lease = world.grant(USER, id);
    world.core.set_watched(true);
    world.step(Input::Evict { ids: &[id] });
    assert_eq!(world.fx.acted[0].outcome, ActOutcome::Kept);
    world.step(Input::Revoke { ids: &[id] });
    assert_eq!(world.fx.acted[0].outcome, ActOutcome::Done);
    assert!(job_of(&world, JOB).is_none());
    assert_eq!((job_told(&world, id), world.state(id)), (None, AllocationState::Ended));
    let mut notes = Vec::new();
    world.core.take_notes(&mut notes);
    assert_eq!(notes.iter().map(|note| note.job).collect::<Vec<_>>(), [Some(JOB)]);
    assert!(world.release(USER, lease).is_ok());
    world.close_all();
}

#[test]
fn left_when_restored_then_its_jobs_still_and_its_name_is_printable() {
    let (mut world, id) = left();
    world.core.settle_parked(world.now, &mut world.fx);
    let saved = world.core.save();
    let restored = Core::restore(config(), saved.clone(), world.now).expect("sound");
    assert_eq!(restored.save(), saved);
    let mut saved = to_value(saved).expect("plain data");
    saved["jobs"]["entries"][0]["content"]["Full"]["name"] = "\u{1b}".repeat(1000).into();
    let saved = from_value(saved).expect("of the same form");
    let mut core = Core::restore(config(), saved, world.now).expect("sound");
    core.check_invariants();
    let (_, view, _) = core.jobs(0).next().expect("as before");
    assert_eq!((view.key.1, view.orphans, view.clients), (JOB, 1, 0));
    assert_eq!(view.name.as_str(), "?".repeat(view.name.bytes().len()));
    assert_eq!(core.allocations(id.slot..u32::MAX).next().and_then(|view| view.job), Some(JOB));
}

#[test]
fn restore_when_jobs_and_what_they_left_contradict_each_other_then_refused() {
    let (mut world, id) = left();
    assert_eq!(id.slot, 0);
    world.core.settle_parked(world.now, &mut world.fx);
    let saved = to_value(world.core.save()).expect("plain data");
    let refused = |change: fn(&mut Value)| {
        let mut saved = saved.clone();
        change(&mut saved);
        let saved = from_value(saved).expect("of the same form");
        Core::restore(config(), saved, Now(0)).map(drop)
    };
    let broken = |what, number| Err(RestoreError::Broken(what, number));
    let domain = |saved: &mut Value| {
        saved["jobs"]["entries"][0]["content"]["Full"]["key"][0]["uid"] = 9.into();
    };
    assert_eq!(refused(domain), broken("job's domain", 0));
    let other = |saved: &mut Value| saved["beside"]["orphans"]["0"]["job"] = 1.into();
    assert_eq!(refused(other), broken("the job that left an allocation", 0));
    let without = |saved: &mut Value| saved["beside"]["orphans"]["0"]["job"] = Value::Null;
    assert_eq!(refused(without), broken("job of nobody", 0));
}
