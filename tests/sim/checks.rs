//! Compares the core's views with the model after a step, and checks what no single effect shows:
//! caps, the order of service, that no request is forgotten, and that everything comes to rest.
//! Must never change what it checks.

use crate::action::Action;
use crate::jobs;
use crate::judge::ensure;
use crate::model::{Allocation, Check, Client, Drain, Model, Phase, Request};
use crate::step::Step;
use crate::sums::{Holder, Ledger, Sums};
use crate::tally::Promise;
use fdbroker_core::{Account, Core, Judged, Now};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::{AllocationId, Resource};
use std::collections::{BTreeMap, BTreeSet};

/// Resources that every account counts: those of the node alone are looked at by themselves.
fn counted() -> impl Iterator<Item = Resource> {
    let of_node = [Resource::TablePlaces, Resource::Domains];
    Resource::ALL.iter().copied().filter(move |resource| !of_node.contains(resource))
}

/// Copies into the model what effects do not show: recalls that no client has been told of, silent
/// owners, pins, promises. Each change of them must have a cause.
pub fn sync(model: &mut Model, core: &Core, step: &Step, action: &Action) -> Check {
    let mut recalling = BTreeMap::new();
    let mut pinned = BTreeSet::new();
    for view in core.allocations(0..u32::MAX) {
        match view.state {
            // Those of a gone owner end when its teardown comes to them.
            AllocationState::Recalling if !model.to_unpublish.contains(&view.id) => {
                recalling.insert(view.id, *model.recalling.get(&view.id).unwrap_or(&model.now));
            }
            AllocationState::Held if view.waiters > 0 => {
                pinned.insert(view.id);
            }
            _ => {}
        }
    }
    for id in model.recalling.keys() {
        ensure!(recalling.contains_key(id), "the recall of {id} is forgotten");
    }
    let new = recalling.keys().filter(|id| !model.recalling.contains_key(id));
    for id in new.filter(|_| model.exact) {
        let asked = step.asked.contains(id) || waits_for(model, *id);
        ensure!(asked, "{id} is recalled, and no request wants it");
        let again = model.live(*id).is_some_and(|a| a.recalled_at.is_some());
        ensure!(!again, "{id} is recalled again while its owner is asked");
    }
    model.forget_what_is_given_up(|id| core.is_ended_here(id));
    model.recalling = recalling;
    model.was_pinned = std::mem::replace(&mut model.pinned, pinned);
    model.still_leased = leases_of_gone_clients(model, core);
    sync_silence(model, core, step, action)?;
    for owner in step.said_silent.iter().filter(|_| model.exact) {
        let silent = step.silent_before.contains(owner) || model.silent.contains(owner);
        ensure!(silent, "client {owner} is said to be silent, and is not");
    }
    evictions(model, step, action)?;
    sync_promises(model, core)
}

/// Allocations that are leased until the teardown of a gone client, which goes in portions, comes
/// to them.
fn leases_of_gone_clients(model: &Model, core: &Core) -> BTreeSet<AllocationId> {
    let gone = |client: u32| model.phase(client) == Some(Phase::Gone);
    if !model.clients.keys().copied().any(gone) {
        return BTreeSet::new();
    }
    core.leases(0..u32::MAX)
        .filter(|view| gone(view.record.client))
        .map(|view| view.allocation)
        .collect()
}

/// Checks that nothing is evicted that a request waits for.
fn evictions(model: &Model, step: &Step, action: &Action) -> Check {
    let leaves =
        matches!(action, Action::Gone { .. } | Action::Sendable { .. } | Action::Cancel { .. });
    for id in step.evicted.iter().filter(|_| model.exact) {
        model.proofs.count(Promise::Eviction, 1);
        let served = leaves || step.asked.contains(id);
        let waited = model.was_pinned.contains(id) && !served;
        ensure!(!waited, "{id} is evicted before its waiters are served");
    }
    Ok(())
}

fn waits_for(model: &Model, id: AllocationId) -> bool {
    let requests = model.clients.values().flat_map(|client| client.requests.values());
    requests.into_iter().any(|request| request.wanted().any(|wanted| wanted == id))
}

