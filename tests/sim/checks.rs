//! Compares the core's views with the model after a step, and checks what no single effect shows: caps, the order of
//! service, that no request is forgotten, and that everything comes to rest. Must never change what it checks.

use crate::action::Action;
use crate::jobs;
use crate::judge::{Grant, Step, ensure};
use crate::model::{
    Allocation, Ask, Blocker, Check, Client, Drain, Holder, Ledger, Model, Phase, Request, Sums,
};
use crate::shares::SHARE_OF_FDS;
use crate::tally::Promise;
use fdbroker_core::{Account, Core, Deposit, Now, limits};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::{AllocationId, MAX_BATCH, Resource};
use std::collections::{BTreeMap, BTreeSet};

/// Resources that every account counts: those of the node alone are looked at by themselves.
fn counted() -> impl Iterator<Item = Resource> {
    let of_node = [Resource::TablePlaces, Resource::Domains];
    Resource::ALL.iter().copied().filter(move |resource| !of_node.contains(resource))
}

/// Copies into the model what effects do not show: recalls that no client has been told of, silent owners, pins,
/// promises. Each change of them must have a cause.
pub fn sync(model: &mut Model, core: &Core, step: &Step, action: &Action) -> Check {
    let mut recalling = BTreeMap::new();
    let mut pinned = BTreeSet::new();
    for view in core.allocations(0) {
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

/// Allocations that are leased until the teardown of a gone client, which goes in portions, comes to them.
fn leases_of_gone_clients(model: &Model, core: &Core) -> BTreeSet<AllocationId> {
    let gone = |client: u32| model.phase(client) == Some(Phase::Gone);
    if !model.clients.keys().copied().any(gone) {
        return BTreeSet::new();
    }
    core.leases(0).filter(|view| gone(view.client.0)).map(|view| view.allocation).collect()
}

/// Checks that nothing is evicted that a request waits for or that its owner cannot give again.
fn evictions(model: &Model, step: &Step, action: &Action) -> Check {
    let leaves =
        matches!(action, Action::Gone { .. } | Action::Sendable { .. } | Action::Cancel { .. });
    for id in step.evicted.iter().filter(|_| model.exact) {
        model.proofs.count(Promise::Eviction, 1);
        let served = leaves || step.asked.contains(id);
        let waited = model.was_pinned.contains(id) && !served;
        ensure!(!waited, "{id} is evicted before its waiters are served");
        let Some(allocation) = model.live(*id) else { continue };
        let owner = &allocation.owner;
        let silent = step.silent_before.contains(owner) && model.silent.contains(owner);
        ensure!(!silent, "{id} is evicted while its owner misses a recall");
    }
    Ok(())
}

fn waits_for(model: &Model, id: AllocationId) -> bool {
    let requests = model.clients.values().flat_map(|client| client.requests.values());
    requests.into_iter().any(|request| request.wanted().any(|wanted| wanted == id))
}

fn sync_silence(model: &mut Model, core: &Core, step: &Step, action: &Action) -> Check {
    let silent: BTreeSet<u32> =
        core.clients(0).filter(|view| view.silent && !view.gone).map(|view| view.id.0).collect();
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

/// Open leases that a client is charged for and was not granted are promises: at most one for each recall it waits for.
fn sync_promises(model: &mut Model, core: &Core) -> Check {
    let mut promised = BTreeMap::new();
    for view in core.clients(0).filter(|view| !view.gone) {
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
        || core.clients(0).any(|view| view.gone && left(&view.account));
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
    let listed = core.domains(0).count() as u64;
    ensure!(totals.node.now(Resource::Domains) == listed, "{listed} domains, the node has others");
    let mut seen = 0;
    for view in core.clients(0) {
        seen += 1;
        let client = model.client(view.id.0)?;
        if !view.gone {
            same_client(view.id.0, &view, client)?;
        }
        let account = Holder::Client(view.id.0);
        same(&account, &view.account, &ledger.of(account))?;
    }
    model.proofs.count(Promise::Ledger, (seen + 1) * counted().count());
    ensure!(seen == model.clients.len(), "{seen} clients, the model has {}", model.clients.len());
    for view in core.domains(0) {
        let account = Holder::Domain(view.key);
        same(&view.key, &view.account, &ledger.of(account))?;
        model.proofs.count(Promise::Ledger, counted().count());
    }
    jobs::listed(model, core)?;
    for view in core.jobs(0) {
        let account = Holder::Job(view.domain, view.key);
        same(&format!("{account:?}"), &view.account, &ledger.of(account))?;
    }
    let domains: BTreeSet<_> = core.domains(0).map(|view| view.key).collect();
    for (key, sums) in &ledger.domains {
        ensure!(domains.contains(key) || *sums == Sums::default(), "{key:?} is charged and gone");
    }
    records(model, core)
}

fn same(whose: &dyn std::fmt::Debug, account: &Account, sums: &Sums) -> Check {
    for resource in counted() {
        let core = [account.now(resource), account.counted(resource)].map(u128::from);
        let mut model = [sums.now(resource), sums.usage(resource)];
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

fn same_client(number: u32, view: &fdbroker_core::ClientView, client: &Client) -> Check {
    let core = (view.domain, view.job, view.pid, view.credits, view.parked as usize);
    let requests = client.requests.len();
    let model = (client.domain, client.job, client.pid, client.credits, requests);
    ensure!(core == model, "client {number}: {core:?}, the model has {model:?}");
    ensure!(!view.welcome || client.phase != Phase::Connected, "client {number}: welcome");
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
    for view in core_.allocations(0) {
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
        let core = (view.size_bytes, view.fd_offset, view.owner_allocation_id, view.base);
        let model_ = (d.size_bytes, d.fd_offset, d.owner_allocation_id, d.base);
        ensure!(core == model_, "{id} is listed as {core:?}, it is {model_:?}");
        let owner = model.owner_here(known).then_some(known.owner);
        ensure!(view.owner.map(|owner| owner.0) == owner, "{id}: owner {:?}", view.owner);
        let open = known.leases.iter().filter(|lease| is_open(model, lease)).count();
        let mapped = known.leases.len() - open;
        ensure!(
            (view.open_leases as usize, view.mapped_leases as usize) == (open, mapped),
            "{id}: {} open and {} mapped leases, it has {open} and {mapped}",
            view.open_leases,
            view.mapped_leases
        );
    }
    let all = model.allocations.len();
    model.proofs.count(Promise::OneFd, seen);
    ensure!(seen == all, "{seen} allocations are listed, there are {all}");
    let mut seen = 0;
    for view in core_.leases(0) {
        seen += 1;
        let known = model.leases.get(&view.id.0).ok_or("a lease of nobody is listed")?;
        let (core, model) =
            ((view.client.0, view.allocation, view.mapped), (known.client, known.id, known.mapped));
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
    let Deposit { checked, lane, .. } = known.deposit;
    let told = told
        .map(|kept| (kept.domain, kept.gid, kept.job, Deposit { checked, lane, ..kept.deposit }));
    let job = known.job.map(jobs::named);
    let deposit = Deposit { file: model.file_now(known), ..known.deposit };
    let right = is_kept.then_some((known.domain, known.gid, job, deposit));
    ensure!(told == right, "{id}: to be kept {told:?}, it is {right:?}");
    Ok(())
}

/// After polls that came as soon as they were due: no deadline has passed, and the next poll comes before the next one.
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

/// Whether no request waits.
pub fn nobody_waits(model: &Model) -> bool {
    waiting(model).is_empty()
}

/// Parked requests that could be answered, in the order of arrival; requests of clients that do not read are left out.
/// (Only the arrival counts: a request for an fd that is kept back for other requests does not overtake any.)
fn waiting(model: &Model) -> Vec<(u32, &Client, &Request)> {
    let mut all: Vec<(u32, &Client, &Request)> = model
        .clients
        .iter()
        .filter(|(_, state)| state.phase != Phase::Gone)
        .flat_map(|(client, state)| state.requests.values().map(move |r| (*client, state, r)))
        .filter(|(_, state, request)| {
            state.sendable || matches!(request.ask, Ask::Register { .. } | Ask::Hello { .. })
        })
        .collect();
    all.sort_by_key(|(_, _, request)| request.order);
    all
}

/// The caps that block a request: later requests that need the same wait for it.
fn stands_before(model: &Model, ledger: &Ledger, client: u32, request: &Request) -> Vec<Blocker> {
    match request.ask {
        Ask::Register { .. } => credit_blockers(model, ledger, client),
        Ask::Hello { own_fds, .. } => {
            let mut all = hello_blockers(model, ledger, client, own_fds);
            // It stands before others for what comes back soon, and for few fds.
            let coming = model.closing_in(Holder::Node) as u64 + ledger.node.idle_credits;
            let to_be =
                (model.config.table_fds + coming).saturating_sub(model.table_fds(&ledger.node));
            all.retain(|blocker| match blocker.resource {
                Resource::TablePlaces => to_be >= limits::FDS_PER_CONNECTION,
                _ => u64::from(own_fds) <= limits::HELLO_IN_LINE_FDS,
            });
            all
        }
        _ => request
            .wanted()
            .filter(|id| !model.is_awaited(*id))
            .filter_map(|id| model.blockers(ledger, client, id))
            .flatten()
            .collect(),
    }
}

/// The caps that block every way to serve a request; empty if it could be served now. `None` if it waits for a recall, or
/// if no room would help it.
fn in_the_way(
    model: &Model,
    ledger: &Ledger,
    client: u32,
    request: &Request,
) -> Option<Vec<Blocker>> {
    match request.ask {
        Ask::Register { .. } => return Some(credit_blockers(model, ledger, client)),
        Ask::Hello { own_fds, .. } => {
            return Some(hello_blockers(model, ledger, client, own_fds));
        }
        _ => {}
    }
    if request.wanted().any(|id| model.is_awaited(id) || model.is_unanswered(id)) {
        return None;
    }
    let mut all = Vec::new();
    for id in request.wanted() {
        let blockers = model.blockers(ledger, client, id)?;
        if blockers.is_empty() {
            return Some(blockers);
        }
        all.extend(blockers);
    }
    Some(all)
}

/// Whether no room would help: the allocation has ended, or is not permitted, or its owner does not answer.
fn is_final(model: &Model, client: u32, id: AllocationId) -> bool {
    let unanswered = model.is_unanswered(id) && !model.is_awaited(id);
    let open = |allocation| model.permitted(client, allocation) && !unanswered;
    !model.live(id).is_some_and(open)
}

/// The caps and shares that do not have room for another credit.
pub fn credit_blockers(model: &Model, ledger: &Ledger, client: u32) -> Vec<Blocker> {
    let mut found = Vec::new();
    for account in model.accounts_of_client(client) {
        for resource in [Resource::HeldFds, Resource::Fds] {
            if model.is_full(ledger, account, resource, 1) {
                found.push(Blocker { resource, account });
            }
        }
    }
    if model.is_full(ledger, Holder::Node, Resource::TablePlaces, 1) {
        found.push(Blocker { resource: Resource::TablePlaces, account: Holder::Node });
    }
    for resource in [Resource::TablePlaces, SHARE_OF_FDS] {
        found.extend(beyond_share(model, ledger, client, resource, 1));
    }
    found
}

/// The caps that do not have room for the fds that a client declares.
fn hello_blockers(model: &Model, ledger: &Ledger, client: u32, own_fds: u32) -> Vec<Blocker> {
    let (resource, need) = (Resource::Fds, u64::from(own_fds));
    let accounts = model.accounts_of_client(client).into_iter();
    let full = accounts.filter(|account| model.is_full(ledger, *account, resource, need));
    let full = full.map(|account| Blocker { resource, account });
    let shares = beyond_share(model, ledger, client, SHARE_OF_FDS, need);
    let mut all: Vec<_> = full.chain(shares).collect();
    let (resource, places) = (Resource::TablePlaces, limits::FDS_PER_CONNECTION);
    if model.is_full(ledger, Holder::Node, resource, places) {
        all.push(Blocker { resource, account: Holder::Node });
    }
    let domain = model.clients.get(&client).map(|client| client.domain);
    let beyond = domain.filter(|domain| model.places_are_beyond_share(ledger, *domain));
    all.extend(beyond.map(|domain| Blocker { resource, account: Holder::Domain(domain) }));
    all
}

/// How many fds would have to be closed to let a client in, as far as this blocker goes; how many may be closed.
fn closes_for_hello(model: &Model, ledger: &Ledger, own: u64, blocker: &Blocker) -> (u128, usize) {
    let Blocker { resource, account } = *blocker;
    let (need, kept, used, cap) = match resource {
        Resource::TablePlaces => {
            let used = model.table_fds(&ledger.node).into();
            let kept = limits::IDLE_FDS_KEPT as usize;
            (limits::FDS_PER_CONNECTION, kept, used, model.config.table_fds.into())
        }
        _ => (own, 0, ledger.of(account).usage(resource), model.cap(account, resource)),
    };
    let idle = u128::from(ledger.of(account).idle_credits);
    let short_of = (used + u128::from(need)).saturating_sub(cap.saturating_add(idle));
    let in_scope = |one: &&Evictable| is_in_scope(model, (one.1, one.2), account);
    (short_of, evictable(model).iter().filter(in_scope).count().saturating_sub(kept))
}

/// The share of a client's domain, if that is used up.
fn beyond_share(
    model: &Model,
    ledger: &Ledger,
    client: u32,
    resource: Resource,
    need: u64,
) -> Option<Blocker> {
    let domain = model.clients.get(&client)?.domain;
    let account = Holder::Domain(domain);
    let beyond = model.is_beyond_share(ledger, domain, resource, need);
    beyond.then_some(Blocker { resource, account })
}

/// Whether a parked request waits for room in this cap.
pub fn is_waited_for(model: &Model, ledger: &Ledger, account: Holder, resource: Resource) -> bool {
    waiting(model).into_iter().any(|(client, _, request)| {
        stands_before(model, ledger, client, request).contains(&Blocker { resource, account })
    })
}

/// A parked request, and the caps that block it.
pub struct Waiting<'a> {
    pub client: u32,
    pub state: &'a Client,
    pub request: &'a Request,
    pub stands: Vec<Blocker>,
    /// The accounts and resources that serving it takes from.
    needs: Vec<(Vec<Holder>, &'static [Resource])>,
}

/// All waiting requests, in the order of arrival.
pub fn everybody<'a>(model: &'a Model, ledger: &Ledger) -> Vec<Waiting<'a>> {
    let all = waiting(model).into_iter();
    all.map(|(client, state, request)| one_of(model, ledger, client, state, request)).collect()
}

fn one_of<'a>(
    model: &'a Model,
    ledger: &Ledger,
    client: u32,
    state: &'a Client,
    request: &'a Request,
) -> Waiting<'a> {
    let stands = stands_before(model, ledger, client, request);
    let needs = needs_of(model, client, request);
    Waiting { client, state, request, stands, needs }
}

/// Whether a request that may be served first waits for what this one needs: an earlier request of its domain, or any
/// request of another domain, since domains take turns.
pub fn is_behind(all: &[Waiting<'_>], one: &Waiting<'_>) -> bool {
    all.iter().any(|other| {
        let before = match other.state.domain == one.state.domain {
            true => other.request.order < one.request.order,
            false => true,
        };
        before && waits_behind(one, &other.stands)
    })
}

/// Whether serving the later request could take what the earlier request waits for.
pub fn waits_behind(later: &Waiting<'_>, earlier: &[Blocker]) -> bool {
    earlier.iter().any(|blocker| {
        later.needs.iter().any(|(accounts, resources)| {
            accounts.contains(&blocker.account) && resources.contains(&blocker.resource)
        })
    })
}

fn needs_of(
    model: &Model,
    client: u32,
    request: &Request,
) -> Vec<(Vec<Holder>, &'static [Resource])> {
    let own = || model.accounts_of_client(client);
    if let Ask::Register { .. } = request.ask {
        return vec![(own(), CREDIT)];
    }
    if let Ask::Hello { .. } = request.ask {
        return vec![(own(), HELLO)];
    }
    let live: Vec<_> = request.wanted().filter_map(|id| Some((id, model.live(id)?))).collect();
    let recalled = live.iter().filter(|(id, _)| !model.is_held(*id));
    let places = recalled.map(|(_, known)| (model.accounts_of_client(known.owner), PLACE));
    let lease = (!live.is_empty()).then(|| (own(), LEASE));
    lease.into_iter().chain(places).collect()
}

pub const LEASE: &[Resource] = &[Resource::OpenLeases, Resource::Fds];
const CREDIT: &[Resource] = &[Resource::HeldFds, Resource::Fds, Resource::TablePlaces];
const HELLO: &[Resource] = &[Resource::TablePlaces, Resource::Fds, SHARE_OF_FDS];
const PLACE: &[Resource] =
    &[Resource::HeldFds, Resource::Fds, Resource::TablePlaces, Resource::HeldBytes];

/// After each step that leaves no poll due: a request that can be served is served, unless a request before it waits for
/// the same; and if closing an fd would make the place that a request waits for, an fd is closed.
pub fn nothing_left_waiting(
    model: &Model,
    core: &Core,
    ledger: &Ledger,
    all: &[Waiting<'_>],
    now: u64,
) -> Check {
    if core.poll_timeout().is_some_and(|at| at.0 <= now) {
        return Ok(());
    }
    for id in &model.pinned {
        let reads = all.iter().any(|one| one.request.wanted().any(|wanted| wanted == *id));
        ensure!(reads, "{id} is kept back, and no client that reads waits for it");
    }
    for one in all {
        let (client, request) = (one.client, one.request);
        model.proofs.count(Promise::NoHarm, 1);
        let mut wanted = request.wanted().peekable();
        let decided = wanted.peek().is_some() && wanted.all(|id| is_final(model, client, id));
        ensure!(!decided, "client {client} waits, though its answer is certain: {:?}", request.ask);
        let behind = is_behind(all, one);
        let blockers = in_the_way(model, ledger, client, request);
        if let Some(blockers) = blockers.filter(|_| !behind && !request.unsent) {
            let what = || format!("request of client {client}: {:?}", request.ask);
            ensure!(!blockers.is_empty(), "{} could be served, and waits", what());
            if let Some(blocker) = room_could_be_made(model, ledger, request, &blockers) {
                return Err(format!(
                    "{} waits, and no fd is closed to make room in {blocker:?}",
                    what()
                ));
            }
        }
    }
    Ok(())
}

/// The cap that blocks the request, if it is the only one, an fd could be closed to make room in it, and none is closing.
fn room_could_be_made(
    model: &Model,
    ledger: &Ledger,
    request: &Request,
    blockers: &[Blocker],
) -> Option<Blocker> {
    let closable = |blocker: &Blocker| {
        matches!(
            blocker.resource,
            Resource::Fds | Resource::HeldFds | Resource::HeldBytes | Resource::TablePlaces
        )
    };
    let single = request.wanted().count() <= 1 && blockers.iter().all(closable);
    let accounts: BTreeSet<Holder> = blockers.iter().map(|blocker| blocker.account).collect();
    if !single || accounts.len() != 1 {
        return None;
    }
    let blocker = *blockers.first()?;
    if blocker.resource == Resource::TablePlaces && blocker.account != Holder::Node {
        // What can be closed counts as free already.
        return None;
    }
    if model.closing_in(blocker.account) > 0 {
        return None;
    }
    // For a hello, fds are closed only if that lets it in.
    if let Some(own) = request.own_fds() {
        let enough = |blocker: &Blocker| {
            let (short_of, closable) = closes_for_hello(model, ledger, own, blocker);
            short_of <= closable as u128
        };
        let can_be_made = blockers.iter().all(enough);
        return (can_be_made && own <= MAX_BATCH as u64).then_some(blocker);
    }
    let mut victims = evictable(model).into_iter().filter(|(id, client, domain, _)| {
        let wanted = request.wanted().any(|wanted| wanted == *id);
        is_in_scope(model, (*client, *domain), blocker.account) && !wanted
    });
    victims.next().map(|_| blocker)
}

type Evictable = (AllocationId, Option<u32>, fdbroker_core::DomainKey, u64);

fn evictable(model: &Model) -> Vec<Evictable> {
    let all = model.allocations.iter().filter(|(id, a)| model.is_evictable(**id, a));
    all.map(|(id, a)| {
        let owner = model.owner_here(a).then_some(a.owner);
        let bytes = if a.deposit.file.is_some() { 0 } else { a.deposit.size_bytes };
        (*id, owner, a.domain, bytes)
    })
    .collect()
}

/// First come, first served within a domain: no request is granted while an earlier one could have had the same, or waits
/// for nothing else.
pub fn order(model: &Model, step: &Step, after: &Ledger, action: &Action) -> Check {
    if step.grants.is_empty() || matches!(action, Action::Supply { .. }) {
        return Ok(());
    }
    for Grant { client, order, granted, was_supplied } in &step.grants {
        model.proofs.count(Promise::Order, 1);
        let [id] = granted.as_slice() else { continue };
        let Some(state) = model.clients.get(client) else { continue };
        if *was_supplied {
            continue;
        }
        let given_back = after.clone().without_lease(*client, state.domain);
        let all = everybody(model, &given_back);
        for one in all.iter().filter(|one| one.request.order < *order) {
            let (passed, other, request) = (one.client, one.state, one.request);
            let behind = is_behind(&all, one);
            let blockers = in_the_way(model, &given_back, passed, request);
            let in_line = |own| own <= limits::HELLO_IN_LINE_FDS;
            let is_single = request.own_fds().map_or(request.wanted().count() == 1, in_line);
            let single = is_single && !request.unsent;
            if let Some(blockers) = blockers.filter(|_| !behind && single) {
                let shared = [Holder::Node, Holder::Domain(state.domain)];
                let same = |b: &Blocker| LEASE.contains(&b.resource) && shared.contains(&b.account);
                ensure!(
                    other.domain != state.domain || !blockers.iter().all(same),
                    "client {client} is granted {id}; client {passed}, which came earlier, waits \
                     for {blockers:?}: {:?}",
                    request.ask
                );
            }
        }
    }
    Ok(())
}

/// A hello that waits has fds closed only if that lets it in: what is closing then, and what could be, is enough.
pub fn hello_helps(model: &Model, step: &Step, after: &Ledger, action: &Action) -> Check {
    let Action::Hello { client, own_fds, .. } = action else { return Ok(()) };
    if step.evicted.is_empty() || model.phase(*client) != Some(Phase::Connected) {
        return Ok(());
    }
    model.proofs.count(Promise::Shares, 1);
    let own = u64::from(*own_fds);
    ensure!(own <= MAX_BATCH as u64, "fds of others are closed for {own} fds of client {client}");
    let blockers = hello_blockers(model, after, *client, *own_fds);
    let is_cap = |it: &&Blocker| match it.resource {
        Resource::TablePlaces => it.account == Holder::Node,
        resource => resource == Resource::Fds,
    };
    let helps = blockers.iter().filter(is_cap).all(|blocker| {
        let (short_of, closable) = closes_for_hello(model, after, own, blocker);
        short_of <= (closable + model.closing_in(blocker.account)) as u128
    });
    ensure!(helps, "fds are closed for the hello of client {client}, and do not let it in");
    Ok(())
}

/// Whether what a client has, or an allocation whose owner is gone, is charged to an account.
fn is_in_scope(
    model: &Model,
    (client, domain): (Option<u32>, fdbroker_core::DomainKey),
    account: Holder,
) -> bool {
    match (client, account) {
        (Some(client), account) => model.accounts_of_client(client).contains(&account),
        (None, Holder::Domain(of)) => domain == of,
        (None, account) => account == Holder::Node,
    }
}

/// At rest: no request waits for something that it could have if every evictable fd were closed.
pub fn nothing_stuck(model: &Model) -> Check {
    let ledger = model.ledger();
    let victims = evictable(model);
    let without = |keep: &BTreeSet<AllocationId>| {
        let all = victims.iter().filter(|(id, ..)| !keep.contains(id));
        let all: Vec<_> = all.map(|(_, c, d, bytes)| (*c, *d, *bytes)).collect();
        ledger.clone().without(&all)
    };
    // Of several wanted allocations one may be closed to make room for another. A single wanted allocation may not be
    // closed for itself: its request is blocked by a full cap, though there is nothing else to close.
    let spared = |request: &Request| {
        let wanted: BTreeSet<AllocationId> = request.wanted().collect();
        if wanted.len() == 1 { wanted } else { BTreeSet::new() }
    };
    let all: Vec<Waiting<'_>> = waiting(model)
        .into_iter()
        .map(|(client, state, request)| {
            one_of(model, &without(&spared(request)), client, state, request)
        })
        .collect();
    for one in &all {
        let (client, request) = (one.client, one.request);
        let reserved = |id| model.live(id).is_some_and(|known| known.reserved);
        if request.wanted().any(reserved) {
            // Its owner still has time to come back.
            continue;
        }
        let Some(blockers) = in_the_way(model, &without(&spared(request)), client, request) else {
            return Err(format!(
                "at rest, client {client} waits, and nothing would answer it: {:?}",
                request.ask
            ));
        };
        ensure!(
            !blockers.is_empty() || is_behind(&all, one),
            "at rest, client {client} waits for something that it could have: {:?}",
            request.ask
        );
    }
    Ok(())
}

/// After a rest: every request is answered, every event told, every fd closed, and the charges are right.
pub fn settled(model: &Model, core: &Core) -> Check {
    for (client, state) in &model.clients {
        ensure!(state.phase == Phase::Active, "after a rest client {client} is {:?}", state.phase);
        let open = &state.requests;
        ensure!(open.is_empty(), "after a rest client {client} waits: {open:?}");
    }
    ensure!(model.leases.is_empty(), "after a rest there are leases");
    ensure!(model.tickets.is_empty(), "after a rest fds are closing");
    // The model's own knowledge of these may be as old as the last full check.
    let mut allocations = core.allocations(0);
    let recalling = allocations.any(|view| view.state == AllocationState::Recalling);
    ensure!(!recalling, "after a rest recalls are under way");
    ensure!(!core.clients(0).any(|view| view.silent), "after a rest clients are silent");
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
