//! Stories with a known end. They run step by step on the same core, and the same model judges
//! them, as in the random worlds. Must leave nothing to chance.

use crate::action::{Action, show_status};
use crate::ahead::ahead_when_fetched_then_evicted_as_if_it_had_not_been;
use crate::evictions::*;
use crate::judge::ensure;
use crate::model::Check;
use crate::narrow::*;
use crate::recalls::*;
use crate::rig::{LONG_US, PAGE_BYTES, Rig, arrived, deposit, sized};
use crate::traces::order_when_use_is_skewed_then_2_percent_more_recalls_than_exact_lru_at_most;
use crate::world::Reply;
use fdbroker_core::{
    Arrived, Caps, Config, Deposit, File, FileId, Judged, Lane, LeaseId, Now, Wanted, limits,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, MAX_BATCH, MemoryKind, Resource, Scope, Status,
};

type Scenario = fn(&mut Rig) -> Check;

macro_rules! named {
    ($($scenario:ident)*) => { &[$((stringify!($scenario), $scenario)),*] };
}

pub const ALL: &[(&str, Scenario)] = named! {
    lru_of_one_when_8_consumers_cycle_100_allocations_then_all_are_served
    two_ranks_when_each_waits_for_the_other_then_both_are_served
    credit_when_all_is_resident_then_no_quota_names_the_cap
    owner_when_killed_while_consumers_wait_then_owner_gone
    consumer_when_killed_while_holding_then_accounts_are_zero
    recall_when_unanswered_then_owner_silent_until_it_answers
    supply_when_late_then_accepted_and_granted
    supply_when_refused_then_owner_silent_and_place_is_free
    supply_when_id_differs_then_allocation_ends
    range_when_reused_then_old_ends_and_is_drained_after_its_last_lease
    register_when_same_again_then_as_many_unregisters_end_it
    register_when_another_memfd_is_named_so_then_refused
    requests_when_waiting_for_room_then_served_in_order_of_arrival
    client_when_it_cannot_be_sent_to_then_others_pass_it
    grant_when_unsent_then_request_is_first_again
    close_when_it_hangs_then_its_place_stays_taken
    slots_when_generations_are_used_up_then_retired
    client_when_gone_with_thousands_of_leases_then_forgotten_in_bounded_steps
    batch_when_it_wants_all_that_is_held_then_one_makes_room_for_another
    recall_when_missed_and_then_ended_then_owner_is_silent_no_more
    refused_fd_when_its_close_hangs_then_its_client_is_forgotten_all_the_same
    eviction_when_room_is_needed_then_least_recently_used_goes
    eviction_when_for_a_request_then_not_of_what_it_wants
    bytes_when_the_share_is_used_up_then_refused_and_others_find_some
    eviction_when_for_bytes_then_of_a_file_with_all_its_ranges
    eviction_when_the_node_is_short_of_fds_then_its_last_one_of_cuda_goes_last
    eviction_when_an_owner_is_silent_then_its_fds_go_last_and_keep_nobody_out
    revoked_when_more_than_a_message_holds_then_several_messages
    batch_when_253_with_bad_handles_then_each_is_answered
    own_fds_when_the_share_is_used_up_then_refused_and_others_get_in
    leases_when_the_share_is_used_up_then_refused_and_others_get_some
    reclaim_when_the_share_is_used_up_by_a_domain_with_much_then_others_are_not_asked
    reclaim_when_the_share_is_used_up_by_a_domain_with_little_then_others_are_asked
    connections_when_the_share_is_used_up_then_refused_and_others_get_in
    hello_when_idle_fds_fill_the_table_then_ranks_get_in_as_they_are_closed
    hello_when_room_cannot_be_made_then_others_keep_their_fds
    refused_fds_when_they_pile_up_then_deposits_are_refused_unread
    reclaim_when_a_domain_is_full_then_only_its_own_clients_are_asked
    reclaim_when_what_was_asked_for_has_ended_then_its_holder_is_asked_before_others
    supplied_when_its_client_stops_to_read_then_it_makes_room_for_others
    redeposit_when_requests_wait_for_several_then_the_older_goes_first
    slots_when_freed_then_used_again_oldest_first_after_those_never_used
    supply_when_full_requests_wait_then_granted_in_portions_without_a_further_input
    parked_items_when_their_domain_has_as_many_as_it_may_then_no_quota
    turn_when_the_first_are_held_up_then_the_next_of_their_domain_is_served
    declared_leases_when_the_caps_are_full_of_others_then_as_many_as_there_can_have_been
    lost_memory_when_its_holders_declare_it_late_then_charged_to_them
    freed_when_its_owner_has_said_complete_then_stale_before_its_turn_to_end
    end_when_thousands_of_leases_are_out_then_swept_in_portions_and_sums_match
    order_when_use_is_skewed_then_2_percent_more_recalls_than_exact_lru_at_most
    ahead_when_fetched_then_evicted_as_if_it_had_not_been
};

