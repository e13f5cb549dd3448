//! The sole owner of every fd that clients deposited: the held fds, by slot, and the fds of the message
//! at hand. Must never close one on the calling thread, nor let one leave but to a closer.

use crate::clock;
use crate::fds::classify;
use crate::fds::closers::{Closers, NOBODY, Report};
use crate::fds::files::{Files, FilesBySlot};
use crate::kernel;
use crate::limits::{
    ARRIVED_CLOSINGS_PER_UID, FILES_PER_LOOK, HUNG_CLOSE, REFUSED_FDS_PER_UID, SLOTS_PER_LOOK,
    refused_fds, turned_away,
};
use fdbroker_core::{Lane, Now, Ticket};
use fdbroker_protocol::{MAX_BATCH, MemoryKind};
use fdbroker_scm::ReceivedFds;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Fds of one uid in the closers.
#[derive(Clone, Copy, Debug, Default)]
struct Closing {
    /// Those that came with a message and were not kept.
    arrived: u32,
    /// Those that the core does not know of, and sockets in whose queues such lie.
    refused: u32,
    /// Of these, sockets of ended connections.
    sockets: u32,
    /// One is being looked at, and a message waits for that.
    is_looked_at: bool,
    /// Since when there are as many as may be.
    full_since: Option<Now>,
}

/// How a uid's messages with fds may be read. Never with room for fewer fds than a message can have: the kernel would
/// close the others on the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// With all their fds.
    Free,
    /// Not now: fds are being closed. Until then they should be.
    Wait(Now),
    /// Not at all, because closes of earlier fds hang: a lane drops them.
    WithoutFds,
}

/// An fd of the message at hand.
struct Arrived {
    fd: OwnedFd,
    /// 0 = not known.
    inode: u64,
}

/// See the module. Memory: 13 bytes per slot up to the highest in use, files included.
pub struct FdTable {
    held: Vec<Option<OwnedFd>>,
    kinds: Vec<Option<MemoryKind>>,
    /// Remembered, because a page of an administrator's list names hundreds: to ask the kernel for each would hold up
    /// grants.
    files: FilesBySlot,
    arrived: Vec<Option<Arrived>>,
    closers: Closers,
    /// Fds that came from a uid and are in the closers; no entry = none.
    closing: HashMap<u32, Closing>,
    /// All refused fds, at most so many while messages with fds are read.
    refused: u64,
    most_refused: u64,
    /// Sockets turned away in which fds may lie, and how many there are when no further connection is accepted.
    turned_away: u64,
    most_turned_away: u64,
    /// Since when there is no room among them for a whole message.
    short_since: Option<Now>,
    /// Fds of messages that wait until one of them has been looked at, by uid: at most one message of each.
    suspended: HashMap<u32, Vec<Option<Arrived>>>,
    /// Of the message at hand.
    uid: u32,
    now: Now,
}

impl FdTable {
    /// An empty table for slots below `max_slots`, in a process that may have `table_fds` open.
    pub fn new(max_slots: u32, table_fds: u64, closers: Closers) -> Self {
        // Reserved but not touched: growing later would copy megabytes on the loop.
        FdTable {
            held: Vec::with_capacity(max_slots as usize),
            kinds: Vec::with_capacity(max_slots as usize),
            files: FilesBySlot::with_capacity(max_slots as usize),
            arrived: Vec::with_capacity(MAX_BATCH),
            closers,
            closing: HashMap::new(),
            refused: 0,
            most_refused: refused_fds(table_fds),
            turned_away: 0,
            most_turned_away: turned_away(table_fds),
            short_since: None,
            suspended: HashMap::new(),
            uid: NOBODY,
            now: Now(0),
        }
    }

    /// Tells the time, once per wake.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Takes over the fds of a message from a client of `uid`; [`refuse_rest`](Self::refuse_rest)
    /// ends the message.
    pub fn begin_message(&mut self, received: &mut ReceivedFds, uid: u32) {
        debug_assert!(self.arrived.is_empty(), "the message before has ended");
        self.uid = uid;
        self.arrived.extend(received.drain().map(|fd| Some(Arrived { fd, inode: 0 })));
    }

