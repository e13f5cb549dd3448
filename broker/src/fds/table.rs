//! The sole owner of every fd that clients deposited: the held fds, by slot, and the fds of the
//! message at hand. Must never close one on the calling thread, nor let one leave but to a closer.

use crate::fds::closers::Closers;
use crate::fds::closing::{Closing, Reading};
use crate::fds::files::{Files, FilesBySlot};
use crate::fds::jobs::{Job, NOBODY, Report, act};
use crate::fds::pool::Kind;
use crate::fds::rounds::Rounds;
use crate::fds::slow::{LaneNews, SlowLanes};
use crate::fds::tombstones::Tombstones;
use crate::kernel;
use crate::limits::MESSAGES_IN_A_SOCKET;
use fdbroker_core::{DomainKey, Ended, FileId, Lane, Now, Ticket};
use fdbroker_protocol::{MAX_BATCH, MemoryKind, Status};
use fdbroker_scm::ReceivedFds;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A socket to close.
pub struct Retiring {
    pub socket: OwnedFd,
    /// Whose fds may lie in it.
    pub uid: u32,
    /// Who is charged for what its end takes.
    pub user: DomainKey,
    /// What is said once it is closed: it was turned away, or is of an ended connection.
    pub report: Report,
    /// It is known that nothing lies in it, nor can any more.
    pub is_at_end: bool,
}

/// An fd of the message at hand.
struct Arrived {
    fd: OwnedFd,
    file: FileId,
}

/// Of an fd that nobody has looked at.
const UNKNOWN: FileId = FileId { device: 0, inode: 0 };

/// See the module. Memory: 13 bytes per slot up to the highest in use, files included.
pub struct FdTable {
    held: Vec<Option<OwnedFd>>,
    kinds: Vec<Option<MemoryKind>>,
    /// Remembered, because a page of an administrator's list names hundreds: to ask the kernel for
    /// each would hold up grants.
    files: FilesBySlot,
    /// The files of what has ended.
    pub tombstones: Tombstones,
    arrived: Vec<Option<Arrived>>,
    closers: Closers,
    closing: Closing,
    retiring: Vec<Retiring>,
    reports: VecDeque<Report>,
    /// The lanes have further reports.
    has_more_reports: bool,
    rounds: Rounds,
    slow: SlowLanes,
    /// Fds of messages that wait until one of them has been looked at, by uid: at most one message
    /// of each.
    suspended: HashMap<u32, Vec<Option<Arrived>>>,
    /// The sender of the message at hand.
    uid: u32,
    now: Now,
}

