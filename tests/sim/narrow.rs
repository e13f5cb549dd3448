//! Stories of what random worlds come to too seldom, or by luck: each breaks a promise within some
//! steps if the core does. Must leave nothing to chance.

use crate::action::{Action, show_status};
use crate::judge::ensure;
use crate::model::{Check, Phase};
use crate::rig::{LONG_US, PAGE_BYTES, Rig, deposit, sized};
use fdbroker_core::{Arrived, Config, Declared, Deposit, Lane, Now, Redeposit, limits};
use fdbroker_protocol::{AllocationId, ErrorCode, MAX_BATCH, Status};

const UID: u32 = 1000;
const OTHER_UID: u32 = 2000;

/// A node of so many, and credits only for clients that ask.
fn ninety_fds(config: &mut Config) {
    config.node.fds = 90;
    config.base_credits = 0;
    config.max_credits = 1;
    config.share_factor = 8;
}

pub fn own_fds_when_the_share_is_used_up_then_refused_and_others_get_in(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.fds = 90;
        config.base_credits = 0;
        config.share_factor = 8;
    });
    // 80 of 90: then the domain holds 8 times what is free.
    rig.client_with(UID, 80)?;
    let now = rig.world.now;
    let (greedy, request) = rig.hello(UID, 1, now)?;
    ensure!(rig.is_refused(greedy, request), "a client is let in beyond the share of its domain");
    rig.client_with(OTHER_UID, 5)?;
    rig.end()
}

pub fn leases_when_the_share_is_used_up_then_refused_and_others_get_some(rig: &mut Rig) -> Check {
    rig.begin(ninety_fds);
    let (owner, holder) = (rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    // 80 of 90: then the domain holds 8 times what is free. The fd that the broker holds can be
    // closed.
    rig.leases(holder, id, 80)?;
    let now = rig.world.now;
    let request = rig.acquire_until(holder, &[Ok(id)], now)?;
    let status = rig.status(holder, request)?;
    ensure!(!status.is_ok(), "a lease beyond the share of its domain");
    let (other_owner, other) = (rig.client_of(OTHER_UID)?, rig.client_of(OTHER_UID)?);
    let other_id = rig.register_new(other_owner, 1)?[0];
    rig.leases(other, other_id, 4)?;
    rig.end()
}

pub fn connections_when_the_share_is_used_up_then_refused_and_others_get_in(
    rig: &mut Rig,
) -> Check {
    for is_table in [true, false] {
        // Of 9 connections a domain gets 8: then it holds 8 times what is free.
        rig.begin(|config| {
            config.base_credits = 0;
            config.share_factor = 8;
            if is_table {
                config.table_fds = limits::TABLE_RESERVE + 9 * limits::FDS_PER_CONNECTION
            } else {
                config.node.connections = 9
            }
        });
        for _ in 0..8 {
            rig.client()?;
        }
        let greedy = rig.connect(UID, None)?;
        if rig.is_connected(greedy) {
            let now = rig.world.now;
            let request = rig.say_hello(greedy, 0, now)?;
            ensure!(rig.is_refused(greedy, request), "a connection beyond its domain's share");
        }
        rig.client_of(OTHER_UID)?;
        rig.end()?;
    }
    Ok(())
}

pub fn hello_when_room_cannot_be_made_then_others_keep_their_fds(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.fds = 10;
        config.base_credits = 0;
    });
    let (owner, holder) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 4)?;
    let leases = rig.leases(holder, ids[0], 6)?;
    let deadline = rig.world.now + LONG_US;
    let (newcomer, request) = rig.hello(OTHER_UID, 5, deadline)?;
    ensure!(ids.iter().all(|id| rig.is_held(*id)), "an fd is closed, and nobody is let in");
    ensure!(rig.reply(newcomer, request).is_none(), "answered before its deadline");
    rig.release(holder, leases[0])?;
    rig.settle(&[])?;
    let held = ids.iter().filter(|id| rig.is_held(**id)).count();
    ensure!(held == 0, "{held} fds are still held, and the hello waits for them");
    rig.end()
}