/// A broker with one place, which a credit, a held fd and a recall take in turns.
fn one_place(config: &mut Config) {
    config.node.held_fds = 1;
    config.base_credits = 0;
    config.max_credits = 1;
}

fn lru_of_one_when_8_consumers_cycle_100_allocations_then_all_are_served(rig: &mut Rig) -> Check {
    rig.begin(one_place);
    let owner = rig.client()?;
    let ids = rig.register_new(owner, 100)?;
    let consumers: Vec<u32> = (0..8).map(|_| rig.client()).collect::<Check<_>>()?;
    let mut at: Vec<usize> = (0..8).map(|consumer| consumer * 13).collect();
    let mut waiting: Vec<Option<u64>> = vec![None; 8];
    let mut served = 0;
    for _ in 0..10_000 {
        for (slot, consumer) in consumers.iter().enumerate() {
            if waiting[slot].is_none() && at[slot] < slot * 13 + 100 {
                waiting[slot] = Some(rig.acquire(*consumer, ids[at[slot] % 100])?);
            }
        }
        rig.settle(&[])?;
        for (slot, consumer) in consumers.iter().enumerate() {
            let Some(request) = waiting[slot] else { continue };
            let lease = rig.lease(*consumer, request)?;
            rig.release(*consumer, lease)?;
            (waiting[slot], at[slot], served) = (None, at[slot] + 1, served + 1);
        }
        if served == 800 {
            return rig.end();
        }
    }
    Err(format!("{served} of 800 grants"))
}

fn two_ranks_when_each_waits_for_the_other_then_both_are_served(rig: &mut Rig) -> Check {
    rig.begin(one_place);
    let (left, right) = (rig.client()?, rig.client()?);
    let a = rig.register_new(left, 1)?[0];
    let b = rig.register_new(right, 1)?[0];
    let c = rig.client()?;
    let request = rig.acquire(c, b)?;
    rig.settle(&[])?;
    rig.lease(c, request)?;
    let left_waits = rig.acquire(left, b)?;
    let right_waits = rig.acquire(right, a)?;
    rig.settle(&[])?;
    rig.lease(left, left_waits)?;
    rig.lease(right, right_waits)?;
    rig.end()
}

fn credit_when_all_is_resident_then_no_quota_names_the_cap(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.held_fds = 3;
        config.base_credits = 0;
        config.max_credits = 3;
    });
    let (owner, other) = (rig.client()?, rig.client()?);
    let resident: Vec<Deposit> =
        (0..3).map(|id| Deposit { recallable: false, ..deposit(id) }).collect();
    rig.register(owner, &resident)?;
    let request = rig.world.next_request(other);
    rig.world.feed(Action::Register {
        client: other,
        request,
        deposits: Vec::new(),
        credits_wanted: 1,
        deadline: rig.world.now + 5_000,
    })?;
    ensure!(rig.reply(other, request).is_none(), "answered before its deadline");
    rig.advance(5_000)?;
    let Some(Reply::Failed(status)) = rig.reply(other, request) else {
        return Err("not answered at its deadline".into());
    };
    let pid = rig.world.model.client(owner)?.pid;
    let right = Status::no_quota(Resource::HeldFds, Scope::Node, 3, pid);
    ensure!(status == right, "answered {}, not {}", show_status(&status), show_status(&right));
    rig.end()
}

