//! Messages that nobody waits for, and the connection as far as the books need one.
//! Plain data; must never do IO.

use fdbroker_protocol::AllocationId;
use std::fmt::Debug;

/// A message that nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneWay {
    /// Imported, fd closed.
    Mapped(u64),
    /// Lease given back.
    Released(u64),
    /// The same for one that nobody waits for: its fd is closed, and its allocation lives. It may
    /// wait for others.
    ReleasedSoon(u64),
    /// The request with this id is given up.
    Cancel(u64),
    /// A buffer was freed.
    Unregister(Unregister),
    /// The same, with others if they come in a row.
    UnregisterSoon(Unregister),
    /// A group of objects is given up.
    Abort(u64),
    /// All that is alive has been named to a broker after a crash.
    Complete,
}

/// A freed allocation whose unregister nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unregister {
    pub id: AllocationId,
    /// The owner to tell of the answer; `None` = nobody.
    pub key: Option<OwnerKey>,
}

/// An allocation as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerKey {
    pub base: u64,
    pub owner_allocation_id: u64,
}

/// A connection to the broker, which carries one-way messages.
pub(crate) trait Line: Send + Sync + Debug {
    /// Sends messages, or queues those that may wait or do not fit now. Never waits. A lost
    /// connection takes none.
    fn post_all(&self, messages: &mut dyn Iterator<Item = OneWay>);
    /// The thread that serves is about to run code that may take its time: nothing waits for that
    /// thread.
    fn look_away(&self);
    /// Ends the connection.
    fn kill(&self, reason: &str);

    /// Sends one message, as `post_all`.
    fn post(&self, message: OneWay) {
        self.post_all(&mut std::iter::once(message));
    }
}
