//! The requests that wait for a reply, and whether a thread reads: the state behind leader and
//! follower. See `reading`. Must never do IO; all of it lives under one short lock.

use crate::books::due::Teller;
use crate::books::one_way::Unregister;
use crate::interrupt::Condvar;
use crate::own_fds::OwnFd;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_scm::ReceivedFds;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The waiting requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: Vec<Waiting>,
    /// Replies to requests that no thread sleeps for, until someone looks. They no longer take a
    /// place.
    answered: HashMap<u64, (Vec<u8>, Vec<OwnFd>)>,
    owed: Vec<Owed>,
    /// Condition variables at rest, so that a request allocates none.
    idle: Vec<Arc<Condvar>>,
    /// Those that wait for a place and for which no thread waits, by their turns.
    queued: BTreeMap<u64, Queued>,
    /// A thread has the reader's role.
    pub reading: bool,
    /// Threads waiting for a place among `waiting`.
    pub queueing: usize,
    pub dead: bool,
}

/// A request that is to be answered to someone.
#[derive(Debug)]
struct Waiting {
    id: u64,
    deposits: u32,
    /// See `Call::ends`.
    ends: Vec<Unregister>,
    /// `None`: no thread ever sleeps for it, someone looks now and then.
    wake: Option<Arc<Condvar>>,
    /// Whom to tell of the reply that no thread sleeps for.
    teller: Option<Teller>,
    /// Its thread sleeps on `wake`. One that does not looks at the state itself before it sleeps.
    sleeps: bool,
    parcel: Option<Parcel>,
}

/// One that waits for a place.
#[derive(Debug)]
struct Queued {
    /// How many places it leaves.
    spare: usize,
    teller: Teller,
}

/// A reply read by one thread for another, its fds owned.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The buffers of the thread that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    pub buf: Box<[u8]>,
    pub len: usize,
    pub fds: ReceivedFds,
}

impl Default for Reader {
    fn default() -> Self {
        let buf = vec![0; MAX_MESSAGE_BYTES].into_boxed_slice();
        Reader { buf, len: 0, fds: ReceivedFds::new() }
    }
}

/// A request that nobody waits for and that the broker will answer.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    pub id: u64,
    pub deposits: u32,
    /// The allocations that it unregisters.
    pub unregisters: Vec<Unregister>,
}

/// Whose a reply is.
#[derive(Debug)]
pub(crate) enum Addressee {
    /// A waiting thread's; its deposits.
    Waiting(usize, u32),
    Late(Owed),
    /// Of a request that never was, or was answered already.
    Unknown,
}