fn sync_silence(model: &mut Model, core: &Core, step: &Step, action: &Action) -> Check {
    let silent: BTreeSet<u32> = core
        .clients(0)
        .filter(|view| view.record.silent && !view.record.gone)
        .map(|view| view.id.0)
        .collect();
    if !model.exact {
        model.silent = silent;
        return Ok(());
    }
    let timeout = model.config.recall_timeout_us;
    let misses = |client: u32| {
        model.recalling.iter().any(|(id, since)| {
            let owner = model.live(*id).map(|allocation| allocation.owner);
            owner == Some(client) && since + timeout <= model.now
        })
    };
    for client in silent.difference(&model.silent) {
        ensure!(misses(*client), "client {client} counts as silent, and misses no recall");
    }
    for client in model.silent.difference(&silent) {
        let gone = model.phase(*client).is_none_or(|phase| phase == Phase::Gone);
        let answered = matches!(action, Action::Supply { client: who, .. } if who == client);
        // The recall that it missed may have ended, or may have got more time.
        let ended = step.ended_of.contains(client);
        ensure!(
            gone || answered || ended || !misses(*client),
            "client {client} counts as answering, and has not answered"
        );
    }
    model.silent = silent;
    Ok(())
}

/// Open leases that a client is charged for and was not granted are promises: at most one for each
/// recall it waits for.
fn sync_promises(model: &mut Model, core: &Core) -> Check {
    let mut promised = BTreeMap::new();
    for view in core.clients(0).filter(|view| !view.record.gone) {
        let Some(client) = model.clients.get(&view.id.0) else { continue };
        let open = client.leases.iter().filter(|lease| is_open(model, lease)).count() as u64;
        let charged = view.account.counted(Resource::OpenLeases);
        ensure!(
            charged >= open,
            "client {}: {charged} open leases charged, {open} given",
            view.id.0
        );
        if charged == open {
            continue;
        }
        let waits: BTreeSet<AllocationId> = client
            .requests
            .values()
            .flat_map(Request::wanted)
            .filter(|id| model.recalling.contains_key(id))
            .collect();
        ensure!(
            charged - open <= waits.len() as u64,
            "client {}: {charged} open leases charged, {open} given, {} recalls waited for",
            view.id.0,
            waits.len()
        );
        promised.insert(view.id.0, charged - open);
    }
    let total: u64 = promised.values().sum();
    ensure!(total <= model.recalling.len() as u64, "more leases promised than recalls under way");
    model.promised = promised;
    Ok(())
}

fn is_open(model: &Model, lease: &u64) -> bool {
    model.leases.get(lease).is_some_and(|lease| !lease.mapped)
}

/// Whether the core is still taking down a gone client. It must then ask to be polled at once.
fn tears_down(model: &Model, core: &Core) -> Check<bool> {
    let left = |account: &Account| {
        [Resource::OpenLeases, Resource::MappedLeases, Resource::Allocations]
            .iter()
            .any(|resource| account.now(*resource) > 0)
    };
    let tearing = !model.to_unpublish.is_empty()
        || core.clients(0).any(|view| view.record.gone && left(view.account));
    ensure!(
        !tearing || core.poll_timeout() == Some(Now(0)),
        "a gone client is not torn down, and no poll is due"
    );
    Ok(tearing)
}

/// Checks the caps by the model's sums, and that the core's sums and views equal these.
pub fn sums(model: &Model, core: &Core, ledger: &Ledger) -> Check {
    caps(model, ledger)?;
    let totals = core.totals();
    let sweeps = totals.gauges.leases_ending > 0;
    ensure!(
        !sweeps || core.poll_timeout() == Some(Now(0)),
        "holders of ended memory are not charged, and no poll is due"
    );
    if tears_down(model, core)? || sweeps {
        return Ok(());
    }
    same(&"node", &totals.node, &ledger.node)?;
    let fds = (totals.gauges.stored_fds, totals.gauges.closing_fds);
    ensure!(
        fds == (ledger.node.held, model.tickets.len() as u64),
        "stored and closing are {fds:?}, the model has {:?}",
        (ledger.node.held, model.tickets.len())
    );
    let table = model.table_fds(&ledger.node);
    ensure!(totals.table.0 == table, "the table has {}, the model {table}", totals.table.0);
    let listed = core.domains(0).filter(|(_, domain, _)| domain.clients > 0).count() as u64;
    ensure!(totals.node.now(Resource::Domains) == listed, "{listed} domains, the node has others");
    let mut seen = 0;
    for view in core.clients(0) {
        seen += 1;
        let client = model.client(view.id.0)?;
        if !view.record.gone {
            same_client(view.id.0, &view, client)?;
        }
        let account = Holder::Client(view.id.0);
        same(&account, view.account, &ledger.of(account))?;
    }
    model.proofs.count(Promise::Ledger, (seen + 1) * counted().count());
    ensure!(seen == model.clients.len(), "{seen} clients, the model has {}", model.clients.len());
    for (_, view, charged) in core.domains(0) {
        let account = Holder::Domain(view.key);
        same(&view.key, charged, &ledger.of(account))?;
        model.proofs.count(Promise::Ledger, counted().count());
    }
    jobs::listed(model, core)?;
    for (_, view, charged) in core.jobs(0) {
        let account = Holder::Job(view.key.0, view.key.1);
        same(&format!("{account:?}"), charged, &ledger.of(account))?;
    }
    let domains: BTreeSet<_> = core.domains(0).map(|(_, view, _)| view.key).collect();
    for (key, sums) in &ledger.domains {
        ensure!(domains.contains(key) || *sums == Sums::default(), "{key:?} is charged and gone");
    }
    records(model, core)
}