impl FdTable {
    /// An empty table for slots below `max_slots`, in a process that may have `table_fds` open.
    /// `share_factor`: as for [`fdbroker_core::Config::share_factor`].
    pub fn new(max_slots: u32, table_fds: u64, share_factor: u64, closers: Closers) -> Self {
        // Reserved but not touched: growing later would copy megabytes on the loop.
        FdTable {
            held: Vec::with_capacity(max_slots as usize),
            kinds: Vec::with_capacity(max_slots as usize),
            files: FilesBySlot::with_capacity(max_slots as usize),
            tombstones: Tombstones::new(),
            arrived: Vec::with_capacity(MAX_BATCH),
            closers,
            closing: Closing::new(table_fds, share_factor),
            retiring: Vec::new(),
            reports: VecDeque::new(),
            has_more_reports: false,
            rounds: Rounds::default(),
            slow: SlowLanes::default(),
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
        self.arrived.extend(received.drain().map(|fd| Some(Arrived { fd, file: UNKNOWN })));
    }

    /// Fds of the message at hand.
    pub fn arrived_count(&self) -> usize {
        self.arrived.len()
    }

    /// The fd at `index` of the message at hand, if nothing has taken it.
    pub fn arrived(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.arrived.get(index)?.as_ref().map(|arrived| arrived.fd.as_fd())
    }

    /// Remembers the file of the fd at `index` of the message at hand.
    pub fn note_file(&mut self, index: usize, file: FileId) {
        if let Some(Some(arrived)) = self.arrived.get_mut(index) {
            arrived.file = file;
        }
    }

    /// Remembers the file of the first fd of the allocation in `slot`, which the broker closes.
    /// `index`: of the fd in the message at hand.
    pub fn meet_arrived(&mut self, index: u16, slot: u32) {
        let arrived = self.arrived.get(usize::from(index)).and_then(Option::as_ref);
        self.files.set(slot, Files::of(arrived.map_or(UNKNOWN, |it| it.file)));
    }

    /// Whether this is another file than the last fd of `slot`, as far as that is known.
    pub fn is_other(&self, slot: u32, file: FileId) -> bool {
        self.files.get(slot).last().is_some_and(|last| last != file)
    }

    /// Makes the fd at `index` of the message at hand the fd of `slot`. `is_supply`: the owner of
    /// the allocation there gives it again. `false`: the core named an fd that is not there, or a
    /// slot that has one.
    #[must_use]
    pub fn store_arrived(
        &mut self,
        index: u16,
        slot: u32,
        kind: Option<MemoryKind>,
        is_supply: bool,
    ) -> bool {
        let Some(Arrived { fd, file }) = self.take_arrived(index) else { return false };
        if is_supply {
            self.files.add(slot, file, self.now)
        } else {
            self.files.set(slot, Files::of(file))
        }
        self.rounds.begin(self.now);
        let slot = self.reach(slot);
        self.kinds[slot] = kind;
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
        let report = Report::Arrived(ticket, self.uid);
        self.closing.begin(report, self.now);
        self.closers.close(fd, self.uid, lane, report);
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

    /// Makes another fd of the same file the fd of `slot`, and gives the former one to a closer.
    /// `false`: none is held there.
    #[must_use]
    pub fn replace_held(&mut self, slot: u32, fd: OwnedFd, uid: u32) -> bool {
        let Some(held) = self.held.get_mut(slot as usize).and_then(Option::as_mut) else {
            return false;
        };
        let former = std::mem::replace(held, fd);
        self.closers.close(former, uid, Lane::Accepted, Report::Replaced);
        true
    }

    /// Gives an fd to a closer that was to replace one which is not held any more.
    pub fn close_replaced(&mut self, fd: OwnedFd) {
        self.closers.close(fd, NOBODY, Lane::Accepted, Report::Replaced);
    }

    /// The fd of `slot`, while it is held.
    pub fn held(&self, slot: u32) -> Option<BorrowedFd<'_>> {
        self.held.get(slot as usize)?.as_ref().map(AsFd::as_fd)
    }

    /// Which files the fd of `slot` is, or was.
    pub fn files(&self, slot: u32) -> Files {
        self.files.get(slot)
    }

    /// Remembers an allocation that has just ended. Nothing else has been put into its slot yet.
    pub fn remember(&mut self, ended: &Ended) {
        self.tombstones.add(ended, self.files.get(ended.id.slot), self.now);
    }

    /// Each slot that has had an fd: the kind of its last one, and the fd while it is held.
    pub fn slots(&self) -> impl Iterator<Item = (u32, MemoryKind, Option<BorrowedFd<'_>>)> {
        let all = (0..).zip(self.kinds.iter().zip(&self.held));
        all.filter_map(|(slot, (kind, fd))| Some((slot, (*kind)?, fd.as_ref().map(AsFd::as_fd))))
    }

    /// Puts in the fd that another broker held in `slot`, or only the kind and the files of a
    /// former fd. `fd` is given back when the slot has one already.
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
            files = kernel::stat(fd.as_fd()).map_or(files, |stat| Files::of(stat.id()));
        }
        if fd.is_some() {
            self.rounds.begin(self.now);
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
        for Arrived { fd, .. } in self.arrived.drain(..).flatten() {
            self.closing.begin(Report::Refused(uid), self.now);
            self.closers.close(fd, uid, Lane::Refused, Report::Refused(uid));
        }
    }

    /// Has a lane close a socket in which fds may lie: of a connection that was given up
    /// ([`Report::Refused`]), turned away, or ended ([`Report::Retired`]).
    pub fn close_socket(&mut self, socket: OwnedFd, uid: u32, report: Report) {
        self.hand(uid, Kind::Close(Lane::Refused), Job::with(act::CLOSE, socket, 0), report);
    }

    /// Has a lane do this for a user, whom it counts against until it is reported.
    fn hand(&mut self, uid: u32, kind: Kind, job: Job, report: Report) {
        self.closing.begin(report, self.now);
        self.closers.add(uid, kind, (job, report));
    }

    /// Has a lane tell the peer of a socket why it is turned away, and close it.
    pub fn turn_away(&mut self, socket: OwnedFd, uid: u32, status: Status) {
        let job = Job::turning_away(socket, status);
        self.hand(uid, Kind::Close(Lane::Refused), job, Report::TurnedAway(uid));
    }