fn owner_when_killed_while_consumers_wait_then_owner_gone(rig: &mut Rig) -> Check {
    let (owner, consumer, id) = evicted(rig)?;
    let second = rig.client()?;
    let requests = [rig.acquire(consumer, id)?, rig.acquire(second, id)?];
    rig.settle(&[owner])?;
    rig.world.feed(Action::Gone { client: owner })?;
    rig.settle(&[])?;
    for (client, request) in [consumer, second].into_iter().zip(requests) {
        let status = rig.status(client, request)?;
        let right = status.result() == Err(ErrorCode::OwnerGone);
        ensure!(right, "answered {}", show_status(&status));
    }
    ensure!(rig.world.ended_with(id) == Some(ErrorCode::OwnerGone), "{id} lives on");
    rig.end()
}

fn consumer_when_killed_while_holding_then_accounts_are_zero(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node.open_leases = 4);
    let (owner, consumer, waiting) = (rig.client()?, rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 4)?;
    for id in &ids {
        let request = rig.acquire(consumer, *id)?;
        rig.lease(consumer, request)?;
    }
    let request = rig.acquire(waiting, ids[0])?;
    ensure!(rig.granted(waiting, request).is_none(), "granted beyond the cap");
    rig.world.feed(Action::Gone { client: consumer })?;
    rig.settle(&[])?;
    ensure!(!rig.world.model.clients.contains_key(&consumer), "not forgotten");
    rig.lease(waiting, request)?;
    let open = rig.world.model.ledger().node.open;
    ensure!(open == 1, "{open} open leases, only one is left");
    rig.end()
}

fn range_when_reused_then_old_ends_and_is_drained_after_its_last_lease(rig: &mut Rig) -> Check {
    rig.begin(|_| {});
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let old = rig.register(owner, &[sized(4 * PAGE_BYTES, deposit(1))])?[0];
    let request = rig.acquire(consumer, old)?;
    let lease = rig.lease(consumer, request)?;
    let inside = Deposit { base: deposit(1).base + PAGE_BYTES, ..deposit(2) };
    let new = rig.register(owner, &[inside])?[0];
    ensure!(rig.world.ended_with(old) == Some(ErrorCode::Stale), "{old} lives on");
    ensure!(new != old, "the same id for another allocation");
    let drained = rig.world.stats.drained;
    rig.take_all_events(consumer)?;
    rig.take_all_events(owner)?;
    ensure!(rig.world.stats.revoked == 1, "the holder is not told");
    ensure!(rig.world.stats.drained == drained, "drained while leased");
    rig.release(consumer, lease)?;
    rig.take_all_events(owner)?;
    ensure!(rig.world.stats.drained == drained + 1, "not drained after the last lease");
    let request = rig.acquire(consumer, old)?;
    let status = rig.status(consumer, request)?;
    ensure!(status.result() == Err(ErrorCode::Stale), "old: {}", show_status(&status));
    rig.end()
}

fn register_when_same_again_then_as_many_unregisters_end_it(rig: &mut Rig) -> Check {
    rig.begin(|_| {});
    let owner = rig.client()?;
    let ids: Vec<AllocationId> = (0..3)
        .map(|_| rig.register(owner, &[deposit(7)]).map(|ids| ids[0]))
        .collect::<Check<_>>()?;
    ensure!(ids.iter().all(|id| *id == ids[0]), "other allocations: {ids:?}");
    for count in 0..3 {
        ensure!(rig.world.ended_with(ids[0]).is_none(), "ended after {count} of 3");
        let request = rig.world.next_request(owner);
        rig.world.feed(Action::Unregister { client: owner, request, ids: vec![ids[0]] })?;
    }
    ensure!(rig.world.ended_with(ids[0]).is_some(), "not ended");
    rig.end()
}

