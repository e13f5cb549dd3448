//! What is remembered of allocations that have ended, so that `fdbroker audit` can name copies of
//! their fds that are still open: a bounded list, the oldest first. Must never let one domain drive
//! out what is remembered of others, nor touch an fd.

use crate::fds::files::Files;
use crate::limits::{TOMBSTONES, TOMBSTONES_PER_DOMAIN};
use fdbroker_core::{DomainKey, Ended, JobKey, JobName, Now, PodKey};
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::{HashMap, VecDeque};

/// One file of an allocation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// 0 = not known, or it tells nothing: of CUDA memory.
    pub inode: u64,
    /// Size of the allocation.
    pub size_bytes: u64,
    /// The job's key; 0 = none.
    job: u64,
    pod: PodKey,
    slot: u32,
    generation: u32,
    /// The owner's, or 0.
    pub pid: u32,
    uid: u32,
    /// When it ended, in seconds of CLOCK_MONOTONIC: enough for 136 years of uptime.
    ended_s: u32,
    listener: u32,
    /// An [`ErrorCode`] in the low bits, the [`MemoryKind`] in the [`KIND_BITS`] above them.
    code_and_kind: u16,
}

const _: () = assert!(size_of::<Tombstone>() == 72);

const KIND_BITS: u32 = 2;
const CODE_BITS: u32 = u16::BITS - KIND_BITS;

impl Tombstone {
    fn new(ended: &Ended, inode: u64, now: Now) -> Self {
        Tombstone {
            inode,
            size_bytes: ended.size_bytes,
            job: ended.job.map_or(0, |(key, _)| key.0),
            pod: ended.domain.pod,
            slot: ended.id.slot,
            generation: ended.id.generation,
            pid: ended.pid,
            uid: ended.domain.uid,
            ended_s: u32::try_from(now.0 / 1_000_000).unwrap_or(u32::MAX),
            listener: ended.domain.listener,
            code_and_kind: ended.code as u16 | (ended.kind as u16) << CODE_BITS,
        }
    }

    /// Slot and generation of the allocation that has ended.
    pub fn id(&self) -> AllocationId {
        AllocationId { slot: self.slot, generation: self.generation }
    }

    pub fn domain(&self) -> DomainKey {
        DomainKey { pod: self.pod, ..DomainKey::new(self.listener, self.uid) }
    }

    /// The owner's job, `None` if it had none.
    pub fn job(&self) -> Option<JobKey> {
        Some(JobKey(self.job)).filter(|job| job.0 != 0)
    }

    /// Number of the [`ErrorCode`] that says why it ended.
    pub fn code(&self) -> u16 {
        self.code_and_kind & ((1 << CODE_BITS) - 1)
    }

    /// Number of its [`MemoryKind`].
    pub fn kind(&self) -> u8 {
        (self.code_and_kind >> CODE_BITS) as u8
    }

    /// Time since the end; up to a second more.
    pub fn age_ms(&self, now: Now) -> u64 {
        (now.0 / 1000).saturating_sub(u64::from(self.ended_s) * 1000)
    }
}

/// Both fit their bits.
const _: () = {
    let mut index = 0;
    while index < ErrorCode::ALL.len() {
        assert!((ErrorCode::ALL[index] as u16) < 1 << CODE_BITS);
        index += 1;
    }
    let mut index = 0;
    while index < MemoryKind::ALL.len() {
        assert!((MemoryKind::ALL[index] as u16) < 1 << KIND_BITS);
        index += 1;
    }
};

const NONE: u32 = u32::MAX;

/// A tombstone in its place, between the ones that are the next older and the next newer of all.
#[derive(Debug)]
struct Place {
    tombstone: Tombstone,
    older: u32,
    newer: u32,
}

/// See the module. Memory: 56 bytes each and 4 in the list of its domain; what may be used is
/// reserved and not touched.
#[derive(Debug)]
pub struct Tombstones {
    places: Slab<Place>,
    /// Behind the last place that was ever used.
    end: u32,
    oldest: u32,
    newest: u32,
    /// Places of each domain, oldest first.
    domains: HashMap<DomainKey, VecDeque<u32>>,
    /// Names of their jobs, and how many tombstones name each.
    jobs: HashMap<u64, (JobName, u32)>,
    dropped: u64,
}

/// [`Tombstones`] for a successor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedTombstones {
    /// Oldest first.
    pub list: Vec<Tombstone>,
    pub jobs: Vec<(u64, JobName)>,
    pub dropped: u64,
}

impl Tombstones {
    pub fn new() -> Self {
        // Growing later would copy megabytes on the loop.
        let places = Slab::with_capacity(TOMBSTONES);
        let (domains, jobs) = (HashMap::new(), HashMap::new());
        Tombstones { places, end: 0, oldest: NONE, newest: NONE, domains, jobs, dropped: 0 }
    }