    /// Fds of the message at hand.
    pub fn arrived_count(&self) -> usize {
        self.arrived.len()
    }

    /// The fd at `index` of the message at hand, if nothing has taken it.
    pub fn arrived(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.arrived.get(index)?.as_ref().map(|arrived| arrived.fd.as_fd())
    }

    /// Remembers the inode of the fd at `index` of the message at hand.
    pub fn note_inode(&mut self, index: usize, inode: u64) {
        if let Some(Some(arrived)) = self.arrived.get_mut(index) {
            arrived.inode = inode;
        }
    }

    /// Makes the fd at `index` of the message at hand the fd of `slot`; `is_supply`: of the allocation that is there, its
    /// owner gives it again. `false`: the core named what is not there.
    #[must_use]
    pub fn store_arrived(
        &mut self,
        index: u16,
        slot: u32,
        kind: MemoryKind,
        is_supply: bool,
    ) -> bool {
        let Some(Arrived { fd, inode }) = self.take_arrived(index) else { return false };
        match is_supply {
            true => self.files.add(slot, inode, self.now),
            false => self.files.set(slot, Files::of(inode)),
        }
        let slot = self.reach(slot);
        self.kinds[slot] = Some(kind);
        match self.held[slot].replace(fd) {
            None => true,
            Some(former) => {
                // Never closed here, whatever went wrong.
                self.closers.close(former, NOBODY, Lane::Accepted, Report::Uncharged);
                false
            }
        }
    }

    /// Gives the fd at `index` of the message at hand to a closer. `false`: it is not there.
    #[must_use]
    pub fn close_arrived(&mut self, index: u16, ticket: Ticket, lane: Lane) -> bool {
        let Some(Arrived { fd, .. }) = self.take_arrived(index) else { return false };
        self.closers.close(fd, self.uid, lane, Report::Arrived(ticket, self.uid));
        self.count(self.uid, |closing| closing.arrived += 1);
        true
    }

    /// Gives the fd of `slot`, an allocation of `uid`, to a closer. `false`: it is not there.
    #[must_use]
    pub fn close_held(&mut self, slot: u32, uid: u32, ticket: Ticket) -> bool {
        let Some(fd) = self.held.get_mut(slot as usize).and_then(Option::take) else {
            return false;
        };
        self.closers.close(fd, uid, Lane::Accepted, Report::Held(ticket));
        true
    }

