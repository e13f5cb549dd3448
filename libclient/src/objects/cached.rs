//! What is kept of objects that are asked for again and again: memory, by group, and names that
//! lead to it for sure. Must never answer with an object that has lost its name, nor keep what the
//! broker wants back.

use super::object::Object;
use super::options::Whose;
use super::{get, wire};
use crate::books::roles::LeaseWatcher;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::OBJECTS_KEPT;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The objects kept, by name. The hash has no secret: names are chosen by this program and by
/// others of its user, and the table is so small that even names which all collide cost a program
/// of theirs no more than [`OBJECTS_KEPT`] comparisons.
#[derive(Debug, Default)]
pub(super) struct Cached {
    kept: Mutex<FxHashMap<Arc<str>, Kept>>,
    /// The thread that serves tells it what is to be given up.
    is_known: AtomicBool,
}

#[derive(Debug)]
struct Kept {
    object: Object,
    /// It is the only one of its group: as long as that is current its name leads to it.
    is_only: bool,
}

pub(super) fn get(
    cached: &Arc<Cached>,
    whose: &Whose,
    name: &str,
    deadline: Deadline,
) -> Result<Object, Error> {
    // Before the lock: a child of fork(2) may not take it.
    whose.client.check_may_wait("get")?;
    let found = cached.find(name);
    if let Some((object, true)) = found {
        return Ok(object);
    }
    let connection = whose.client.usable("get")?;
    if let Some((object, _)) = found {
        let now = wire::stat(&connection, whose.flags(), &[name], deadline)?.pop().flatten();
        if now.is_some_and(|now| now.version == object.version()) {
            return Ok(object);
        }
    }
    let got = get::get(whose, &[name], deadline)?.pop();
    let object = got.ok_or_else(|| Error::new(ErrorCode::Protocol, format!("get {name}")))?;
    let now = wire::stat(&connection, whose.flags(), &[name], deadline)?.pop().flatten();
    // A group never gets names: one that is alone stays so.
    if let Some(now) = now.filter(|now| now.version == object.version()) {
        cached.keep(whose, &object, now.group_names == 1);
    }
    Ok(object)
}

impl Cached {
    pub fn find(&self, name: &str) -> Option<(Object, bool)> {
        let kept = lock(&self.kept);
        let found = kept.get(name).filter(|kept| kept.object.is_current())?;
        Some((found.object.clone(), found.is_only))
    }

    fn keep(self: &Arc<Self>, whose: &Whose, object: &Object, is_only: bool) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            let watcher: Arc<dyn LeaseWatcher> = self.clone();
            whose.client.common().watchers.add(Arc::downgrade(&watcher));
        }
        let mut kept = lock(&self.kept);
        let name = Arc::from(object.name());
        let before = kept.insert(name, Kept { object: object.clone(), is_only });
        // Whichever it is: those that are asked for come back.
        let most = kept.len() > OBJECTS_KEPT;
        let other = kept.keys().find(|name| &***name != object.name()).filter(|_| most).cloned();
        let other = other.and_then(|name| kept.remove(&name));
        drop(kept);
        // Not under the lock: memory is unmapped here.
        drop((before, other));
    }

    /// Gives up all that nobody uses; how many names.
    pub fn empty(&self) -> usize {
        self.give_up(|kept| !kept.object.is_shared())
    }

    fn give_up(&self, which: impl Fn(&Kept) -> bool) -> usize {
        let given_up: Vec<_> = lock(&self.kept).extract_if(|_, kept| which(kept)).collect();
        given_up.len()
    }
}

/// On the thread that serves.
impl LeaseWatcher for Cached {
    fn revoked(&self, id: AllocationId) {
        self.give_up(|kept| kept.object.id() == id);
    }

    fn reclaim(&self, leases: &[u64]) {
        self.give_up(|kept| leases.contains(&kept.object.lease().number()));
    }

    fn declared(&self) {
        self.give_up(|kept| kept.object.lease().is_refused());
    }
}