impl Inbox {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn position(&self, id: u64) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.id == id)
    }

    /// A request that a thread will wait for.
    pub fn enter(&mut self, id: u64, deposits: u32, ends: &[Unregister]) {
        let (wake, ends) = (Some(self.idle.pop().unwrap_or_default()), ends.to_vec());
        let (teller, sleeps, parcel) = (None, false, None);
        self.waiting.push(Waiting { id, deposits, ends, wake, teller, sleeps, parcel });
    }

    /// A request that someone will look after now and then.
    pub fn enter_untended(&mut self, id: u64, deposits: u32) {
        let (ends, wake, teller, sleeps, parcel) = (Vec::new(), None, None, false, None);
        self.waiting.push(Waiting { id, deposits, ends, wake, teller, sleeps, parcel });
    }

    /// Has such a one tell of its reply; at once when it is not under way any more. Whether it is
    /// the first time.
    pub fn tell(&mut self, id: u64, teller: &Teller) -> bool {
        let Some(at) = self.position(id) else {
            teller.tell();
            return false;
        };
        self.waiting[at].teller.replace(teller.clone()).is_none()
    }

    /// Has one tell when more than `spare` places are free. Whether it is alone in the queue.
    pub fn queue(&mut self, turn: u64, spare: usize, teller: &Teller) -> bool {
        self.queued.insert(turn, Queued { spare, teller: teller.clone() });
        self.queued.len() == 1
    }

    pub fn leave_queue(&mut self, turn: u64) {
        self.queued.remove(&turn);
    }

    /// Whether more than `spare` of so many places are free. One given up on stays with the broker
    /// until it is answered: else a loop of starts and cancels would come to owe without a bound.
    pub fn has_place(&self, places: usize, spare: usize) -> bool {
        self.len() + self.abandoned() + spare < places
    }

    /// Tells as many of those that wait for a place as there are free ones. One that is told and
    /// does not take it keeps it from the next one no longer than until this is asked again.
    pub fn tell_queued(&mut self, places: usize) {
        if self.queued.is_empty() {
            return;
        }
        let mut taken = self.len() + self.abandoned();
        while taken < places
            && let Some(turn) = self.first_that_fits(places - taken)
            && let Some(first) = self.queued.remove(&turn)
        {
            first.teller.tell();
            taken += 1;
        }
    }

    fn first_that_fits(&self, free: usize) -> Option<u64> {
        self.queued.iter().find(|(_, one)| one.spare < free).map(|(turn, _)| *turn)
    }

    /// Whether one is under way whose reply, or whose place, is to be told of.
    pub fn has_told(&self) -> bool {
        !self.queued.is_empty() || self.waiting.iter().any(|waiting| waiting.teller.is_some())
    }

    /// Whether such a one is under way.
    pub fn has_untended(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.wake.is_none())
    }

    /// Whether one is under way whose reply brings back credits.
    pub fn has_untended_deposits(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.wake.is_none() && waiting.deposits > 0)
    }

    /// Whether one is under way whose reply brings back credits, and whose thread does not wait for
    /// it now.
    pub fn has_unattended_deposits(&self) -> bool {
        let is_unattended = |one: &Waiting| !one.sleeps && one.parcel.is_none();
        self.waiting.iter().any(|one| one.deposits > 0 && is_unattended(one))
    }

    pub fn leave(&mut self, at: usize) {
        self.idle.extend(self.waiting.swap_remove(at).wake);
    }

    /// The reply to a request that no thread sleeps for, if it has been read.
    pub fn take_answered(&mut self, id: u64) -> Option<Parcel> {
        let (bytes, fds) = self.answered.remove(&id)?;
        // Closed by the program meanwhile, they read as those for which there was no room.
        let fds = fds.into_iter().map(OwnFd::into_proved).collect::<Option<_>>();
        Some(Parcel { bytes, fds: fds.unwrap_or_default() })
    }

    pub fn take_parcel(&mut self, at: usize) -> Option<Parcel> {
        self.waiting[at].parcel.take()
    }

    /// The condition variable to sleep on; call `woke` after.
    pub fn sleep(&mut self, at: usize) -> Arc<Condvar> {
        let waiting = &mut self.waiting[at];
        waiting.sleeps = true;
        Arc::clone(waiting.wake.as_ref().expect("a request with a thread"))
    }

    pub fn woke(&mut self, id: u64) {
        if let Some(at) = self.position(id) {
            self.waiting[at].sleeps = false;
        }
    }

    /// Gives up on a request; its reply will be `Late`.
    pub fn abandon(&mut self, at: usize) {
        let Waiting { id, deposits, ref mut ends, .. } = self.waiting[at];
        let unregisters = std::mem::take(ends);
        self.leave(at);
        self.owed.push(Owed { id, deposits, unregisters });
    }

    /// Notes an unregister that nobody waits for.
    pub fn owe(&mut self, id: u64, unregisters: Vec<Unregister>) {
        self.owed.push(Owed { id, deposits: 0, unregisters });
    }

    pub fn abandoned(&self) -> usize {
        self.owed.len() - self.unregistering()
    }

    pub fn unregistering(&self) -> usize {
        self.owed.iter().filter(|owed| !owed.unregisters.is_empty()).count()
    }

    /// Whether replies will come that nobody waits for.
    pub fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Whose reply `id` is. A second reply to one request is nobody's.
    pub fn addressee(&mut self, id: u64) -> Addressee {
        match self.position(id) {
            Some(at) if self.waiting[at].parcel.is_none() => {
                return Addressee::Waiting(at, self.waiting[at].deposits);
            }
            Some(_) => return Addressee::Unknown,
            None => {}
        }
        match self.owed.iter().position(|owed| owed.id == id) {
            Some(at) => Addressee::Late(self.owed.swap_remove(at)),
            None => Addressee::Unknown,
        }
    }

    /// Puts a reply where its thread finds it, and wakes the thread.
    pub fn deliver(&mut self, at: usize, parcel: Parcel) {
        let waiting = &mut self.waiting[at];
        if waiting.wake.is_none() {
            let fds = parcel.fds.into_iter().filter_map(|fd| OwnFd::kept(fd).ok());
            self.answered.insert(waiting.id, (parcel.bytes, fds.collect()));
            waiting.teller.iter().for_each(Teller::tell);
            return self.leave(at);
        }
        waiting.parcel = Some(parcel);
        waiting.wake_sleeper();
    }

    /// Wakes a sleeper to take the reader's role, if nobody has it. `false`: nobody sleeps.
    pub fn wake_a_reader(&self) -> bool {
        let sleeper = self.waiting.iter().find(|one| one.sleeps && one.parcel.is_none());
        sleeper.inspect(|sleeper| sleeper.wake_sleeper()).is_some()
    }

    /// The connection is lost: every waiting thread finds its request gone, unless it has been
    /// answered.
    pub fn close(&mut self) {
        self.dead = true;
        self.owed.clear();
        std::mem::take(&mut self.queued).into_values().for_each(|one| one.teller.tell());
        for gone in self.waiting.extract_if(.., |waiting| waiting.parcel.is_none()) {
            gone.wake_sleeper();
            gone.teller.iter().for_each(Teller::tell);
        }
    }
}

impl Waiting {
    fn wake_sleeper(&self) {
        if let Some(wake) = self.wake.as_ref().filter(|_| self.sleeps) {
            wake.notify_one();
        }
    }
}
