//! Who waits, for what, and behind whom: the order of service, and that no request is forgotten.
//! Must never change what it checks.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Ask, Check, Client, Model, Phase, Request};
use crate::shares::SHARE_OF_FDS;
use crate::step::{Grant, Step};
use crate::sums::{Blocker, Holder, Ledger};
use crate::tally::Promise;
use fdbroker_core::{Core, limits};
use fdbroker_protocol::{AllocationId, MAX_BATCH, Resource};
use std::collections::BTreeSet;

/// Whether no request waits.
pub fn nobody_waits(model: &Model) -> bool {
    waiting(model).is_empty()
}

/// Parked requests that could be answered, in the order of arrival; requests of clients that do not
/// read are left out. (Only the arrival counts: a request for an fd that is kept back for other
/// requests does not overtake any.)
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

/// The caps that block every way to serve a request; empty if it could be served now. `None` if it
/// waits for a recall, or if no room would help it.
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

/// Whether no room would help: the allocation has ended, or is not permitted, or its owner does not
/// answer.
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

/// How many fds would have to be closed to let a client in, as far as this blocker goes; how many
/// may be closed.
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

/// Whether a request that may be served first waits for what this one needs: an earlier request of
/// its domain, or any request of another domain, since domains take turns.
pub fn is_behind(all: &[Waiting<'_>], one: &Waiting<'_>) -> bool {
    all.iter().any(|other| {
        let before = if other.state.domain == one.state.domain {
            other.request.order < one.request.order
        } else {
            true
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

/// After each step that leaves no poll due: a request that can be served is served, unless a
/// request before it waits for the same; and if closing an fd would make the place that a request
/// waits for, an fd is closed.
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

/// The cap that blocks the request, if it is the only one, an fd could be closed to make room in
/// it, and none is closing.
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
        let bytes = if a.deposit.file.is_some() { 0 } else { a.deposit.facts.size_bytes };
        (*id, owner, a.domain, bytes)
    })
    .collect()
}

/// First come, first served within a domain: no request is granted while an earlier one could have
/// had the same, or waits for nothing else.
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
        let is_other = |it: &Grant| {
            model.clients.get(&it.client).is_none_or(|other| other.domain != state.domain)
        };
        let has_served_others = step.grants.iter().any(is_other);
        for one in all.iter().filter(|one| one.request.order < *order) {
            let (passed, other, request) = (one.client, one.state, one.request);
            let behind = is_behind(&all, one);
            let blockers = in_the_way(model, &given_back, passed, request);
            let in_line = |own| own <= limits::HELLO_IN_LINE_FDS;
            let is_single = request.own_fds().map_or(request.wanted().count() == 1, in_line);
            // Those that need a recall may have stood behind another domain's request for the same
            // owner's places, which was served in this very step; a later one that needs a lease
            // alone passes by.
            let is_passed_by = has_served_others && request.wanted().any(|id| !model.is_held(id));
            let single = is_single && !request.unsent && !is_passed_by;
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

/// A hello that waits has fds closed only if that lets it in: what is closing then, and what could
/// be, is enough.
pub fn hello_helps(model: &Model, step: &Step, after: &Ledger, action: &Action) -> Check {
    let Action::Hello { client, own_fds, .. } = action else { return Ok(()) };
    if step.evicted.is_empty() || model.phase(*client) != Some(Phase::Connected) {
        return Ok(());
    }
    model.proofs.count(Promise::Shares, 1);
    let own = u64::from(*own_fds);
    ensure!(own <= MAX_BATCH as u64, "fds of others are closed for {own} fds of client {client}");
    let blockers = hello_blockers(model, after, *client, *own_fds);
    // Requests of others that wait are looked at again in the same step, and have fds closed, too.
    let is_its = |id: &AllocationId| {
        let known = model.allocations.get(id);
        let owner = known.map(|it| (model.owner_here(it).then_some(it.owner), it.domain));
        owner.is_some_and(|of| blockers.iter().any(|it| is_in_scope(model, of, it.account)))
    };
    if !step.evicted.iter().any(is_its) {
        return Ok(());
    }
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
    // Of several wanted allocations one may be closed to make room for another. A single wanted
    // allocation may not be closed for itself: its request is blocked by a full cap, though there
    // is nothing else to close.
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