fn same(whose: &dyn std::fmt::Debug, account: &Account, sums: &Sums) -> Check {
    for resource in counted() {
        let core = [account.now(resource), account.counted(resource)].map(u128::from);
        // The core shows no more than u64 tells.
        let mut model =
            [sums.now(resource), sums.usage(resource)].map(|sum| sum.min(u64::MAX.into()));
        let beyond = core[0].saturating_sub(model[0]);
        if resource == Resource::HeldBytes && beyond > 0 && beyond <= sums.may_pay_bytes {
            // Whichever owner pays for a file: the domain's sum is exact.
            model = core;
        }
        ensure!(
            core == model,
            "{resource} of {whose:?}: {core:?} in use and counted, it is {model:?} ({sums:?})"
        );
    }
    Ok(())
}

fn same_client(number: u32, view: &fdbroker_core::ClientView<'_>, client: &Client) -> Check {
    let it = view.record;
    let core = (view.domain, view.job, it.pid, it.credits, it.parked.len());
    let requests = client.requests.len();
    let model = (client.domain, client.job, client.pid, client.credits, requests);
    ensure!(core == model, "client {number}: {core:?}, the model has {model:?}");
    ensure!(!it.welcome || client.phase != Phase::Connected, "client {number}: welcome");
    Ok(())
}

/// Checks invariants 1 and 2 by the model's sums.
fn caps(model: &Model, ledger: &Ledger) -> Check {
    for (account, sums) in ledger.accounts() {
        model.proofs.count(Promise::Caps, Resource::capped().count());
        for resource in Resource::capped() {
            let cap = model.cap(account, resource);
            let used = sums.usage(resource);
            let above = model.above.get(&(account, resource)).copied().unwrap_or(0);
            ensure!(
                used <= above.max(cap),
                "{resource} of {account:?} is {used}, above its cap {cap}: {sums:?}"
            );
        }
    }
    let uninvited = model.tickets.values().filter(|closing| closing.uninvited).count() as u64;
    let table = model.table_fds(&ledger.node) - uninvited;
    let most = model.config.table_fds;
    model.proofs.count(Promise::Table, 1);
    ensure!(table <= most, "the broker's table needs {table} fds, it has {most}");
    Ok(())
}

