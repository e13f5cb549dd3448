//! Judges to which job each client and each allocation belongs, those of gone owners included. Must
//! take only the model for right: nothing cleans up after a job that the core has forgotten.

use crate::judge::ensure;
use crate::model::{Allocation, Check, Model};
use crate::tally::Promise;
use fdbroker_core::{Core, DomainKey, JobKey, JobName};
use fdbroker_protocol::{AllocationId, Resource};
use std::collections::BTreeMap;

/// The name that the world gives a job.
pub fn named(job: JobKey) -> (JobKey, JobName) {
    (job, JobName::new(&format!("job:{}", job.0)))
}

/// The core lists the jobs that have clients or have left something, with their numbers and names.
pub fn listed(model: &Model, core: &Core) -> Check {
    let mut right: BTreeMap<(DomainKey, JobKey), (u32, u32)> = BTreeMap::new();
    for client in model.clients.values() {
        let key = client.job.map(|job| (client.domain, job));
        key.into_iter().for_each(|key| right.entry(key).or_default().0 += 1);
    }
    for known in model.allocations.values().filter(|known| model.is_orphan(known)) {
        let key = known.job.map(|job| (known.domain, job));
        key.into_iter().for_each(|key| right.entry(key).or_default().1 += 1);
    }
    model.proofs.count(Promise::Lives, right.len());
    let counted = core.totals().gauges.jobs;
    ensure!(counted == core.jobs(0).count() as u64, "{counted} jobs are counted");
    for (_, view, _) in core.jobs(0) {
        let key = view.key;
        let told = (view.clients, view.orphans);
        let known = right.remove(&key).unwrap_or_default();
        ensure!(told == known, "{key:?} has {told:?} clients and orphans, they are {known:?}");
        let is_waited_for = core.totals().node.now(Resource::ParkedRequests) > 0;
        ensure!(known != (0, 0) || is_waited_for, "{key:?} is listed, and nothing is left of it");
        ensure!(view.name == named(key.1).1, "{key:?} is called {:?}", view.name);
        ensure!(core.job_name(key.0, key.1) == view.name, "{key:?} has two names");
    }
    ensure!(right.is_empty(), "not listed, or listed for another job: {right:?}");
    Ok(())
}

/// The core tells the right job of an allocation.
pub fn of_allocation(
    model: &Model,
    id: AllocationId,
    known: &Allocation,
    told: Option<JobKey>,
) -> Check {
    let is_its = model.owner_here(known) || model.is_orphan(known);
    let right = known.job.filter(|_| is_its);
    ensure!(told == right, "{id} is of job {told:?}, it is of {right:?}");
    Ok(())
}
