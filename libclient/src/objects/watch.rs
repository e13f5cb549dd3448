//! Watching: what happens to names with a prefix, in a bounded queue that the application reads.
//! Must never grow without a bound, nor lose an event without saying so.

use super::options::Whose;
use super::wire;
use crate::books::due::{Due, Teller};
use crate::books::roles::ObjectWatcher;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::interrupt::{Condvar, now, wait_until};
use crate::limits::{LIVENESS_LOOK, WATCH_AGAIN_TIMEOUT, WATCH_EVENTS};
use crate::sync::lock;
use fdbroker_protocol::object::ObjectEvent;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What has happened to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchEvent {
    /// Whether it was sealed, replaced, deleted, evicted or given up, or events were lost.
    pub event: ObjectEvent,
    /// To which name; empty for [`ObjectEvent::Lost`].
    pub name: String,
    /// The version that was sealed, or is gone; 0 of one in the making. For [`ObjectEvent::Lost`]:
    /// how many events were lost, 0 = nobody knows.
    pub version: u64,
}

impl WatchEvent {
    /// One to test with what is done about it.
    pub fn new(event: ObjectEvent, name: impl Into<String>, version: u64) -> Self {
        WatchEvent { event, name: name.into(), version }
    }
}

/// Tells what happens to names that begin with a prefix, from [`crate::Objects::watch`] on, in its
/// order; dropping it ends that.
///
/// What nobody reads in time is lost, and so is what happens while there is no broker:
/// [`ObjectEvent::Lost`] says so, and a list then tells how it stands.
#[derive(Debug)]
#[must_use = "dropping a watch ends it"]
pub struct Watch {
    whose: Whose,
    queue: Arc<Queue>,
}

/// The events that are not read yet.
#[derive(Debug)]
struct Queue {
    prefix: Box<str>,
    of_job: bool,
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<WatchEvent>,
    /// The connection over which the broker knows of it; 0: none.
    epoch: u64,
    teller: Option<Teller>,
}

impl Watch {
    pub(super) fn start(whose: &Whose, prefix: &str, deadline: Deadline) -> Result<Self, Error> {
        let connection = whose.client.connection("watch", deadline)?;
        let state = Mutex::new(State { epoch: connection.epoch, ..State::default() });
        let (prefix, of_job) = (prefix.into(), whose.of_job);
        let queue = Arc::new(Queue { prefix, of_job, state, came: Condvar::new() });
        let watcher: Arc<dyn ObjectWatcher> = queue.clone();
        // Before the broker knows: its first events may come before its answer is read.
        whose.client.common().watches.add(Arc::downgrade(&watcher));
        wire::watch(&connection, whose.flags(), &queue.prefix, deadline)?;
        Ok(Watch { whose: whose.clone(), queue })
    }

    /// The next event, waiting for it until the deadline; `None`: none has come.
    ///
    /// # Errors
    /// NOT_CONNECTED: there is no broker; later calls go on when it is back, with
    /// [`ObjectEvent::Lost`] first. NOT_SUPPORTED in a callback.
    pub fn next(&self, deadline: Deadline) -> Result<Option<WatchEvent>, Error> {
        loop {
            // Anew each time: it may be lost while this waits.
            let connection = self.whose.client.connection("watch", deadline)?;
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            let slice = deadline.at().min(Instant::now() + LIVENESS_LOOK);
            let came = connection.patiently(slice, |until| self.queue.wait(until));
            if came.is_none() && deadline.has_passed() {
                return self.try_next();
            }
            connection.look_at_broker();
        }
    }

    /// From now on it tells `due` this token when there is something new after
    /// [`Watch::try_next`] has found nothing; once now.
    pub fn tell(&self, due: &Due, token: u64) {
        let mut state = lock(&self.queue.state);
        state.teller.insert(Teller::new(due, token)).tell();
    }

    /// The next event that is there. After a loss of the broker it asks the next one to tell what
    /// happens, which it waits for.
    ///
    /// # Errors
    /// As [`Watch::next`].
    pub fn try_next(&self) -> Result<Option<WatchEvent>, Error> {
        if let Some(event) = self.queue.pop() {
            return Ok(Some(event));
        }
        let connection = self.whose.client.connection("watch", Deadline::from_ms(0))?;
        if !self.queue.moves_to(connection.epoch) {
            return Ok(None);
        }
        let flags = self.whose.flags();
        wire::watch(&connection, flags, &self.queue.prefix, Deadline::after(WATCH_AGAIN_TIMEOUT))
            .inspect_err(|_| self.queue.forget_epoch())?;
        Ok(Some(WatchEvent::new(ObjectEvent::Lost, "", 0)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.whose.client.is_forked_copy() {
            return;
        }
        let connection = self.whose.client.current();
        let is_same = |other: &Arc<dyn ObjectWatcher>| {
            !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&self.queue))
                && other.prefix() == &*self.queue.prefix
                && other.is_of_job() == self.queue.of_job
        };
        // Another watch of this client may be the same to the broker.
        if !self.whose.client.common().watches.all().iter().any(is_same) {
            wire::unwatch(&connection, self.whose.flags(), &self.queue.prefix);
        }
    }
}

impl Queue {
    fn pop(&self) -> Option<WatchEvent> {
        lock(&self.state).events.pop_front()
    }

    /// Waits for an event, or the loss of the connection; `None`: neither has come.
    fn wait(&self, until: Instant) -> Option<()> {
        let mut state = lock(&self.state);
        while state.events.is_empty() && state.epoch != 0 {
            if now() >= until {
                return None;
            }
            state = wait_until(&self.came, &self.state, state, until);
        }
        Some(())
    }

    /// Whether this connection does not know of it yet; the caller tells it.
    fn moves_to(&self, epoch: u64) -> bool {
        let mut state = lock(&self.state);
        std::mem::replace(&mut state.epoch, epoch) != epoch
    }

    fn forget_epoch(&self) {
        lock(&self.state).epoch = 0;
    }
}

impl ObjectWatcher for Queue {
    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn is_of_job(&self) -> bool {
        self.of_job
    }

    fn tell(&self, event: ObjectEvent, name: &str, version: u64) {
        let mut state = lock(&self.state);
        state.push(WatchEvent::new(event, name, version));
        if state.events.len() == 1 {
            state.teller.iter().for_each(Teller::tell);
        }
        drop(state);
        self.came.notify_all();
    }

    fn disconnected(&self) {
        self.forget_epoch();
        lock(&self.state).teller.iter().for_each(Teller::tell);
        self.came.notify_all();
    }
}

impl State {
    /// The last place is for the word that events were lost, which counts them.
    fn push(&mut self, event: WatchEvent) {
        if self.events.len() < WATCH_EVENTS {
            return self.events.push_back(event);
        }
        match self.events.back_mut() {
            Some(last) if last.event == ObjectEvent::Lost => last.version += 1,
            _ => self.events.push_back(WatchEvent::new(ObjectEvent::Lost, "", 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_when_nobody_reads_then_bounded_and_the_last_says_how_many_are_lost() {
        let mut state = State::default();
        let event = |version| WatchEvent::new(ObjectEvent::Sealed, "a", version);
        (0..WATCH_EVENTS as u64 + 7).for_each(|version| state.push(event(version)));
        assert_eq!(state.events.len(), WATCH_EVENTS + 1);
        let last = state.events.back().unwrap();
        assert_eq!((last.event, last.version), (ObjectEvent::Lost, 7));
        // As soon as there is room, events are kept again, behind that word.
        state.events.pop_front();
        state.events.pop_front();
        state.push(event(1));
        assert_eq!(state.events.back().unwrap().version, 1);
    }
}
