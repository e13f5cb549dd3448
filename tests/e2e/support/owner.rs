//! A client that owns blocks of memory and exports them again when recalled, and the notices that
//! clients get. Must never answer a recall differently from what its test wants.

use super::broker::Broker;
use super::memory::Blocks;
use super::wait::{PATIENCE, patience};
use fdbroker_client::{Client, Deposit, Notice, Registration};
use fdbroker_protocol::{AllocationId, Handle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// How long a test waits to see that nothing arrives. Silence proves little; an arrival disproves
/// for sure.
const QUIET_TIME: std::time::Duration = std::time::Duration::from_millis(200);

/// A notice that a client got.
#[derive(Debug)]
pub struct Notices(Receiver<Notice>);

/// A queue of notices, and the callback that fills it.
pub fn notices() -> (Notices, impl Fn(Notice) + Send + Sync) {
    let (sender, receiver) = channel();
    // This fails if the test has ended before its client.
    let tell = move |notice| drop(sender.send(notice));
    (Notices(receiver), tell)
}

impl Notices {
    /// Awaits a notice that `wanted` accepts, and drops the others.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut wanted: impl FnMut(Notice) -> Option<T>) -> T {
        loop {
            match self.0.recv_timeout(PATIENCE) {
                Ok(notice) => match wanted(notice) {
                    Some(found) => return found,
                    None => continue,
                },
                Err(error) => panic!("not told: {what} ({error})"),
            }
        }
    }

    /// Awaits that the allocation is drained.
    #[track_caller]
    pub fn until_drained(&self, wanted: AllocationId) {
        self.until(&format!("drained {wanted}"), |notice| {
            matches!(notice, Notice::Drained { id, .. } if id == wanted).then_some(())
        });
    }

    /// Awaits that a lease of the allocation is revoked; returns the reason.
    #[track_caller]
    pub fn until_revoked(&self, wanted: AllocationId) -> fdbroker_protocol::ErrorCode {
        self.until(&format!("revoked {wanted}"), |notice| match notice {
            Notice::Revoked { id, code, .. } if id == wanted => Some(code),
            _ => None,
        })
    }

    /// Asserts that the connection has not been lost so far.
    #[track_caller]
    pub fn assert_never_disconnected(&self) {
        for notice in self.0.try_iter() {
            let is_lost = matches!(
                notice,
                Notice::Disconnected | Notice::Reconnected { .. } | Notice::GoingAway { .. }
            );
            assert!(!is_lost, "{notice:?}");
        }
    }

    /// Asserts that no notice of a revoked lease has arrived so far.
    #[track_caller]
    pub fn assert_never_revoked(&self) {
        for notice in self.0.try_iter() {
            assert!(!matches!(notice, Notice::Revoked { .. }), "{notice:?}");
        }
    }

    /// Asserts that no notice of a drained allocation has arrived so far.
    #[track_caller]
    pub fn assert_not_drained(&self) {
        while let Ok(notice) = self.0.recv_timeout(QUIET_TIME) {
            assert!(!matches!(notice, Notice::Drained { .. }), "too early: {notice:?}");
        }
    }
}

/// A client with blocks of its own.
#[derive(Debug)]
pub struct Owner {
    pub client: Client,
    pub blocks: Arc<Blocks>,
    pub registrations: Vec<Registration>,
    pub notices: Notices,
    recalls: Arc<AtomicU64>,
}

/// Blocks in one call to register. An emulated machine cannot export thousands within the time
/// limit of one call.
const PORTION: usize = 1000;

impl Owner {
    /// Registers `count` recallable blocks; block `i` has the bytes of `pattern(i)`.
    pub fn of(broker: &Broker, name: &str, count: usize) -> Owner {
        Owner::with(broker, name, count, |deposit| deposit)
    }

    /// Registers `count` blocks after `change` has changed each deposit.
    pub fn with(
        broker: &Broker,
        name: &str,
        count: usize,
        change: impl Fn(Deposit) -> Deposit,
    ) -> Owner {
        let mut owner = Owner::without(broker, name, count);
        owner.register(0..count, change);
        owner
    }

    /// Connects with `count` blocks, and registers none.
    pub fn without(broker: &Broker, name: &str, count: usize) -> Owner {
        let blocks = Arc::new(Blocks::new(count));
        let recalls = Arc::new(AtomicU64::new(0));
        let (notices, on_notice) = notices();
        let (for_recall, counter) = (Arc::clone(&blocks), Arc::clone(&recalls));
        let client = broker
            .builder(name)
            .own_fds(2)
            .on_notice(on_notice)
            .on_recall(move |recall| {
                counter.fetch_add(1, Ordering::Relaxed);
                for_recall.answer(recall)
            })
            .connect()
            .expect("connect");
        Owner { client, blocks, registrations: Vec::new(), notices, recalls }
    }

    #[track_caller]
    pub fn register(&mut self, range: std::ops::Range<usize>, change: impl Fn(Deposit) -> Deposit) {
        let deposits: Vec<Deposit> =
            range.clone().map(|index| change(self.blocks.deposit(index))).collect();
        for (portion, first) in deposits.chunks(PORTION).zip(range.step_by(PORTION)) {
            let export = |index: usize| Ok(self.blocks.export(first + index));
            let registered =
                self.client.register_with(portion, export, patience()).expect("connected");
            let registered = registered.into_iter().map(|one| one.expect("registered"));
            self.registrations.extend(registered);
        }
    }

    pub fn handle(&self, index: usize) -> Handle {
        self.registrations[index].handle
    }

    pub fn handles(&self) -> Vec<Handle> {
        self.registrations.iter().map(|one| one.handle).collect()
    }

    pub fn id(&self, index: usize) -> AllocationId {
        self.registrations[index].id()
    }

    /// Recalls answered so far.
    pub fn recalls(&self) -> u64 {
        self.recalls.load(Ordering::Relaxed)
    }
}