pub fn hello_when_idle_fds_fill_the_table_then_ranks_get_in_as_they_are_closed(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| {
        config.base_credits = 0;
        config.table_fds = limits::TABLE_RESERVE + 8 * limits::FDS_PER_CONNECTION;
    });
    let owner = rig.client()?;
    let ids = rig.register_new(owner, 28)?;
    let deadline = rig.world.now + LONG_US;
    let mut ranks = Vec::new();
    for _ in 0..7 {
        ranks.push(rig.hello(OTHER_UID, 0, deadline)?);
    }
    rig.settle(&[])?;
    // The last idle fds stay; so does the last rank, until another one ends.
    let is_in = |rig: &Rig, client| rig.world.phase(client) == Some(Phase::Active);
    for (client, _) in &ranks[..6] {
        ensure!(is_in(rig, *client), "rank {client} waits, and idle fds could be closed for it");
    }
    let held = ids.iter().filter(|id| rig.is_held(**id)).count() as u64;
    ensure!(held == limits::IDLE_FDS_KEPT, "{held} idle fds are left");
    ensure!(!is_in(rig, ranks[6].0), "rank {} has no place", ranks[6].0);
    // Nothing comes back for it: others go on with the fds that they have, also when it is the turn
    // of its domain.
    rig.register_new(owner, 1)?;
    rig.register_new(owner, 1)?;
    rig.world.feed(Action::Gone { client: ranks[0].0 })?;
    rig.settle(&[])?;
    ensure!(is_in(rig, ranks[6].0), "the last rank waits, and there are places");
    rig.end()
}

pub fn refused_fds_when_they_pile_up_then_deposits_are_refused_unread(rig: &mut Rig) -> Check {
    rig.begin(|config| config.max_refused_per_domain = 2);
    let (client, deadline) = (rig.client()?, rig.world.now + LONG_US);
    let status = Status::with_value(ErrorCode::UnsupportedFd, 7);
    for _ in 0..4 {
        let deposits = vec![Arrived { judged: Err(status), lane: Lane::Refused }];
        let (request, credits_wanted) = (rig.world.next_request(client), 0);
        rig.world.feed(Action::Register { client, request, deposits, credits_wanted, deadline })?;
    }
    rig.settle(&[])?;
    rig.register_new(client, 1)?;
    rig.end()
}

