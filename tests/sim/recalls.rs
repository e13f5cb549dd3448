//! Stories of recalls: an owner that answers late, with no, with other memory, or not at all. Must
//! leave nothing to chance.

use crate::action::{Action, show_status};
use crate::judge::ensure;
use crate::model::Check;
use crate::rig::Rig;
use fdbroker_core::Supply;
use fdbroker_protocol::{AllocationId, ErrorCode, Status};

/// An owner and a consumer, a small LRU, and an allocation that is evicted.
pub fn evicted(rig: &mut Rig) -> Check<(u32, u32, AllocationId)> {
    rig.begin(|config| {
        config.node.held_fds = 5;
        config.base_credits = 0;
        config.max_credits = 2;
    });
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let other_owner = rig.client()?;
    let id = rig.register_new(owner, 1)?[0];
    let others = rig.register_new(other_owner, 5)?;
    rig.evict(id, consumer, &others)?;
    Ok((owner, consumer, id))
}

pub fn recall_when_unanswered_then_owner_silent_until_it_answers(rig: &mut Rig) -> Check {
    let (owner, consumer, id) = evicted(rig)?;
    let timeout = rig.world.setup.config.recall_timeout_us;
    let request = rig.acquire(consumer, id)?;
    rig.settle(&[owner])?;
    rig.take_all_events(owner)?;
    rig.advance(timeout + 1)?;
    let status = rig.status(consumer, request)?;
    let silent = |status: &Status| status.result() == Err(ErrorCode::OwnerSilent);
    ensure!(silent(&status), "at the time-out: {}", show_status(&status));
    let request = rig.acquire(consumer, id)?;
    let status = rig.status(consumer, request)?;
    ensure!(silent(&status), "while it is silent: {}", show_status(&status));
    rig.settle(&[])?;
    let request = rig.acquire(consumer, id)?;
    rig.settle(&[])?;
    rig.lease(consumer, request)?;
    rig.end()
}

pub fn supply_when_late_then_accepted_and_granted(rig: &mut Rig) -> Check {
    let (owner, consumer, id) = evicted(rig)?;
    let timeout = rig.world.setup.config.recall_timeout_us;
    rig.acquire(consumer, id)?;
    rig.settle(&[owner])?;
    rig.take_all_events(owner)?;
    let recalls = rig.recalls(owner);
    ensure!(recalls.len() == 1, "{} recalls", recalls.len());
    rig.advance(timeout * 3)?;
    rig.settle(&[])?;
    ensure!(rig.is_held(id), "the late fd is not kept");
    let request = rig.acquire(consumer, id)?;
    rig.lease(consumer, request)?;
    rig.end()
}

/// Answers the owner's only recall, after `change` has altered the answer.
fn answer(rig: &mut Rig, owner: u32, change: impl FnOnce(&mut Supply)) -> Check {
    rig.take_all_events(owner)?;
    let recalls = rig.recalls(owner);
    let [event] = recalls.as_slice() else {
        return Err(format!("{} recalls, not one", recalls.len()));
    };
    let mut supply =
        Supply { id: event.id, fd: Ok(0), refused_fd: None, file: None, facts: event.facts };
    change(&mut supply);
    if let Some(agent) = rig.world.agents.get_mut(&owner) {
        agent.recalls.clear();
    }
    rig.world.feed(Action::Supply { client: owner, supplies: vec![supply] })
}

pub fn supply_when_refused_then_owner_silent_and_place_is_free(rig: &mut Rig) -> Check {
    let (owner, consumer, id) = evicted(rig)?;
    let request = rig.acquire(consumer, id)?;
    rig.settle(&[owner])?;
    answer(rig, owner, |supply| supply.fd = Err(ErrorCode::LocalFdLimit))?;
    let status = rig.status(consumer, request)?;
    let right = Status::with_value(ErrorCode::OwnerSilent, ErrorCode::LocalFdLimit as u64);
    ensure!(status.pid != 0, "the owner is not named: {}", show_status(&status));
    let without_pid = Status { pid: 0, ..status };
    ensure!(without_pid == right, "answered {}", show_status(&status));
    let recalls = rig.world.model.ledger().node.recalls;
    ensure!(recalls == 0, "{recalls} places are still reserved");
    let request = rig.acquire(consumer, id)?;
    rig.settle(&[])?;
    rig.lease(consumer, request)?;
    rig.end()
}

pub fn supply_when_id_differs_then_allocation_ends(rig: &mut Rig) -> Check {
    let (owner, consumer, id) = evicted(rig)?;
    let request = rig.acquire(consumer, id)?;
    rig.settle(&[owner])?;
    answer(rig, owner, |supply| supply.facts.owner_allocation_id += 1)?;
    let status = rig.status(consumer, request)?;
    let right = status.result() == Err(ErrorCode::Stale);
    ensure!(right, "answered {}", show_status(&status));
    rig.end()
}

pub fn recall_when_missed_and_then_ended_then_owner_is_silent_no_more(rig: &mut Rig) -> Check {
    let (owner, consumer, id) = evicted(rig)?;
    let timeout = rig.world.setup.config.recall_timeout_us;
    rig.acquire(consumer, id)?;
    rig.settle(&[owner])?;
    rig.advance(timeout + 1)?;
    ensure!(
        rig.world.model.silent.contains(&owner),
        "the owner missed a recall, and does not count as silent"
    );
    let request = rig.world.next_request(owner);
    rig.world.feed(Action::Unregister { client: owner, request, ids: vec![id] })?;
    ensure!(
        !rig.world.model.silent.contains(&owner),
        "the owner is still silent, and has no recall left to answer"
    );
    rig.end()
}
