//! Where what must not be seen in a child is mapped: in zones of addresses that the library
//! reserves once and never gives back. What is unmapped becomes addresses without memory, so
//! nothing but an import is ever there, in the process or in its children. Must never leave a hole
//! in a zone, give a range to two mappings, or hold its lock over a map of a file.

use crate::fork::{self, Process};
use crate::limits::{
    FIRST_ZONE_BYTES, HUGE_PAGE, SMALLEST_HUGE_PAGE, SPARE_MAPPINGS, ZONES_IN_LIMIT,
};
use crate::reserved::{cover, fill, page_size, reserve, total_bytes};
use crate::sync::lock;
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mmap_anonymous, mremap, munmap};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What mmap(2) is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Map<'a> {
    pub fd: BorrowedFd<'a>,
    /// Of the file; `None`: it takes none.
    pub seals: Option<SealFlag>,
    /// Where in the file, in bytes: whole pages, as the length is.
    pub begin: libc::off_t,
    pub len: NonZeroUsize,
    pub protection: ProtFlags,
    pub flags: MapFlags,
}

impl Map<'_> {
    /// At an address of the kernel's choice.
    pub fn anywhere(self) -> nix::Result<NonNull<c_void>> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        unsafe { mmap(None, self.len, self.protection, self.flags, self.fd, self.begin) }
    }

    /// In a zone. The bytes that it takes there are `len` in whole pages of the file.
    pub fn in_zone(self) -> nix::Result<(NonNull<c_void>, NonZeroUsize)> {
        if !self.is_plain() {
            return self.moved();
        }
        let len = whole(self.len, page_size()).ok_or(Errno::ENOMEM)?;
        let at = take(len, page_size(), self.begin)?;
        if at.is_multiple_of(SMALLEST_HUGE_PAGE) && self.huge_page().is_some() {
            give(at, len);
            return self.moved();
        }
        let flags = self.flags | MapFlags::MAP_FIXED;
        // SAFETY: the range is this call's alone, and nobody has a pointer into it.
        let mapped = unsafe {
            mmap(NonZeroUsize::new(at), len, self.protection, flags, self.fd, self.begin)
        };
        match mapped {
            Ok(start) => Ok((start, len)),
            Err(errno) => {
                restore(at, len, errno);
                match errno {
                    Errno::EINVAL if self.huge_page().is_some() => self.moved(),
                    errno => Err(errno),
                }
            }
        }
    }

    /// Whether mmap(2) fails, if it does, before it has unmapped what was there: of shared memory
    /// that is not sealed against it. Before Linux 6.12 a driver is asked after that.
    fn is_plain(self) -> bool {
        let refusing = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE;
        self.seals.is_some_and(|seals| !seals.intersects(refusing))
    }

    /// Mapped elsewhere, then moved to a zone: two slow calls, of which only the first asks the
    /// file.
    fn moved(self) -> nix::Result<(NonNull<c_void>, NonZeroUsize)> {
        let aside = self.anywhere()?;
        let page = self.huge_page().unwrap_or_else(page_size);
        let len = whole(self.len, page).ok_or(Errno::ENOMEM)?;
        let into_zone = || {
            let at = take(len, page, self.begin)?;
            let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
            let place = NonNull::new(std::ptr::without_provenance_mut(at));
            // SAFETY: the mapping just made, to a range that is this call's alone.
            unsafe { mremap(aside, len.get(), len.get(), flags, place) }
                .inspect_err(|errno| restore(at, len, *errno))
        };
        let moved = into_zone();
        if moved.is_err() {
            // SAFETY: the mapping just made, which nobody knows.
            let _ = unsafe { munmap(aside, len.get()) };
        }
        moved.map(|start| (start, len))
    }

    /// Bytes of a page of the file, if it is of hugetlbfs: it maps whole ones, whatever it is asked
    /// for.
    fn huge_page(self) -> Option<usize> {
        let found = fstatfs(self.fd).ok().filter(|it| it.filesystem_type() == HUGETLBFS_MAGIC)?;
        usize::try_from(found.block_size()).ok()
    }
}

