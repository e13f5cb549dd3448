//! Messages that nobody waits for, and the connection as far as the books need one.
//! Plain data; must never do IO.

use fdbroker_protocol::AllocationId;
use std::fmt::Debug;

/// A message that nobody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OneWay {
    /// Imported, fd closed.
    Mapped(u64),
    /// Lease given back.
    Released(u64),
    /// The request with this id is given up.
    Cancel(u64),
    /// A buffer was freed.
    Unregister(Unregister),
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
    /// Sends messages, or queues those that do not fit now. Never waits. A lost connection takes none.
    fn post_all(&self, messages: &mut dyn Iterator<Item = OneWay>);
    /// Queues a message, to go with the next one that is sent.
    fn queue(&self, message: OneWay);
    /// Ends the connection.
    fn kill(&self, reason: &str);

    /// Sends one message, as `post_all`.
    fn post(&self, message: OneWay) {
        self.post_all(&mut std::iter::once(message));
    }
}