    /// Remembers an allocation with these files, if audit could find something of it: copies of its
    /// fds, or leases.
    pub fn add(&mut self, ended: &Ended, files: Files, now: Now) {
        let former = files.former.iter().map(|former| former.inode);
        let inodes = std::iter::once(files.inode).chain(former).filter(|inode| *inode != 0);
        let mut is_found = false;
        for inode in inodes.filter(|_| ended.kind.has_own_inode()) {
            is_found = true;
            self.insert(Tombstone::new(ended, inode, now), ended.job.map(|(_, name)| name));
        }
        if !is_found && ended.is_leased {
            self.insert(Tombstone::new(ended, 0, now), ended.job.map(|(_, name)| name));
        }
    }

    /// How many there are, and how many were dropped for newer ones.
    pub fn counts(&self) -> (u64, u64) {
        (self.places.len() as u64, self.dropped)
    }

    /// Behind the last place that was ever used.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Those in these places, by place.
    pub fn within(
        &self,
        places: std::ops::Range<u32>,
    ) -> impl Iterator<Item = (u32, &Tombstone)> + '_ {
        places.filter_map(|at| Some((at, &self.places.get(at as usize)?.tombstone)))
    }

    /// Its job's name, `NONE` without a job.
    pub fn job_name(&self, tombstone: &Tombstone) -> JobName {
        self.jobs.get(&tombstone.job).map_or(JobName::NONE, |(name, _)| *name)
    }

    pub fn save(&self) -> SavedTombstones {
        let next = |at: &u32| self.places.get(*at as usize).map(|place| place.newer);
        let order = std::iter::successors(Some(self.oldest), next);
        let list = order.filter_map(|at| Some(self.places.get(at as usize)?.tombstone)).collect();
        let jobs = self.jobs.iter().map(|(key, (name, _))| (*key, *name)).collect();
        SavedTombstones { list, jobs, dropped: self.dropped }
    }

    /// Those of another broker come before any of this one's.
    pub fn restore(&mut self, saved: SavedTombstones) {
        let names: HashMap<u64, JobName> = saved.jobs.into_iter().collect();
        for tombstone in saved.list {
            self.insert(tombstone, names.get(&tombstone.job).copied());
        }
        self.dropped = self.dropped.saturating_add(saved.dropped);
    }

    fn insert(&mut self, tombstone: Tombstone, job_name: Option<JobName>) {
        let domain = tombstone.domain();
        let of_domain = self.domains.get(&domain).and_then(|places| {
            places.front().copied().filter(|_| places.len() >= TOMBSTONES_PER_DOMAIN)
        });
        match of_domain {
            Some(oldest) => self.drop_oldest(oldest),
            None if self.places.len() >= TOMBSTONES => self.drop_oldest(self.oldest),
            None => {}
        }
        let (older, newer) = (self.newest, NONE);
        let at = self.places.insert(Place { tombstone, older, newer });
        let at = u32::try_from(at).expect("fewer than TOMBSTONES");
        self.set_newer(older, at);
        self.newest = at;
        self.end = self.end.max(at + 1);
        self.domains.entry(domain).or_default().push_back(at);
        if let (Some(name), true) = (job_name, tombstone.job != 0) {
            self.jobs.entry(tombstone.job).or_insert((name, 0)).1 += 1;
        }
    }

    /// Drops the oldest one of its domain.
    fn drop_oldest(&mut self, at: u32) {
        let Place { tombstone, older, newer } = self.places.remove(at as usize);
        self.set_newer(older, newer);
        match self.places.get_mut(newer as usize) {
            Some(place) => place.older = older,
            None => self.newest = older,
        }
        let domain = tombstone.domain();
        if let Some(places) = self.domains.get_mut(&domain) {
            places.pop_front();
            if places.is_empty() {
                self.domains.remove(&domain);
            }
        }
        if let Some((_, uses)) = self.jobs.get_mut(&tombstone.job) {
            *uses -= 1;
            if *uses == 0 {
                self.jobs.remove(&tombstone.job);
            }
        }
        self.dropped = self.dropped.saturating_add(1);
    }

    /// `newer` follows `older`, or is the oldest of all.
    fn set_newer(&mut self, older: u32, newer: u32) {
        match self.places.get_mut(older as usize) {
            Some(place) => place.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::FileId;

    const JOB: JobKey = JobKey(7);

    fn ended(number: u32, uid: u32) -> Ended {
        Ended {
            id: AllocationId { slot: number, generation: 1 },
            kind: MemoryKind::Memfd,
            size_bytes: 4096,
            domain: DomainKey::new(1, uid),
            pid: 9,
            job: Some((JOB, JobName::new("slurm:7"))),
            code: ErrorCode::OwnerGone,
            is_leased: false,
        }
    }

    fn file(number: u32) -> Files {
        of(u64::from(number) + 1)
    }

    fn add(tombstones: &mut Tombstones, number: u32, uid: u32) {
        tombstones.add(&ended(number, uid), file(number), Now(u64::from(number) * 1_000_000));
    }

    fn slots_of(tombstones: &Tombstones, uid: u32) -> Vec<u32> {
        let all = tombstones.save().list;
        all.iter().filter(|it| it.uid == uid).map(|it| it.slot).collect()
    }

    fn of(inode: u64) -> Files {
        Files::of(FileId { device: 0, inode })
    }

    #[test]
    fn add_when_the_file_is_known_then_everything_that_was_said_of_it() {
        let mut tombstones = Tombstones::new();
        add(&mut tombstones, 5, 1000);
        let (_, one) = tombstones.within(0..tombstones.end()).next().expect("one");
        assert_eq!((one.inode, one.size_bytes, one.pid), (6, 4096, 9));
        assert_eq!((one.id(), one.domain()), (ended(5, 1000).id, ended(5, 1000).domain));
        assert_eq!(
            (one.code(), one.kind()),
            (ErrorCode::OwnerGone as u16, MemoryKind::Memfd as u8)
        );
        assert_eq!(one.age_ms(Now(65_000_000)), 60_000);
        assert_eq!(tombstones.job_name(one).as_str(), "slurm:7");
    }

    #[test]
    fn add_when_the_owner_gave_several_files_then_one_of_each() {
        let mut tombstones = Tombstones::new();
        let mut files = of(30);
        (files.former[0].inode, files.former[1].inode) = (20, 10);
        tombstones.add(&ended(1, 1000), files, Now(0));
        let inodes: Vec<u64> = tombstones.save().list.iter().map(|it| it.inode).collect();
        assert_eq!(inodes, [30, 20, 10]);
    }

    #[test]
    fn add_when_the_inode_tells_nothing_then_only_if_leases_are_out() {
        let mut tombstones = Tombstones::new();
        let cuda = Ended { kind: MemoryKind::CudaVmm, ..ended(1, 1000) };
        tombstones.add(&cuda, of(7), Now(0));
        tombstones.add(&ended(2, 1000), of(0), Now(0));
        assert_eq!(tombstones.counts(), (0, 0));
        tombstones.add(&Ended { is_leased: true, ..cuda }, of(7), Now(0));
        let list = tombstones.save().list;
        assert_eq!((list.len(), list[0].inode), (1, 0));
    }

    #[test]
    fn add_when_a_domain_has_its_most_then_its_own_oldest_is_dropped_and_no_other() {
        let mut tombstones = Tombstones::new();
        add(&mut tombstones, 1, 1);
        let most = u32::try_from(TOMBSTONES_PER_DOMAIN).expect("small");
        (0..most + 3).for_each(|number| add(&mut tombstones, number, 2));
        assert_eq!(tombstones.counts(), (u64::from(most) + 1, 3));
        assert_eq!(slots_of(&tombstones, 1), [1]);
        assert_eq!(slots_of(&tombstones, 2), (3..most + 3).collect::<Vec<_>>());
    }

    #[test]
    fn add_when_all_places_are_taken_then_the_oldest_of_all_is_dropped() {
        let mut tombstones = Tombstones::new();
        let all = u32::try_from(TOMBSTONES).expect("small");
        let domains = all / u32::try_from(TOMBSTONES_PER_DOMAIN - 1).expect("small") + 1;
        // In turns, so that none has its most.
        (0..all).for_each(|number| add(&mut tombstones, number, number % domains));
        assert_eq!(tombstones.counts(), (TOMBSTONES as u64, 0));
        (0..5).for_each(|number| add(&mut tombstones, number, 1000));
        assert_eq!(tombstones.counts(), (TOMBSTONES as u64, 5));
        assert_eq!(tombstones.save().list[0].slot, 5);
        assert_eq!(tombstones.end(), all);
    }

    #[test]
    fn restore_when_saved_then_the_same_in_the_same_order() {
        let mut tombstones = Tombstones::new();
        [4, 2, 9].into_iter().for_each(|number| add(&mut tombstones, number, 1));
        add(&mut tombstones, 3, 2);
        tombstones.dropped = 6;
        let mut other = Tombstones::new();
        other.restore(tombstones.save());
        assert_eq!(other.save().list, tombstones.save().list);
        assert_eq!(other.counts(), (4, 6));
        assert_eq!(other.job_name(&other.save().list[0]).as_str(), "slurm:7");
    }

    #[test]
    fn drop_when_the_last_of_a_job_is_gone_then_its_name_is_too() {
        let mut tombstones = Tombstones::new();
        add(&mut tombstones, 1, 1);
        add(&mut tombstones, 2, 2);
        tombstones.drop_oldest(tombstones.oldest);
        assert_eq!(tombstones.jobs.len(), 1);
        tombstones.drop_oldest(tombstones.oldest);
        assert_eq!((tombstones.jobs.len(), tombstones.domains.len()), (0, 0));
        assert_eq!((tombstones.oldest, tombstones.newest), (NONE, NONE));
    }
}