    /// The fd of `slot`, while it is held.
    pub fn held(&self, slot: u32) -> Option<BorrowedFd<'_>> {
        self.held.get(slot as usize)?.as_ref().map(AsFd::as_fd)
    }

    /// What the files of held memfds pin now, bytes, by slot: from slot `from` on, not all of them. And where to go on.
    pub fn measure(&self, from: usize) -> (Vec<(u32, u64)>, usize) {
        let (mut measured, end) = (Vec::new(), self.held.len().min(from + SLOTS_PER_LOOK));
        for slot in from..end {
            if measured.len() == FILES_PER_LOOK {
                return (measured, slot);
            }
            if let (Some(MemoryKind::Memfd), Some(fd)) = (self.kinds[slot], &self.held[slot])
                && let Some(file) = classify::file_of(MemoryKind::Memfd, fd.as_fd())
                && let Ok(number) = u32::try_from(slot)
            {
                measured.push((number, file.pinned_bytes));
            }
        }
        (measured, if end == self.held.len() { 0 } else { end })
    }

    /// In how many goes [`measure`](Self::measure) comes to the end, when so many are held.
    pub fn looks_in_a_round(&self, held: u64) -> u64 {
        1 + (self.held.len() / SLOTS_PER_LOOK) as u64 + held / FILES_PER_LOOK as u64
    }

    /// Which files the fd of `slot` is, or was.
    pub fn files(&self, slot: u32) -> Files {
        self.files.get(slot)
    }

    /// Each slot that has had an fd: the kind of its last one, and the fd while it is held.
    pub fn slots(&self) -> impl Iterator<Item = (u32, MemoryKind, Option<BorrowedFd<'_>>)> {
        let all = (0..).zip(self.kinds.iter().zip(&self.held));
        all.filter_map(|(slot, (kind, fd))| Some((slot, (*kind)?, fd.as_ref().map(AsFd::as_fd))))
    }

    /// Puts in what another broker held in `slot`, or has held; `fd` comes back when the slot has one already. What is
    /// not known of its file is asked for.
    pub fn put(
        &mut self,
        slot: u32,
        kind: MemoryKind,
        mut files: Files,
        fd: Option<OwnedFd>,
    ) -> Option<OwnedFd> {
        let index = self.reach(slot);
        self.kinds[index] = Some(kind);
        if self.held[index].is_some() {
            return fd;
        }
        if let (0, Some(fd)) = (files.inode, &fd) {
            files.inode = kernel::stat(fd.as_fd()).map_or(0, |stat| stat.inode);
        }
        self.files.set(slot, files);
        self.held[index] = fd;
        None
    }

    /// Gives every held fd to a closer, uncharged.
    pub fn close_all_held(&mut self) {
        for fd in self.held.drain(..).flatten() {
            self.closers.close(fd, NOBODY, Lane::Accepted, Report::Uncharged);
        }
        self.kinds.clear();
        self.files.clear();
    }

    /// The closers, for what no client of this broker is charged with.
    pub fn closers(&mut self) -> &mut Closers {
        &mut self.closers
    }

    /// The index of `slot`, in the table from now on.
    fn reach(&mut self, slot: u32) -> usize {
        let slot = slot as usize;
        if self.held.len() <= slot {
            self.held.resize_with(slot + 1, || None);
            self.kinds.resize(slot + 1, None);
        }
        slot
    }

    /// Ends the message at hand: what nothing has claimed goes to the lane of `uid`'s refused fds.
    pub fn refuse_rest(&mut self, uid: u32) {
        let mut refused = 0;
        for Arrived { fd, .. } in self.arrived.drain(..).flatten() {
            self.closers.close(fd, uid, Lane::Refused, Report::Refused(uid));
            refused += 1;
        }
        if refused > 0 {
            self.count(uid, |closing| closing.refused += refused);
        }
    }

    /// Has a lane close a socket of no connection, in which fds may lie.
    pub fn refuse(&mut self, socket: OwnedFd, uid: u32) {
        self.count(uid, |closing| closing.refused += 1);
        self.closers.close(socket, uid, Lane::Refused, Report::Refused(uid));
    }

    /// Has a lane close a socket that was turned away, in which fds may lie.
    pub fn turn_away(&mut self, socket: OwnedFd, uid: u32) {
        self.turned_away += 1;
        self.closers.close(socket, uid, Lane::Refused, Report::TurnedAway(uid));
    }

    /// Whether another socket could be turned away. One that is accepted cannot be given back, and whoever closes it closes
    /// what lies in it.
    pub fn may_turn_away(&self) -> bool {
        self.turned_away < self.most_turned_away
    }

    /// Has a lane close a socket of the ended connection `number`, in which fds may lie: [`Report::Retired`] tells when.
    pub fn retire(&mut self, socket: OwnedFd, uid: u32, number: usize) {
        self.count(uid, |closing| {
            (closing.refused, closing.sockets) = (closing.refused + 1, closing.sockets + 1)
        });
        self.closers.close(socket, uid, Lane::Refused, Report::Retired(number, uid));
    }

    /// Has a lane drop what lies in a socket; this is a duplicate of it.
    pub fn empty(&mut self, duplicate: OwnedFd, uid: u32) {
        self.count(uid, |closing| closing.refused += 1);
        self.closers.empty(duplicate, uid);
    }

    /// Has a lane drop the next message in a socket; this is a duplicate of it. [`Report::Dropped`] tells when.
    pub fn drop_next(&mut self, duplicate: OwnedFd, uid: u32) {
        self.count(uid, |closing| closing.refused += 1);
        self.closers.drop_next(duplicate, uid);
    }

    /// Whether so many sockets of ended connections of `uid` hang that it may have no further connection.
    pub fn is_hung(&self, uid: u32) -> bool {
        self.closing.get(&uid).is_some_and(|closing| closing.sockets >= REFUSED_FDS_PER_UID)
    }

    /// Has the fd at `index` of the message at hand looked at; the message's fds wait for that. `false`: it cannot be.
    #[must_use]
    pub fn suspend(&mut self, index: usize) -> bool {
        let uid = self.uid;
        let duplicate = self.arrived(index).map(|fd| fd.try_clone_to_owned());
        let Some(Ok(duplicate)) = duplicate.filter(|_| !self.suspended.contains_key(&uid)) else {
            return false;
        };
        let fds = std::mem::take(&mut self.arrived);
        self.suspended.insert(uid, fds);
        self.closers.look(duplicate, uid);
        self.count(uid, |closing| closing.is_looked_at = true);
        true
    }

    /// Makes the message of `uid` that waits, if there is one, the message at hand again.
    pub fn resume(&mut self, uid: u32) {
        debug_assert!(self.arrived.is_empty(), "the message before has ended");
        self.uid = uid;
        self.arrived = self.suspended.remove(&uid).unwrap_or_default();
    }

    /// How messages of `uid` may be read now.
    pub fn reading(&self, uid: u32) -> Reading {
        // Nearly always empty: then nothing is hashed.
        if self.closing.is_empty() || uid == NOBODY {
            return Reading::Free;
        }
        let full_since = self.closing.get(&uid).and_then(|closing| closing.full_since);
        let Some(since) = full_since.or(self.short_since) else { return Reading::Free };
        let until = clock::after(since, HUNG_CLOSE);
        match self.now < until {
            true => Reading::Wait(until),
            false => Reading::WithoutFds,
        }
    }

    fn count(&mut self, uid: u32, change: impl FnOnce(&mut Closing)) {
        let closing = self.closing.entry(uid).or_default();
        let former = closing.refused;
        change(closing);
        self.refused = self.refused + u64::from(closing.refused) - u64::from(former);
        // Full until half of them are closed: else each close would wake every client that waits.
        let share = if closing.full_since.is_some() { 2 } else { 1 };
        let is_full = closing.is_looked_at
            || closing.refused >= REFUSED_FDS_PER_UID / share
            || closing.arrived >= ARRIVED_CLOSINGS_PER_UID / share;
        closing.full_since = is_full.then(|| closing.full_since.unwrap_or(self.now));
        if closing.refused == 0 && closing.arrived == 0 && !closing.is_looked_at {
            self.closing.remove(&uid);
        }
        let is_short = self.refused + MAX_BATCH as u64 > self.most_refused;
        self.short_since = is_short.then(|| self.short_since.unwrap_or(self.now));
    }

    /// Counts a job of the closers that is done.
    pub fn note_done(&mut self, report: Report) {
        match report {
            Report::Held(_) | Report::Uncharged | Report::Process(..) | Report::Reread => {}
            Report::TurnedAway(_) => self.turned_away -= 1,
            Report::Arrived(_, uid) => self.count(uid, |closing| closing.arrived -= 1),
            Report::Looked(uid, _) => self.count(uid, |closing| closing.is_looked_at = false),
            Report::Refused(uid) | Report::Dropped(uid) => {
                self.count(uid, |closing| closing.refused -= 1);
            }
            Report::Retired(_, uid) => self.count(uid, |closing| {
                (closing.refused, closing.sockets) = (closing.refused - 1, closing.sockets - 1);
            }),
        }
    }

    /// Hands what is to be closed to the closers.
    pub fn flush(&mut self) {
        self.closers.flush();
    }

    /// Whether something is being closed.
    pub fn is_closing(&self) -> bool {
        self.closers.is_busy()
    }

    /// The uids whose fds take long to close, in order; and whether that can be otherwise soon.
    pub fn slow(&self) -> (Vec<u32>, bool) {
        self.closers.slow()
    }

    /// Moves what has been closed to `closed`.
    pub fn take_reports(&mut self, closed: &mut impl Extend<Report>) {
        self.closers.take_reports(closed);
    }

    fn take_arrived(&mut self, index: u16) -> Option<Arrived> {
        self.arrived.get_mut(usize::from(index))?.take()
    }
}