fn register_when_another_memfd_is_named_so_then_refused(rig: &mut Rig) -> Check {
    rig.begin(|config| config.base_credits = 8);
    let owner = rig.client()?;
    let file = |inode| {
        let id = FileId { device: 1, inode };
        Some(File { id, pinned_bytes: 0, size_bytes: 1 << 20 })
    };
    let facts = Facts::new(MemoryKind::Memfd, PAGE_BYTES);
    let claimed = Deposit { facts, ..deposit(7) };
    for deposits in [&[1, 2, 1][..], &[2, 1]] {
        let all = deposits.iter().map(|inode| arrived(Judged { claimed, file: file(*inode) }));
        let request = rig.world.next_request(owner);
        let deposits = all.collect();
        let deadline = rig.world.now;
        let action =
            Action::Register { client: owner, request, deposits, credits_wanted: 8, deadline };
        rig.world.feed(action)?;
    }
    rig.end()
}

fn requests_when_waiting_for_room_then_served_in_order_of_arrival(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node.open_leases = 1);
    let owner = rig.client()?;
    let ids = rig.register_new(owner, 10)?;
    let holder = rig.client()?;
    let request = rig.acquire(holder, ids[0])?;
    let mut lease = (holder, rig.lease(holder, request)?);
    let waiting: Vec<(u32, u64)> = ids
        .iter()
        .map(|id| {
            let client = rig.client()?;
            Ok((client, rig.acquire(client, *id)?))
        })
        .collect::<Check<_>>()?;
    for (client, request) in &waiting {
        rig.release(lease.0, lease.1)?;
        lease = (*client, rig.lease(*client, *request)?);
    }
    rig.end()
}

fn client_when_it_cannot_be_sent_to_then_others_pass_it(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node.open_leases = 1);
    let (owner, holder) = (rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    let request = rig.acquire(holder, id)?;
    let lease = rig.lease(holder, request)?;
    let (slow, fast) = (rig.client()?, rig.client()?);
    let slow_waits = rig.acquire(slow, id)?;
    let fast_waits = rig.acquire(fast, id)?;
    rig.world.feed(Action::Sendable { client: slow, sendable: false })?;
    rig.release(holder, lease)?;
    let lease = rig.lease(fast, fast_waits)?;
    rig.release(fast, lease)?;
    ensure!(rig.granted(slow, slow_waits).is_none(), "granted without room for the message");
    rig.world.feed(Action::Sendable { client: slow, sendable: true })?;
    rig.lease(slow, slow_waits)?;
    rig.end()
}

fn grant_when_unsent_then_request_is_first_again(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node.open_leases = 1);
    let (owner, first, second) = (rig.client()?, rig.client()?, rig.client()?);
    let id = rig.register_new(owner, 1)?[0];
    let deadline = rig.world.now + LONG_US;
    let request = rig.acquire_until(first, &[Ok(id)], deadline)?;
    let Some(grants) = rig.granted(first, request) else { return Err("not granted".into()) };
    rig.world.feed(Action::Sendable { client: first, sendable: false })?;
    let unsent =
        Action::Unsent { client: first, request, grants, deadline, seq: rig.world.last_seq };
    rig.world.feed(unsent)?;
    let open = rig.world.model.ledger().node.open;
    ensure!(open == 0, "an unsent grant stays on the ledger");
    let later = rig.acquire(second, id)?;
    let lease = rig.lease(second, later)?;
    let behind = rig.acquire(second, id)?;
    rig.world.feed(Action::Sendable { client: first, sendable: true })?;
    rig.release(second, lease)?;
    rig.lease(first, request)?;
    ensure!(rig.granted(second, behind).is_none(), "two leases under a cap of one");
    rig.end()
}

