//! Ranks without a library thread: they serve while they wait, so that no two can wait for each
//! other for ever.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{Blocks, assert_bytes};
use crate::support::owner::notices;
use crate::support::peer::{Peer, to_line};
use crate::support::rank::{dispatching_rank, rank};
use crate::support::wait::{PATIENCE, eventually, is_readable, patience};
use fdbroker_client::{Client, Deadline, Handle, Notice};
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::admin::AllocationState;
use std::sync::Arc;
use std::time::Duration;

/// A broker that holds `held_fds` fds at a time, and gives owners longer than any test.
fn tight(held_fds: u32) -> Broker {
    let lines = format!(
        "[caps.node]\nheld_fds = {held_fds}\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000"
    );
    Setup::new().config(&lines).start()
}

#[track_caller]
fn assert_all_ok(peers: &mut [Peer]) {
    for peer in peers {
        assert_eq!(peer.hear(), "OK");
    }
}

/// Two ranks of one thread each, each of which wants what the other must export first, at the same
/// time.
#[track_caller]
fn assert_two_ranks_get_all(verb: &str) {
    let broker = tight(2);
    let mut ranks = [dispatching_rank(&broker.socket()), dispatching_rank(&broker.socket())];
    let (first, second) = (ranks[0].share(20, 1000), ranks[1].share(20, 2000));
    for _ in 0..3 {
        ranks[0].link.say(&format!("{verb} 2000 {}", to_line(&second)));
        ranks[1].link.say(&format!("{verb} 1000 {}", to_line(&first)));
        assert_all_ok(&mut ranks);
    }
    assert!(broker.status().counters.recalls.get() >= 36, "nothing was recalled");
    drop(ranks);
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_two_ranks_without_a_thread_recall_from_each_other_then_both_get_all() {
    assert_two_ranks_get_all("check");
}

#[test]
fn requests_when_two_ranks_without_a_thread_recall_from_each_other_then_both_get_all() {
    assert_two_ranks_get_all("progress");
}

#[test]
fn acquire_when_ranks_with_and_without_a_thread_share_with_all_then_every_byte_is_right() {
    let broker = tight(4);
    let connect = [rank, dispatching_rank, rank, dispatching_rank];
    let mut ranks = connect.map(|connect| connect(&broker.socket()));
    let shared: Vec<Vec<Handle>> =
        ranks.iter_mut().zip(0..).map(|(rank, n)| rank.share(20, n * 1000)).collect();
    for turn in 1..ranks.len() {
        for (n, rank) in ranks.iter_mut().enumerate() {
            let of = (n + turn) % shared.len();
            let verb = if turn % 2 == 0 { "progress" } else { "check" };
            rank.link.say(&format!("{verb} {} {}", of * 1000, to_line(&shared[of])));
        }
        assert_all_ok(&mut ranks);
    }
    drop(ranks);
    broker.assert_nothing_left();
}

/// A client without a thread, in this process, and its blocks.
struct Lonely {
    client: Client,
    blocks: Arc<Blocks>,
}

impl Lonely {
    fn of(broker: &Broker, count: usize) -> (Lonely, crate::support::owner::Notices) {
        let blocks = Arc::new(Blocks::new(count));
        let for_recall = Arc::clone(&blocks);
        let (told, on_notice) = notices();
        let builder = broker.builder("lonely").own_fds(2).dispatch(true).on_notice(on_notice);
        let answer = move |recall: &fdbroker_client::Recall| for_recall.answer(recall);
        let client = builder.on_recall(answer).connect().expect("connect");
        (Lonely { client, blocks }, told)
    }

    #[track_caller]
    fn register(&self, count: usize) -> Vec<Handle> {
        let deposits: Vec<_> = (0..count).map(|index| self.blocks.deposit(index)).collect();
        let export = |index: usize| Ok(self.blocks.export(index));
        let registered =
            self.client.register_with(&deposits, export, patience()).expect("connected");
        registered.into_iter().map(|one| one.expect("registered").handle).collect()
    }

    /// Serves whenever the event fd says so, until it is true.
    #[track_caller]
    fn serve_until(&self, mut is_true: impl FnMut() -> bool) {
        let until = std::time::Instant::now() + PATIENCE;
        while !is_true() {
            assert!(std::time::Instant::now() < until, "it did not happen");
            assert!(is_readable(self.client.event_fd().expect("in dispatch mode")));
            self.client.dispatch(Duration::ZERO).expect("in dispatch mode");
        }
    }
}

#[test]
fn acquire_when_the_only_thread_must_answer_its_own_recall_then_granted() {
    let broker = tight(1);
    let (lonely, _told) = Lonely::of(&broker, 4);
    let handles = lonely.register(4);
    for _round in 0..3 {
        for (index, handle) in handles.iter().enumerate() {
            let grant = lonely.client.acquire(handle, patience()).expect("by its own recall");
            drop(assert_bytes(grant, index as u64));
        }
    }
    assert!(broker.status().counters.recalls.get() >= 9);
    drop(lonely);
    broker.assert_nothing_left();
}

#[test]
fn recall_when_the_rank_computes_then_answered_once_it_dispatches() {
    let broker = tight(1);
    let (lonely, _told) = Lonely::of(&broker, 2);
    let handles = lonely.register(2);
    let state = broker.admin().allocation(handles[0].id()).expect("on the ledger").state.get();
    assert_eq!(state, AllocationState::Evicted as u32);
    let consumer = broker.client("consumer");
    let hasty = consumer.acquire(&handles[0], Deadline::from_ms(50)).expect_err("nobody serves");
    assert_eq!(hasty.code, ErrorCode::TimedOut, "{hasty}");
    std::thread::scope(|scope| {
        let grant = scope.spawn(|| consumer.acquire(&handles[0], patience()));
        // The recall of before is still to be answered: one event serves both.
        let mut served = 0;
        while served == 0 {
            served = lonely.client.dispatch(PATIENCE).expect("in dispatch mode");
        }
        drop(assert_bytes(grant.join().expect("no panic").expect("served"), 0));
    });
}

#[test]
fn broker_when_it_comes_back_then_found_by_dispatch_and_all_is_as_new() {
    let mut broker = Broker::start();
    let (lonely, told) = Lonely::of(&broker, 2);
    let old = lonely.register(2);
    let before = lonely.client.incarnation();
    broker.kill();
    lonely.serve_until(|| !lonely.client.is_connected());
    told.until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
    let error = lonely.client.acquire(&old[0], patience()).expect_err("there is no broker");
    assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    broker.restart();
    lonely.serve_until(|| lonely.client.is_connected());
    assert_ne!(lonely.client.incarnation(), before);
    let new = lonely.register(2);
    for (index, handle) in new.iter().enumerate() {
        let grant = lonely.client.acquire(handle, patience()).expect("anew");
        drop(assert_bytes(grant, index as u64));
    }
    drop(lonely);
    broker.assert_nothing_left();
}

#[test]
fn broker_when_it_comes_back_and_nobody_dispatches_then_found_by_the_calls() {
    let mut broker = Broker::start();
    let (lonely, _told) = Lonely::of(&broker, 1);
    lonely.register(1);
    broker.kill();
    broker.restart();
    let fd = lonely.blocks.export(0);
    eventually("a call finds the broker", || {
        let fd = std::os::fd::AsFd::as_fd(&fd);
        lonely.client.register(&lonely.blocks.deposit(0), fd, patience()).is_ok()
    });
    drop(lonely);
    broker.assert_nothing_left();
}