    /// Has a lane end a socket and drop what lies in it; this is a duplicate of it.
    pub fn empty(&mut self, duplicate: OwnedFd, uid: u32) {
        let job = Job::with(act::EMPTY, duplicate, MESSAGES_IN_A_SOCKET);
        self.hand(uid, Kind::Close(Lane::Refused), job, Report::Refused(uid));
    }

    /// Has a lane drop the next message in a socket; this is a duplicate of it. [`Report::Dropped`]
    /// tells when. It does not wait behind closes that hang.
    pub fn drop_next(&mut self, duplicate: OwnedFd, uid: u32) {
        self.hand(uid, Kind::Drop, Job::with(act::DROP, duplicate, 1), Report::Dropped(uid));
    }

    /// How many fds of clients are with the lanes.
    pub fn closing(&self) -> &Closing {
        &self.closing
    }

    /// How messages of `uid` may be read now.
    pub fn reading(&self, uid: u32) -> Reading {
        self.closing.reading(uid, self.now)
    }

    /// Keeps a socket until there is time to close it.
    pub fn retire(&mut self, retiring: Retiring) {
        self.retiring.push(retiring);
    }

    /// The next socket to close.
    pub fn next_retiring(&mut self) -> Option<Retiring> {
        self.retiring.pop()
    }

    /// Whether sockets are to be closed.
    pub fn is_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// When the next look at memfds is due.
    pub fn files_due(&self) -> Option<Now> {
        self.rounds.due()
    }

    /// As for [`Rounds::look`].
    pub fn look_at_files(&mut self, stored: u64) -> Vec<(u32, u64)> {
        self.rounds.look(&self.held, &self.kinds, stored, self.now)
    }

    /// When to look at the lanes again, if that is to be done.
    pub fn lanes_due(&self) -> Option<Now> {
        self.slow.due()
    }

    /// As for [`SlowLanes::hung`].
    pub fn lanes_hung(&self) -> usize {
        self.slow.hung()
    }

    /// As for [`SlowLanes::look`].
    pub fn look_at_lanes(&mut self) -> LaneNews {
        let news = self.slow.look(&mut self.closers, self.now);
        self.has_more_reports |= self.closers.has_reports();
        news
    }

    /// Has the fd at `index` of the message at hand looked at; the message's fds wait for that.
    /// `false`: it cannot be.
    #[must_use]
    pub fn suspend(&mut self, index: usize) -> bool {
        let uid = self.uid;
        let duplicate = self.arrived(index).map(|fd| fd.try_clone_to_owned());
        let Some(Ok(duplicate)) = duplicate.filter(|_| !self.suspended.contains_key(&uid)) else {
            return false;
        };
        let fds = std::mem::take(&mut self.arrived);
        self.suspended.insert(uid, fds);
        let job = Job::with(act::LOOK, duplicate, 0);
        self.hand(uid, Kind::Close(Lane::Refused), job, Report::Looked(uid, None));
        true
    }

    /// Makes the message of `uid` that waits, if there is one, the message at hand again.
    pub fn resume(&mut self, uid: u32) {
        debug_assert!(self.arrived.is_empty(), "the message before has ended");
        self.uid = uid;
        self.arrived = self.suspended.remove(&uid).unwrap_or_default();
    }

    /// The lanes have something to report.
    pub fn note_reports(&mut self) {
        self.has_more_reports = true;
    }

    /// Whether there is a report.
    pub fn is_reported(&self) -> bool {
        self.has_more_reports || !self.reports.is_empty()
    }

    /// The next report. None may be lost: the core would charge for the fd for ever.
    pub fn next_report(&mut self) -> Option<Report> {
        if self.reports.is_empty() && self.has_more_reports {
            self.has_more_reports = self.closers.take_reports(&mut self.reports);
        }
        let report = self.reports.pop_front()?;
        self.closing.end(report, self.now);
        Some(report)
    }

    /// Hands what is to be closed to the closers.
    pub fn flush(&mut self) {
        self.closers.flush();
    }

    /// Whether something is being closed.
    #[cfg(test)]
    pub fn is_closing(&self) -> bool {
        self.closers.is_busy()
    }

    fn take_arrived(&mut self, index: u16) -> Option<Arrived> {
        self.arrived.get_mut(usize::from(index))?.take()
    }
}
