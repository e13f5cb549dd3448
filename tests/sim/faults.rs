//! Counts the faults that the core was exposed to, from its inputs and their effects. Must never
//! change anything: a fault is counted where it is seen, whatever part of the world made it.

use crate::action::Action;
use crate::model::{Model, Phase};
use crate::report::Stats;
use crate::step::Step;
use crate::tally::Fault;
use fdbroker_core::{Effect, Supply};
use fdbroker_protocol::AllocationId;

/// Counts the faults in an input, before the model learns of it.
pub fn of_action(stats: &mut Stats, model: &Model, action: &Action) {
    match action {
        Action::Gone { client } => stats.fault(death(model, *client)),
        Action::Supply { client, supplies } => {
            if model.silent.contains(client) {
                stats.fault(Fault::LateAnswer);
            }
            supplies.iter().for_each(|supply| of_supply(stats, model, supply));
        }
        Action::SetCaps { .. } => stats.fault(Fault::CapsChanged),
        Action::Sendable { sendable: false, .. } => stats.fault(Fault::SlowReader),
        Action::Unsent { .. } => stats.fault(Fault::Unsent),
        Action::Register { deposits, .. } => {
            let refused = deposits.iter().filter(|deposit| deposit.judged.is_err());
            stats.faults(Fault::RefusedFd, refused.count());
        }
        Action::Acquire { wanted, .. } => {
            let bad = wanted.iter().filter(|item| item.is_ok_and(|id| model.live(id).is_none()));
            stats.faults(Fault::Forged, bad.count());
        }
        Action::Cancel { client, request } => {
            let parked = model.clients.get(client);
            let parked = parked.is_some_and(|client| client.requests.contains_key(request));
            stats.faults(Fault::Cancelled, usize::from(parked));
        }
        _ => {}
    }
}

fn of_supply(stats: &mut Stats, model: &Model, supply: &Supply) {
    let Some(allocation) = model.live(supply.id) else { return };
    if let Err(code) = supply.fd {
        stats.fault(Fault::RecallRefused);
        stats.refusal_codes |= 1 << code as u32;
        return;
    }
    let fd_offset = supply.facts.fd_offset;
    if supply.facts != allocation.deposit.facts.fd_offset(fd_offset) {
        stats.fault(Fault::RecallLied);
    }
}

/// The state in which a client dies; of several the one that leaves most to be taken down.
fn death(model: &Model, client: u32) -> Fault {
    let Some(state) = model.clients.get(&client) else { return Fault::DeathBeforeHello };
    let recalled = |id: &AllocationId| model.recalling.contains_key(id);
    let waits_for_recall =
        || state.requests.values().any(|request| request.wanted().any(|id| recalled(&id)));
    match () {
        () if state.phase == Phase::Connected => Fault::DeathBeforeHello,
        () if model.clients.values().any(|other| other.phase == Phase::Gone) => {
            Fault::DeathInTeardown
        }
        () if state.owns.iter().any(recalled) => Fault::DeathInRecall,
        () if waits_for_recall() => Fault::DeathOfAwaiter,
        () if !state.requests.is_empty() => Fault::DeathParked,
        () if !state.leases.is_empty() => Fault::DeathHolding,
        () => Fault::DeathIdle,
    }
}

/// Counts the faults in the effects of an input.
pub fn of_step(stats: &mut Stats, model: &Model, step: &Step, action: &Action, all: &[Effect]) {
    stats.faults(Fault::Uninvited, step.uninvited.len());
    if let Action::Register { .. } = action {
        stats.faults(Fault::AddressReused, step.due_end.len());
    }
    if let Action::Hello { client, request, .. } = action {
        let state = model.clients.get(client);
        let waits = state.is_some_and(|state| state.requests.contains_key(request));
        stats.faults(Fault::HelloWaits, usize::from(waits));
    }
    for effect in all {
        match effect {
            Effect::Failed { client, .. } if matches!(action, Action::Hello { .. }) => {
                let again = model.clients.get(&client.0).is_some_and(|c| c.phase == Phase::Active);
                stats.faults(Fault::HelloRefused, usize::from(!again));
            }
            Effect::Disconnect { client, .. } => stats.fault(match step.connecting {
                Some(new) if new == client.0 => Fault::ConnectRefused,
                _ => Fault::Expelled,
            }),
            _ => {}
        }
    }
}