fn close_when_it_hangs_then_its_place_stays_taken(rig: &mut Rig) -> Check {
    rig.begin(one_place);
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 2)?;
    rig.settle(&[])?;
    let evicted = ids.iter().copied().find(|id| !rig.is_held(*id)).ok_or("both are held")?;
    let request = rig.acquire(consumer, evicted)?;
    rig.take_all_events(owner)?;
    let closing = rig.world.model.ledger().node.closing;
    ensure!(closing == 1, "{closing} fds are closing, not one");
    ensure!(rig.recalls(owner).is_empty(), "a recall while its place is taken");
    rig.settle(&[])?;
    rig.lease(consumer, request)?;
    rig.end()
}

fn slots_when_generations_are_used_up_then_retired(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.max_slots = 2;
        config.first_generation = u32::MAX - 3;
    });
    let owner = rig.client()?;
    // Three generations (MAX-3, MAX-2, MAX-1) in each of two slots.
    for round in 0..6 {
        let id = rig.register_new(owner, 1)?[0];
        let request = rig.world.next_request(owner);
        rig.world.feed(Action::Unregister { client: owner, request, ids: vec![id] })?;
        rig.settle(&[])?;
        ensure!(rig.world.ended_with(id).is_some(), "round {round}: {id} lives on");
    }
    let request = rig.register_raw(owner, &[deposit(99)], 0)?;
    let Some(Reply::Registered(items)) = rig.reply(owner, request) else {
        return Err("not answered".into());
    };
    ensure!(!items[0].status.is_ok(), "a slot beyond its last generation: {}", items[0].id);
    rig.end()
}

fn client_when_gone_with_thousands_of_leases_then_forgotten_in_bounded_steps(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| config.max_slots = 2_000);
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 1_500)?;
    let wanted: Vec<Wanted> = ids.iter().copied().map(Ok).collect();
    for part in wanted.chunks(MAX_BATCH) {
        for _ in 0..2 {
            let now = rig.world.now;
            rig.acquire_until(consumer, part, now)?;
        }
    }
    let held = rig.world.model.leases.len();
    ensure!(held == 3_000, "{held} leases, not 3000");
    let steps = rig.world.stats.steps;
    rig.world.feed(Action::Gone { client: consumer })?;
    rig.world.feed(Action::Gone { client: owner })?;
    rig.settle(&[])?;
    let (polls, closes) = (rig.world.stats.steps - steps - 2, 1_500);
    let bound = (3_000 + 1_500) / limits::TEARDOWN_PER_STEP as u64 + 4;
    ensure!(polls <= closes + bound, "{polls} steps for the end of two clients");
    ensure!(rig.world.model.clients.is_empty(), "not forgotten");
    rig.end()
}

fn batch_when_it_wants_all_that_is_held_then_one_makes_room_for_another(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.fds = 4;
        config.base_credits = 0;
    });
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let all = rig.register_new(owner, 4)?;
    let wanted: Vec<Wanted> = all.into_iter().map(Ok).collect();
    let deadline = rig.world.now + LONG_US;
    let request = rig.acquire_until(consumer, &wanted, deadline)?;
    rig.settle(&[])?;
    let items = rig.granted(consumer, request).ok_or("not answered while all is idle")?;
    ensure!(items.iter().any(|item| item.status.is_ok()), "nothing is granted: {items:?}");
    rig.end()
}

fn refused_fd_when_its_close_hangs_then_its_client_is_forgotten_all_the_same(
    rig: &mut Rig,
) -> Check {
    rig.begin(|_| {});
    let (client, request) = (rig.client()?, 77);
    let what = Status::with_value(ErrorCode::UnsupportedFd, 7);
    let deposits = vec![Arrived { judged: Err(what), lane: Lane::Refused }];
    let deadline = rig.world.now;
    rig.world.feed(Action::Register { client, request, deposits, credits_wanted: 0, deadline })?;
    rig.world.feed(Action::Gone { client })?;
    ensure!(!rig.world.model.clients.contains_key(&client), "a hung close keeps the client");
    let charged = rig.world.model.ledger().node.closing;
    ensure!(charged == 1, "the fd is charged to {charged} places while it closes");
    rig.end()
}