/// Compares the lists of allocations and leases, record by record.
fn records(model: &Model, core_: &Core) -> Check {
    let mut seen = 0;
    for view in core_.allocations(0..u32::MAX) {
        seen += 1;
        let id = view.id;
        let known = model
            .allocations
            .get(&id)
            .ok_or_else(|| format!("{id} is listed, and was never registered"))?;
        let held = matches!(view.state, AllocationState::Held | AllocationState::Resident);
        let ended = view.state == AllocationState::Ended;
        ensure!(held == model.is_held(id), "{id} is {:?}", view.state);
        ensure!(ended == known.ended.is_some(), "{id} is {:?}, {:?}", view.state, known.ended);
        let reserved = view.state == AllocationState::Reserved;
        ensure!(reserved == (known.reserved && !ended), "{id} is {:?}", view.state);
        kept(model, core_, id, known)?;
        jobs::of_allocation(model, id, known, view.job)?;
        let d = &known.deposit;
        let (core, model_) = ((view.facts, view.record.base), (d.facts, d.base));
        ensure!(core == model_, "{id} is listed as {core:?}, it is {model_:?}");
        let owner = model.owner_here(known).then_some(known.owner);
        let told = view.record.owner().map(|owner| owner.0);
        ensure!(told == owner, "{id}: owner {told:?}");
        let open = known.leases.iter().filter(|lease| is_open(model, lease)).count();
        let mapped = known.leases.len() - open;
        let (listed, all) = (view.record.open as usize, view.record.leases.len());
        ensure!(
            (listed, all) == (open, open + mapped),
            "{id}: {listed} open leases of {all}, it has {open} and {mapped}"
        );
    }
    let all = model.allocations.len();
    model.proofs.count(Promise::OneFd, seen);
    ensure!(seen == all, "{seen} allocations are listed, there are {all}");
    let mut seen = 0;
    for view in core_.leases(0..u32::MAX) {
        seen += 1;
        let known = model.leases.get(&view.id.0).ok_or("a lease of nobody is listed")?;
        let (core, model) = (
            (view.record.client, view.allocation, view.record.mapped),
            (known.client, known.id, known.mapped),
        );
        ensure!(core == model, "lease {:#x} is {core:?}, not {model:?}", view.id.0);
    }
    ensure!(seen == model.leases.len(), "{seen} leases listed, there are {}", model.leases.len());
    Ok(())
}

/// A kept allocation is remembered as it was registered, and no other allocation is remembered.
fn kept(model: &Model, core: &Core, id: AllocationId, known: &Allocation) -> Check {
    let stored = model.kept_slots.contains(&id.slot) && model.is_held(id);
    let is_kept = known.ended.is_none() && known.deposit.keep && model.is_held(id);
    ensure!(stored == is_kept, "{id}: in the store {stored}, kept {is_kept}");
    let told = core.kept(id.slot).filter(|kept| kept.id == id);
    let told = told.map(|kept| (kept.domain, kept.gid, kept.job, kept.deposit));
    let job = known.job.map(jobs::named);
    let deposit = Judged { file: model.file_now(known), ..known.deposit };
    let right = is_kept.then_some((known.domain, known.gid, job, deposit));
    ensure!(told == right, "{id}: to be kept {told:?}, it is {right:?}");
    Ok(())
}

/// After polls that came as soon as they were due: no deadline has passed, and the next poll comes
/// before the next one.
pub fn nothing_overdue(model: &Model, core: &Core) -> Check {
    let due = core.poll_timeout().map_or(u64::MAX, |at| at.0);
    for (client, state) in &model.clients {
        for (number, request) in &state.requests {
            let Some(deadline) = request.may_wait_until() else { continue };
            let what = || format!("request {number} of client {client} until {deadline}");
            model.proofs.count(Promise::Deadlines, 1);
            ensure!(deadline > model.now, "{} is overdue at {}", what(), model.now);
            ensure!(due <= deadline, "{}: the next poll is due at {due}", what());
        }
    }
    Ok(())
}

/// After a rest: every request is answered, every event told, every fd closed, and the charges are
/// right.
pub fn settled(model: &Model, core: &Core) -> Check {
    for (client, state) in &model.clients {
        ensure!(state.phase == Phase::Active, "after a rest client {client} is {:?}", state.phase);
        let open = &state.requests;
        ensure!(open.is_empty(), "after a rest client {client} waits: {open:?}");
    }
    ensure!(model.leases.is_empty(), "after a rest there are leases");
    ensure!(model.tickets.is_empty(), "after a rest fds are closing");
    // The model's own knowledge of these may be as old as the last full check.
    let mut allocations = core.allocations(0..u32::MAX);
    let recalling = allocations.any(|view| view.state == AllocationState::Recalling);
    ensure!(!recalling, "after a rest recalls are under way");
    ensure!(!core.clients(0).any(|view| view.record.silent), "after a rest clients are silent");
    let ownerless =
        model.allocations.values().any(|known| known.reserved || model.is_orphan(known));
    ensure!(!ownerless, "after a rest something lives without an owner");
    for (id, allocation) in &model.allocations {
        let live = allocation.ended.is_none() && allocation.drain == Drain::No;
        ensure!(live, "after a rest {id} is {:?}, {:?}", allocation.ended, allocation.drain);
    }
    let node = model.ledger().node;
    let charged = core.totals().node.counted(Resource::Fds);
    let right = node.held + node.credits + node.idle_credits + node.own;
    ensure!(charged == right, "after a rest {charged} fds are charged, there are {right}");
    Ok(())
}