pub fn reclaim_when_a_domain_is_full_then_only_its_own_clients_are_asked(rig: &mut Rig) -> Check {
    rig.begin(|config| config.domain.open_leases = 1);
    let (other_owner, other_holder) = (rig.client_of(OTHER_UID)?, rig.client_of(OTHER_UID)?);
    let other = rig.register_new(other_owner, 1)?[0];
    rig.leases(other_holder, other, 1)?;
    let (owner, holder, waiting) = (rig.client()?, rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    rig.leases(holder, id, 1)?;
    rig.acquire(waiting, id)?;
    ensure!(!rig.has_events(other_holder), "a client of another domain is asked for its lease");
    ensure!(rig.has_events(holder), "the holder is not asked for its lease");
    rig.end()
}

/// 90 fds, of which clients of one user lease so many; the client that does so, and two of another
/// user.
fn shared_by_two(
    rig: &mut Rig,
    count: usize,
) -> Check<(u32, AllocationId, [u32; 2], AllocationId)> {
    rig.begin(ninety_fds);
    let (owner, holder) = (rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    let others = [rig.client_of(OTHER_UID)?, rig.client_of(OTHER_UID)?];
    let other_id = rig.register_new(others[0], 1)?[0];
    rig.leases(others[1], other_id, 1)?;
    rig.leases(holder, id, count)?;
    Ok((holder, id, others, other_id))
}

pub fn reclaim_when_the_share_is_used_up_by_a_domain_with_much_then_others_are_not_asked(
    rig: &mut Rig,
) -> Check {
    // 80 of 90, and one is another's: then the domain holds 8 times what is free.
    let (holder, id, others, _) = shared_by_two(rig, 80)?;
    let waiting = rig.client()?;
    rig.acquire(waiting, id)?;
    ensure!(!rig.has_events(others[1]), "a domain with little is asked for its lease");
    ensure!(rig.has_events(holder), "the holder is not asked for its leases");
    rig.end()
}

pub fn reclaim_when_the_share_is_used_up_by_a_domain_with_little_then_others_are_asked(
    rig: &mut Rig,
) -> Check {
    let (holder, _, [_, other], other_id) = shared_by_two(rig, 80)?;
    // Then only the last sixteenth is free.
    rig.leases(other, other_id, 4)?;
    rig.acquire(other, other_id)?;
    ensure!(rig.has_events(holder), "the domain that has most is not asked for its leases");
    rig.end()
}

pub fn slots_when_freed_then_used_again_oldest_first_after_those_never_used(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| config.max_slots = 4);
    let owner = rig.client()?;
    let mut used = Vec::new();
    for _ in 0..4 {
        let id = rig.register_new(owner, 1)?[0];
        used.push(id.slot);
        rig.unregister(owner, id)?;
    }
    ensure!(used == [0, 1, 2, 3], "slots {used:?} are used, and others were never used");
    let ids = rig.register_new(owner, 4)?;
    let mut freed = Vec::new();
    for at in [1, 0, 3, 2] {
        freed.push(ids[at].slot);
        rig.unregister(owner, ids[at])?;
    }
    let again: Vec<u32> = rig.register_new(owner, 4)?.iter().map(|id| id.slot).collect();
    ensure!(again == freed, "slots {freed:?} were freed, and used again as {again:?}");
    rig.end()
}

pub fn reclaim_when_what_was_asked_for_has_ended_then_its_holder_is_asked_before_others(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| config.node.open_leases = 3);
    let (owner, idle, busy) = (rig.client()?, rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 2)?;
    let (given, ends) = (rig.leases(idle, ids[0], 1)?[0], rig.leases(idle, ids[1], 1)?[0]);
    rig.leases(busy, ids[0], 1)?;
    let waits = rig.acquire(owner, ids[0])?;
    rig.release(idle, given)?;
    let owners = rig.lease(owner, waits)?;
    // The idle client has been asked for all that it has left.
    rig.acquire(busy, ids[0])?;
    rig.unregister(owner, ids[1])?;
    rig.release(idle, ends)?;
    rig.release(owner, owners)?;
    rig.leases(idle, ids[0], 1)?;
    rig.acquire(busy, ids[0])?;
    rig.acquire(owner, ids[0])?;
    rig.end()
}

pub fn supplied_when_its_client_stops_to_read_then_it_makes_room_for_others(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| {
        config.node.fds = 4;
        config.base_credits = 0;
    });
    let (owner, late) = (rig.client()?, rig.client()?);
    let (user, other, deaf) = (rig.client()?, rig.client()?, rig.client()?);
    let (first, second) = (rig.register_new(owner, 1)?[0], rig.register_new(late, 1)?[0]);
    rig.world.feed(Action::Evict { ids: vec![first, second] })?;
    rig.close_all()?;
    // Each recall has a place, and one for the lease of its first request.
    rig.acquire(user, first)?;
    let waits = rig.acquire(other, first)?;
    rig.acquire(user, second)?;
    rig.acquire(deaf, second)?;
    rig.settle(&[late])?;
    rig.settle(&[])?;
    rig.world.feed(Action::Sendable { client: deaf, sendable: false })?;
    rig.settle(&[])?;
    rig.lease(other, waits)?;
    rig.end()
}