/// After a map of a range that failed. Before Linux 6.12 nothing may be there then, and another
/// thread's memory a moment later.
fn restore(at: usize, len: NonZeroUsize, errno: Errno) {
    // It is all there, unless a file was sealed between the look and the map. Then nobody can tell:
    // the range is never used again.
    if fill(at, len).is_ok() || errno != Errno::EPERM {
        give(at, len);
    }
}

thread_local! {
    /// While this thread gathers: the range that is to be unmapped, of 0 bytes at first.
    static GATHERED: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// Unmaps what lies side by side by one system call, at the latest when this is dropped, or has
/// something else mapped over it.
pub(crate) struct Gathering(PhantomData<*const ()>);

impl Gathering {
    pub fn begin() -> Self {
        drop(Gathering(PhantomData));
        GATHERED.set(Some((0, 0)));
        Gathering(PhantomData)
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if let Some((at, len)) = GATHERED.take() {
            close(at, len);
        }
    }
}

/// Unmaps what [`Map::in_zone`] has mapped, or whole pages of it.
pub(crate) fn unmap(start: NonNull<u8>, len: usize) {
    let at = start.addr().get();
    match GATHERED.get() {
        None => close(at, len),
        Some((first, before)) if first + before == at => GATHERED.set(Some((first, before + len))),
        Some((first, behind)) if at + len == first => GATHERED.set(Some((at, len + behind))),
        Some((first, others)) => {
            GATHERED.set(Some((at, len)));
            close(first, others);
        }
    }
}

fn close(at: usize, len: usize) {
    let Some(len) = NonZeroUsize::new(len) else { return };
    match cover(at, len) {
        Ok(()) => give(at, len),
        // The process has all the mappings that it may have.
        Err(errno) => {
            let mut space = lock(&spaces().space);
            space.stuck.push((at, len));
            space.try_stuck_again();
            let is_stuck = !space.stuck.is_empty();
            // A logger of the program's may call the library.
            drop(space);
            if is_stuck {
                log::warn!("cannot unmap {len} bytes yet: {errno}");
            }
        }
    }
}

fn give(at: usize, len: NonZeroUsize) {
    let spaces = spaces();
    let mut space = lock(&spaces.space);
    space.add(at, len.get());
    spaces.count(&space);
}

/// A range for `len` bytes, a multiple of `page` from a multiple of it; where a huge page may be,
/// as it must be for this offset in the file.
fn take(len: NonZeroUsize, page: usize, begin: libc::off_t) -> nix::Result<usize> {
    // What is to be unmapped may as well be mapped over, by one system call instead of two.
    let fits = |of: &(usize, usize)| of.1 == len.get() && page == page_size() && of.1 < HUGE_PAGE;
    if let Some((at, _)) = GATHERED.get().filter(fits) {
        GATHERED.set(Some((0, 0)));
        return Ok(at);
    }
    let spaces = spaces();
    let mut space = lock(&spaces.space);
    space.try_stuck_again();
    let (align, phase) = if len.get() >= HUGE_PAGE && page < HUGE_PAGE {
        (HUGE_PAGE, usize::try_from(begin).unwrap_or(0))
    } else {
        (page, 0)
    };
    let mut taken = space.take(len.get(), align, phase);
    if taken.is_none() {
        fork::look_in_children()?;
        space.keep_spare();
        grow(&mut space, len.get(), align)?;
        taken = space.take(len.get(), align, phase).or_else(|| space.take(len.get(), page, 0));
    }
    spaces.count(&space);
    taken.ok_or(Errno::ENOMEM)
}

/// Reserves one more zone, with room for `len` bytes. Where addresses are few it takes as few as it
/// can.
fn grow(space: &mut Space, len: usize, align: usize) -> nix::Result<()> {
    let limit = getrlimit(Resource::RLIMIT_AS).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let usual = match limit {
        RLIM_INFINITY => FIRST_ZONE_BYTES.max(total_bytes()).max(len.saturating_add(align)),
        limit => usize::try_from(limit / ZONES_IN_LIMIT).unwrap_or(usize::MAX),
    };
    let mut bytes = if limit != RLIM_INFINITY && len > usual / 2 { len } else { usual.max(len) };
    loop {
        let wanted = whole(NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?, page_size());
        let wanted = wanted.ok_or(Errno::ENOMEM)?;
        match reserve(wanted) {
            Ok(start) => {
                space.add(start, wanted.get());
                return Ok(());
            }
            Err(errno) if bytes == len => return Err(errno),
            Err(_) => bytes = len.max(bytes / 2),
        }
    }
}

/// What is free in the zones of one process. A child has zones of its own: its copy of this may be
/// of the middle of a change.
#[derive(Debug)]
struct Spaces {
    process: u32,
    space: Mutex<Space>,
    holes: AtomicUsize,
}

impl Spaces {
    fn count(&self, space: &Space) {
        self.holes.store(space.by_start.len(), Ordering::Relaxed);
    }
}

/// Ranges without memory in the zones: each is a mapping that the kernel counts.
pub(crate) fn holes() -> usize {
    spaces().holes.load(Ordering::Relaxed)
}

fn spaces() -> &'static Spaces {
    static OF_PROCESS: AtomicPtr<Spaces> = AtomicPtr::new(null_mut());
    // First: in a child it closes what the parent has mapped.
    let process = Process::current().number();
    let mut known = OF_PROCESS.load(Ordering::Acquire);
    loop {
        // SAFETY: what is there was leaked, or is null.
        if let Some(found) = unsafe { known.as_ref() }.filter(|found| found.process == process) {
            return found;
        }
        let (space, holes) = (Mutex::default(), AtomicUsize::new(0));
        let fresh = Box::into_raw(Box::new(Spaces { process, space, holes }));
        match OF_PROCESS.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => known = fresh,
            Err(of_another_thread) => {
                known = of_another_thread;
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

/// Free ranges of addresses.
#[derive(Debug, Default)]
struct Space {
    /// No two of them touch.
    by_start: BTreeMap<usize, usize>,
    /// Length and start of the same.
    by_len: BTreeSet<(usize, usize)>,
    /// What could not be unmapped yet.
    stuck: Vec<(usize, NonZeroUsize)>,
    /// Addresses of mappings that make room for unmapping: mmap(2) needs some, also where it leaves
    /// fewer.
    spare: Vec<NonZeroUsize>,
}

impl Space {
    /// Of the ranges that are large enough the smallest, so that large ones stay whole; of these
    /// the lowest. From its start, so that the rest is one range.
    fn take(&mut self, len: usize, align: usize, phase: usize) -> Option<usize> {
        let fits = |&(bytes, start): &(usize, usize)| {
            let at = start + (phase.wrapping_sub(start) & (align - 1));
            (at + len <= start + bytes).then_some((bytes, start, at))
        };
        // One that is larger by `align` fits however it lies.
        let tight = self.by_len.range((len, 0)..).next().and_then(fits);
        let (bytes, start, at) =
            tight.or_else(|| self.by_len.range((len.checked_add(align)?, 0)..).find_map(fits))?;
        self.remove(start, bytes);
        self.insert(start, at - start);
        self.insert(at + len, start + bytes - (at + len));
        Some(at)
    }

    /// A range is free, and one with the free ranges that it touches.
    fn add(&mut self, at: usize, len: usize) {
        let (mut start, mut end) = (at, at + len);
        if let Some((&before, &bytes)) = self.by_start.range(..at).next_back() {
            debug_assert!(before + bytes <= at, "free once");
            if before + bytes == at {
                self.remove(before, bytes);
                start = before;
            }
        }
        if let Some(&bytes) = self.by_start.get(&end) {
            self.remove(end, bytes);
            end += bytes;
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, start: usize, bytes: usize) {
        if bytes > 0 {
            self.by_start.insert(start, bytes);
            self.by_len.insert((bytes, start));
        }
    }

    fn remove(&mut self, start: usize, bytes: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(bytes, start));
    }

    fn try_stuck_again(&mut self) {
        if !self.stuck.is_empty() {
            for address in self.spare.drain(..) {
                let start = std::ptr::with_exposed_provenance_mut(address.get());
                // SAFETY: a page that `keep_spare` has mapped, of which nobody has a pointer.
                let _ = NonNull::new(start).map(|start| unsafe { munmap(start, page_size()) });
            }
            while let Some((at, len)) = self.stuck.pop_if(|(at, len)| cover(*at, *len).is_ok()) {
                self.add(at, len.get());
            }
            self.keep_spare();
        }
    }

    /// Shared ones: the kernel joins them with no other.
    fn keep_spare(&mut self) {
        let Some(page) = NonZeroUsize::new(page_size()) else { return };
        while self.spare.len() < SPARE_MAPPINGS {
            let (protection, flags) = (ProtFlags::PROT_NONE, MapFlags::MAP_SHARED);
            // SAFETY: a new mapping at an address of the kernel's choice touches nothing that
            // exists.
            let Ok(start) = (unsafe { mmap_anonymous(None, page, protection, flags) }) else {
                break;
            };
            self.spare.push(start.expose_provenance());
        }
    }
}

fn whole(len: NonZeroUsize, page: usize) -> Option<NonZeroUsize> {
    len.get().checked_next_multiple_of(page).and_then(NonZeroUsize::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, fcntl};

    const PAGE: usize = 4096;
    /// The zones of the tests, in pages.
    const ZONE: usize = 8 * HUGE_PAGE / PAGE;

    /// A generator of which a seed gives the same numbers each time (xorshift64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 % bound as u64).unwrap()
        }
    }

    /// The space, beside one byte for each page: 1 is free.
    struct Pair {
        space: Space,
        free: Vec<u8>,
        taken: Vec<(usize, usize)>,
    }

    impl Pair {
        fn take(&mut self, pages: usize, align: usize, phase: usize) {
            let Some(at) = self.space.take(pages * PAGE, align, phase) else {
                // In a run of so many there is a place, however it lies.
                let needed = pages + align / PAGE;
                let runs = self.free.split(|free| *free == 0).map(<[u8]>::len);
                assert!(runs.max() < Some(needed), "{pages} pages, align {align}");
                return;
            };
            assert_eq!(at % align, phase % align);
            let range = at / PAGE..at / PAGE + pages;
            assert!(self.free[range.clone()].iter().all(|free| *free == 1), "given twice");
            self.free[range].fill(0);
            self.taken.push((at, pages));
        }

        fn give(&mut self, (at, pages): (usize, usize)) {
            self.free[at / PAGE..at / PAGE + pages].fill(1);
            self.space.add(at, pages * PAGE);
        }

        fn check(&self) {
            let mut runs = BTreeMap::new();
            let mut at = 0;
            for run in self.free.chunk_by(|one, two| one == two) {
                if run[0] == 1 {
                    runs.insert(at * PAGE, run.len() * PAGE);
                }
                at += run.len();
            }
            assert_eq!(self.space.by_start, runs);
            let by_len: BTreeSet<_> = runs.iter().map(|(start, len)| (*len, *start)).collect();
            assert_eq!(self.space.by_len, by_len);
        }
    }

    #[test]
    fn space_when_ranges_come_and_go_at_random_then_it_agrees_with_a_map_of_pages() {
        for seed in 1..=20 {
            let mut random = Random(seed << 32 | 0x9e37_79b9);
            let mut pair =
                Pair { space: Space::default(), free: vec![0; 4 * ZONE], taken: Vec::new() };
            // Two zones side by side, one apart.
            for zone in [1, 0, 3] {
                pair.give((zone * ZONE * PAGE, ZONE));
            }
            for step in 0..2000 {
                match random.below(5) {
                    0 | 1 => pair.take(random.below(64) + 1, PAGE, 0),
                    2 => {
                        let pages = HUGE_PAGE / PAGE + random.below(HUGE_PAGE / PAGE);
                        pair.take(pages, HUGE_PAGE, random.below(3) * 17 * PAGE);
                    }
                    _ if pair.taken.is_empty() => {}
                    _ => {
                        let (at, pages) = pair.taken.swap_remove(random.below(pair.taken.len()));
                        // Parts of one mapping go one by one.
                        let first = random.below(pages) + 1;
                        pair.give((at, first));
                        if first < pages {
                            pair.give((at + first * PAGE, pages - first));
                        }
                    }
                }
                if step % 50 == 0 {
                    pair.check();
                }
            }
            for range in std::mem::take(&mut pair.taken) {
                pair.give(range);
            }
            pair.check();
        }
    }

    #[test]
    fn space_when_imports_are_small_then_they_lie_side_by_side() {
        let mut space = Space::default();
        space.add(0, ZONE * PAGE);
        for at in 0..1000 {
            assert_eq!(space.take(PAGE, PAGE, 0), Some(at * PAGE));
        }
        assert_eq!(space.by_start.len(), 1);
    }

    fn memfd(len: i64, flags: nix::sys::memfd::MFdFlags) -> std::os::fd::OwnedFd {
        let fd = nix::sys::memfd::memfd_create(c"zones", flags).unwrap();
        nix::unistd::ftruncate(&fd, len).unwrap();
        fd
    }

    fn map(fd: &std::os::fd::OwnedFd, begin: i64, len: usize) -> Map<'_> {
        use std::os::fd::AsFd;
        Map {
            fd: fd.as_fd(),
            seals: fcntl(fd, FcntlArg::F_GET_SEALS).ok().map(SealFlag::from_bits_retain),
            begin,
            len: NonZeroUsize::new(len).unwrap(),
            protection: ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            flags: MapFlags::MAP_SHARED,
        }
    }

    /// Protection of the mapping at an address, `----` when there is none.
    fn at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = maps.lines().find(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (begin, end) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(begin)..number(end)).contains(&address)
        });
        found.map_or("----".into(), |line| line.split_whitespace().nth(1).unwrap().into())
    }

    #[test]
    fn unmap_when_gathered_then_all_is_closed_at_the_end_and_stays_reserved() {
        let fd = memfd(1 << 20, nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let (start, _) = map(&fd, 0, 4 * page_size()).in_zone().unwrap();
        let page =
            |index| start.cast::<u8>().map_addr(|at| at.checked_add(index * page_size()).unwrap());
        let gathering = Gathering::begin();
        for index in [1, 2, 0, 3] {
            unmap(page(index), page_size());
        }
        assert_eq!(at(start.addr().get()), "rw-s");
        drop(gathering);
        for index in 0..4 {
            assert_eq!(at(page(index).addr().get()), "---p");
        }
    }

    #[test]
    fn in_zone_when_a_range_of_its_length_is_gathered_then_mapped_over_it() {
        let fd = memfd(1 << 20, nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let [one, other] = [0, 8 * page_size()].map(|from| map(&fd, from as i64, page_size()));
        let (start, len) = one.in_zone().unwrap();
        let gathering = Gathering::begin();
        unmap(start.cast(), len.get());
        let (over, _) = other.in_zone().unwrap();
        drop(gathering);
        assert_eq!((over, at(over.addr().get()).as_str()), (start, "rw-s"));
        unmap(over.cast(), len.get());
        assert_eq!(at(over.addr().get()), "---p");
    }

    #[test]
    fn in_zone_when_large_then_a_huge_page_lies_as_in_its_file() {
        let fd = memfd(16 << 20, nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
        let begin = 3 * page_size();
        let (start, len) = map(&fd, begin as i64, 4 << 20).in_zone().unwrap();
        assert_eq!((start.addr().get() - begin) % HUGE_PAGE, 0);
        unmap(start.cast(), len.get());
    }

    #[test]
    fn in_zone_when_refused_then_the_place_is_reserved_again() {
        let flags = nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd(1 << 20, flags);
        let before = holes();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE)).unwrap();
        assert_eq!(map(&fd, 0, 8192).in_zone(), Err(Errno::EPERM));
        // No range is lost: what is taken next lies where it would have.
        let read = Map { protection: ProtFlags::PROT_READ, ..map(&fd, 0, 8192) };
        let (start, len) = read.in_zone().unwrap();
        assert_eq!(at(start.addr().get()), "r--s");
        unmap(start.cast(), len.get());
        assert!(holes() <= before + 2);
    }
}