fn end_when_thousands_of_leases_are_out_then_swept_in_portions_and_sums_match(
    rig: &mut Rig,
) -> Check {
    rig.begin(|_| {});
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let (id, other) = (rig.register_new(owner, 1)?[0], rig.register_new(owner, 1)?[0]);
    let now = rig.world.now;
    for _ in 0..80 {
        rig.acquire_until(consumer, &[Ok(id); MAX_BATCH], now)?;
    }
    let count = rig.world.model.leases.len();
    ensure!(count == 80 * MAX_BATCH, "{count} leases");
    let request = rig.world.next_request(owner);
    rig.world.feed(Action::Unregister { client: owner, request, ids: vec![id] })?;
    let ending = |rig: &Rig| rig.world.core.totals().gauges.leases_ending as usize;
    ensure!(ending(rig) > limits::LEASES_SWEPT_PER_STEP, "{} leases are left", ending(rig));
    // Given back before the sweep comes to it.
    let leases: Vec<LeaseId> = rig.world.model.leases.keys().copied().map(LeaseId).collect();
    let last = leases[leases.len() - MAX_BATCH..].to_vec();
    rig.world.feed(Action::Release { client: consumer, request: None, leases: last })?;
    while rig.world.core.poll_timeout() == Some(Now(0)) {
        rig.world.feed(Action::Poll)?;
        let request = rig.acquire(consumer, other)?;
        let lease = rig.lease(consumer, request)?;
        rig.release(consumer, lease)?;
    }
    ensure!(ending(rig) == 0, "{} leases are left, and no poll is due", ending(rig));
    rig.settle(&[])?;
    let told = rig.world.stats.revoked as usize;
    ensure!(told == count - MAX_BATCH, "{told} leases are told of");
    rig.end()
}

fn batch_when_253_with_bad_handles_then_each_is_answered(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node = Caps { open_leases: 200, ..Caps::NONE });
    let (owner, other, consumer) = (rig.client()?, rig.client_of(2000)?, rig.client()?);
    let mine = rig.register_new(owner, 60)?;
    let foreign = rig.register_new(other, 1)?[0];
    let wanted: Vec<Wanted> = (0..MAX_BATCH)
        .map(|at| match at % 4 {
            0 => Err(ErrorCode::BadHandle),
            1 => Ok(foreign),
            2 => Ok(AllocationId { slot: 77, generation: 9 }),
            _ => Ok(mine[at % mine.len()]),
        })
        .collect();
    let now = rig.world.now;
    let request = rig.acquire_until(consumer, &wanted, now)?;
    let items = rig.granted(consumer, request).ok_or("not answered")?;
    let granted = items.iter().filter(|item| item.status.is_ok()).count();
    let right = (0..MAX_BATCH).filter(|at| at % 4 == 3).count();
    ensure!(granted == right, "{granted} of {right} good handles are granted");
    rig.end()
}

fn revoked_when_more_than_a_message_holds_then_several_messages(rig: &mut Rig) -> Check {
    rig.begin(|config| config.max_slots = 2_000);
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 300)?;
    for part in ids.chunks(MAX_BATCH) {
        let wanted: Vec<Wanted> = part.iter().copied().map(Ok).collect();
        let now = rig.world.now;
        rig.acquire_until(consumer, &wanted, now)?;
    }
    ensure!(rig.world.model.leases.len() == 300, "not all are granted");
    rig.world.feed(Action::Gone { client: owner })?;
    // The core tears the owner down in portions.
    while rig.world.core.poll_timeout() == Some(Now(0)) {
        rig.world.feed(Action::Poll)?;
    }
    // `take_events` checks that no message is longer than a batch.
    rig.take_all_events(consumer)?;
    ensure!(rig.world.stats.revoked == 300, "{} are revoked", rig.world.stats.revoked);
    rig.end()
}