pub fn redeposit_when_requests_wait_for_several_then_the_older_goes_first(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node.held_bytes = 2 * PAGE_BYTES);
    let owner = rig.client()?;
    let small = deposit(1);
    let large = sized(2 * PAGE_BYTES, deposit(4));
    let ids = rig.register(owner, &[small, large])?;
    rig.crash()?;
    let (owner, first, second) = (rig.returned()?, rig.client()?, rig.client()?);
    rig.register(first, &[Deposit { recallable: false, ..deposit(1) }])?;
    let waits = rig.acquire(first, ids[0])?;
    rig.acquire(second, ids[1])?;
    // There is room for the first alone, and the second is looked at first.
    let items = [(ids[1], large), (ids[0], small)];
    let items = items.map(|(id, deposit)| Redeposit { id: Ok(id), deposit, ended: false }).to_vec();
    let request = rig.world.next_request(owner);
    rig.world.feed(Action::Redeposit { client: owner, request, items })?;
    rig.settle(&[])?;
    rig.lease(first, waits)?;
    rig.end()
}

/// Requests of full length that wait for one fd, each of a client of its own.
const FULL_REQUESTS: usize = 12;

pub fn supply_when_full_requests_wait_then_granted_in_portions_without_a_further_input(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| {
        config.node.held_fds = 5;
        config.base_credits = 0;
        config.max_credits = 2;
    });
    let (owner, other) = (rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    let others = rig.register_new(other, 5)?;
    rig.evict(id, other, &others)?;
    let deadline = rig.world.now + LONG_US;
    let mut waiting = Vec::new();
    for _ in 0..FULL_REQUESTS {
        let client = rig.client()?;
        waiting.push((client, rig.acquire_until(client, &[Ok(id); MAX_BATCH], deadline)?));
    }
    rig.settle(&[owner])?;
    rig.take_all_events(owner)?;
    let granted = |rig: &Rig| rig.world.model.leases.len();
    ensure!(rig.supply(owner)?, "the owner is not asked for the fd");
    let most = limits::PARKED_ITEMS_PER_STEP - 1 + MAX_BATCH;
    let mut before = 0;
    loop {
        let in_step = granted(rig) - before;
        ensure!(in_step <= most, "a step grants {in_step} parked items, and may grant {most}");
        before += in_step;
        if rig.world.core.poll_timeout() != Some(Now(0)) {
            break;
        }
        rig.world.feed(Action::Poll)?;
    }
    for (client, request) in waiting {
        let answered = rig.granted(client, request).is_some();
        ensure!(answered, "client {client} waits for an fd that is here, and no poll is due");
    }
    rig.end()
}

pub fn parked_items_when_their_domain_has_as_many_as_it_may_then_no_quota(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.open_leases = 1;
        config.domain.parked_items = 5;
    });
    let (owner, holder) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 3)?;
    rig.leases(holder, ids[0], 1)?;
    let deadline = rig.world.now + LONG_US;
    let wanted = [Ok(ids[0]), Ok(ids[1]), Ok(ids[2])];
    let (first, second) = (rig.client()?, rig.client()?);
    let waits = rig.acquire_until(first, &wanted, deadline)?;
    ensure!(rig.reply(first, waits).is_none(), "it does not wait");
    let refused = rig.acquire_until(second, &wanted, deadline)?;
    ensure!(rig.is_refused(second, refused), "6 items wait, and the domain may have 5");
    let fits = rig.acquire_until(second, &wanted[..2], deadline)?;
    ensure!(rig.reply(second, fits).is_none(), "5 items may wait");
    rig.end()
}

