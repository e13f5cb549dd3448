//! What the core keeps of each parked request. A plain record; must never act by itself.

use std::sync::Arc;

use crate::api::{Asker, Now, Wanted};
use crate::books::ledger::{Blocked, Charge};
use crate::books::objects::get::{Get, Standing};
use fdbroker_protocol::Resource;

/// What a parked request wants. Whoever looks at it has it without a copy of its items.
#[derive(Clone, Debug)]
pub enum Wish {
    /// Fds: the items of an acquire.
    Acquire(Arc<[Wanted]>),
    /// Credits for that many deposits.
    Credits(u64),
    /// To be let in, with that many fds of its own.
    Hello(u64),
    /// Objects by their names, and where it stands.
    Get(Arc<Get>, Standing),
}

impl Wish {
    /// How many items a look at it looks at.
    pub fn items(&self) -> usize {
        match self {
            Wish::Acquire(wanted) => wanted.len(),
            Wish::Get(get, _) => get.names.len(),
            Wish::Credits(_) | Wish::Hello(_) => 0,
        }
    }
}

/// What a parked request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A recall alone; or a name that is not sealed.
    Recall,
    /// Room in an account.
    Room(Blocked),
    /// More room in an account than a request takes: it holds up no other request.
    Space(Blocked),
    /// Its client to read.
    Reader,
}

/// A parked request: holds nothing but its place in the queue.
#[derive(Debug)]
pub struct Parked {
    /// Whose it is.
    pub by: Asker,
    /// When it is answered in any case.
    pub deadline: Now,
    /// What it wants.
    pub wish: Wish,
    /// Its items in the queues of [`crate::moves::waiting`], in its order; [`crate::api::NONE`]: in
    /// none.
    pub nodes: Box<[u32]>,
    /// What it waits for.
    pub wait: Wait,
    /// Accounts of which it is looked at, too, when something comes back, and when it was last: see
    /// [`crate::moves::lines`].
    pub listens: Box<[(Blocked, u64)]>,
    /// It waits for room to take a fd that was supplied for it: goes before the others.
    pub supplied: bool,
}

impl Parked {
    /// A request that has just come to wait.
    pub fn new(by: Asker, deadline: Now, wish: Wish, wait: Wait) -> Self {
        let (nodes, listens, supplied) = (Box::default(), Box::default(), false);
        Parked { by, deadline, wish, nodes, wait, listens, supplied }
    }
}

/// What a client is charged with for each of its requests that waits.
pub(crate) const PARKED: Charge = Charge(Resource::ParkedRequests, 1);

/// And with the items of each.
pub(crate) fn items_of(wish: &Wish) -> Charge {
    Charge(Resource::ParkedItems, wish.items() as u64)
}