pub fn turn_when_the_first_are_held_up_then_the_next_of_their_domain_is_served(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| {
        config.node.open_leases = 2;
        config.client.open_leases = 1;
        config.max_parked_per_client = 64;
    });
    let (owner, full) = (rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    let (other_owner, other) = (rig.client_of(OTHER_UID)?, rig.client_of(OTHER_UID)?);
    let other_id = rig.register_new(other_owner, 1)?[0];
    rig.leases(full, id, 1)?;
    let last = rig.leases(other, other_id, 1)?[0];
    // More than a step looks at, and none of them can be served.
    for _ in 0..limits::PARKED_LOOKS_PER_STEP + 4 {
        rig.acquire(full, id)?;
    }
    let (behind, rival) = (rig.client()?, rig.client_of(OTHER_UID)?);
    let (waits, rivals) = (rig.acquire(behind, id)?, rig.acquire(rival, other_id)?);
    rig.release(other, last)?;
    rig.settle(&[])?;
    ensure!(rig.granted(rival, rivals).is_none(), "the turn of the first domain is not over");
    rig.lease(behind, waits)?;
    rig.end()
}

pub fn freed_when_its_owner_has_said_complete_then_stale_before_its_turn_to_end(
    rig: &mut Rig,
) -> Check {
    rig.begin(|_| {});
    let owner = rig.client()?;
    let ids = rig.register_new(owner, 2)?;
    rig.crash()?;
    let (owner, consumer) = (rig.returned()?, rig.client()?);
    rig.world.feed(Action::Complete { client: owner })?;
    // No poll has ended them yet.
    let request = rig.acquire(consumer, ids[0])?;
    let status = rig.status(consumer, request)?;
    ensure!(status.result() == Err(ErrorCode::Stale), "acquire: {}", show_status(&status));
    let request = rig.world.next_request(owner);
    let items = vec![Redeposit { id: Ok(ids[1]), deposit: deposit(1), ended: false }];
    rig.world.feed(Action::Redeposit { client: owner, request, items })?;
    rig.settle(&[])?;
    ensure!(rig.world.ended_with(ids[1]).is_some(), "it is named after COMPLETE, and comes back");
    rig.end()
}

pub fn declared_leases_when_the_caps_are_full_of_others_then_as_many_as_there_can_have_been(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| config.client.open_leases = 2);
    let owner = rig.client()?;
    let ids = rig.register_new(owner, 4)?;
    rig.crash()?;
    let (_, consumer) = (rig.returned()?, rig.client()?);
    let owner = rig.client()?;
    for id in rig.register_new(owner, 2)? {
        let request = rig.acquire(consumer, id)?;
        rig.lease(consumer, request)?;
    }
    for (count, id) in ids.iter().enumerate() {
        let request = rig.world.next_request(consumer);
        let items = vec![Declared { wanted: Ok(*id), open: true }];
        rig.world.feed(Action::Declare { client: consumer, request, items })?;
        let held = rig.world.model.leases.len();
        ensure!(held == 2 + (count + 1).min(2), "{held} leases after {}", count + 1);
    }
    rig.end()
}

pub fn lost_memory_when_its_holders_declare_it_late_then_charged_to_them(rig: &mut Rig) -> Check {
    rig.begin(|_| {});
    let owner = rig.client()?;
    let resident = Deposit { recallable: false, ..deposit(9) };
    let ids = rig.register(owner, &[deposit(1), resident])?;
    rig.crash()?;
    let (owner, consumer) = (rig.returned()?, rig.client()?);
    rig.world.feed(Action::Complete { client: owner })?;
    rig.settle(&[])?;
    let request = rig.world.next_request(consumer);
    let items = ids.iter().map(|id| Declared { wanted: Ok(*id), open: true }).collect();
    rig.world.feed(Action::Declare { client: consumer, request, items })?;
    let held = rig.world.model.leases.len();
    ensure!(held == 2, "{held} of 2 leases, of what was freed and of what is lost");
    let ended = ids.iter().map(|id| rig.world.ended_with(*id)).collect::<Vec<_>>();
    let right = [Some(ErrorCode::Stale), Some(ErrorCode::Lost)];
    ensure!(ended == right, "they ended with {ended:?}");
    rig.end()
}
