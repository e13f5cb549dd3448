//! Kept allocations over the end of a broker that gives nothing to its successor. Their records are
//! in the table, and their fds lie in carriers among those of groups.

use super::*;
use crate::limits::STORED_BESIDE_CARRIERS;
use fdbroker_protocol::MemoryKind::{CudaVmm, Memfd};
use nix::sys::eventfd::{EfdFlags, EventFd};

type Ids = Vec<AllocationId>;

impl Kept {
    /// Deposits a duplicate of `fd`, to be kept.
    pub(super) fn keep(&mut self, fd: BorrowedFd<'_>, kind: MemoryKind) -> AllocationId {
        let before = self.ids();
        let server = &mut self.bench.server;
        arrive(server, fd);
        let deposit = Deposit { keep: true, ..deposit() };
        let facts = deposit.facts.kind(kind);
        let deposit = arrived(Deposit { facts, ..deposit });
        server.scratch.deposits = vec![deposit];
        let deposits = &[deposit];
        let body = Body::Register { deposits, credits_wanted: 1, deadline: Now(0) };
        server.step(body.by(self.client, RequestId(4)));
        server.fds.refuse_rest(0);
        self.peers.0.count();
        self.ids().into_iter().find(|id| !before.contains(id)).expect("it is kept")
    }

    /// With a service manager that hears of each at once, unless it is stuck.
    fn keep_all(&mut self, fds: &[OwnedFd], kind: MemoryKind) -> Ids {
        let mut keep = |fd: &OwnedFd| {
            let id = self.keep(fd.as_fd(), kind);
            if !self.is_stuck {
                self.store.hear();
            }
            id
        };
        fds.iter().map(&mut keep).collect()
    }

    /// Ends it, whoever its owner was.
    fn end(&mut self, id: AllocationId) {
        self.bench.server.step(fdbroker_core::Input::Revoke { ids: &[id] });
        self.peers.0.count();
    }

    /// Kept allocations whose fds are held.
    pub(super) fn ids(&self) -> Ids {
        let Server { core, fds, .. } = &self.bench.server;
        let held = fds.slots().filter(|(_, _, fd)| fd.is_some());
        held.filter_map(|(slot, ..)| core.kept(slot)).map(|kept| kept.id).collect()
    }

    /// These are all that is kept, each with its open file.
    #[track_caller]
    fn assert_kept<'a>(&self, expected: impl IntoIterator<Item = (AllocationId, &'a OwnedFd)>) {
        let mut ids = Vec::new();
        for (id, fd) in expected {
            let held = self.bench.server.fds.held(id.slot).expect("it is held");
            assert_eq!(file(held), file(fd.as_fd()), "{id} is something else");
            ids.push(id);
        }
        ids.sort_unstable();
        assert_eq!(self.ids(), ids);
    }

    /// Has the service manager read nothing, with its socket full, until it hears again.
    fn stick(&mut self) {
        while self.bench.server.manager.remove("x", Duration::ZERO).is_ok() {}
    }
}

/// What the kernel says of an open file: its inode, how it is open, the number of an eventfd.
fn file(fd: BorrowedFd<'_>) -> String {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap()
}

fn memfds(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| memfd()).collect()
}

/// A broker that keeps so many, and has told the service manager of all that is to know of them.
fn keeping(count: usize) -> (Kept, Vec<OwnedFd>, Ids) {
    let mut kept = Kept::new();
    let fds = memfds(count);
    let ids = kept.keep_all(&fds, Memfd);
    kept.until_told();
    (kept, fds, ids)
}

#[test]
fn allocations_when_they_come_faster_than_chores_then_all_are_carried_at_once_and_all_over_kills() {
    // Test, broker and store have each of them open, and the next broker's.
    if !here::has_fds(2048) {
        return;
    }
    let mut kept = Kept::new();
    let (of_host, of_devices) = (memfds(2 * HOST_FDS_PER_CARRIER + 1), memfds(100));
    let ids = [kept.keep_all(&of_host, Memfd), kept.keep_all(&of_devices, CudaVmm)].concat();
    assert_eq!(kept.bench.server.kept.carried(), ids.len(), "without a chore");
    let carriers = (3 + 100_usize.div_ceil(DEVICE_FDS_PER_CARRIER)) + 2;
    assert!(kept.store.messages <= 2 * carriers, "{} messages", kept.store.messages);
    for _ in 0..2 {
        kept = kept.kill();
        kept.assert_kept(ids.iter().copied().zip(of_host.iter().chain(&of_devices)));
        kept.until_carried(ids.len());
    }
}

#[test]
fn allocations_when_some_end_then_the_others_alone_over_a_kill_and_nothing_else_is_carried() {
    let (mut kept, fds, ids) = keeping(9);
    for id in ids.iter().skip(1).step_by(2) {
        kept.end(*id);
    }
    let rest: Vec<_> = ids.iter().copied().zip(&fds).step_by(2).collect();
    for _ in 0..2 {
        kept.until_carried(rest.len());
        kept = kept.kill();
        kept.assert_kept(rest.iter().copied());
    }
}

/// Ranges of one memfd are duplicates of one open file; the same inode opened again is another one,
/// and may be for reading alone.
#[test]
fn allocations_when_of_one_inode_then_each_has_its_open_file_until_it_ends() {
    let mut kept = Kept::new();
    let first = memfd();
    let second = std::fs::File::open(format!("/proc/self/fd/{}", first.as_raw_fd())).unwrap();
    let fds = [first.try_clone().unwrap(), second.into(), first];
    let ids = kept.keep_all(&fds, Memfd);
    let mut left: Vec<_> = ids.iter().copied().zip(&fds).collect();
    for ended in [0, 1, 0] {
        kept = kept.kill();
        kept.assert_kept(left.iter().copied());
        let (id, _) = left.remove(ended);
        kept.end(id);
        kept.until_carried(left.len());
    }
    assert!(kept.kill().ids().is_empty());
}

#[test]
fn allocations_when_their_fds_share_an_inode_then_each_its_own_after_a_kill() {
    let mut kept = Kept::new();
    let fds: Vec<OwnedFd> =
        (0..5).map(|_| EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap().into()).collect();
    let ids = kept.keep_all(&fds, CudaVmm);
    kept.kill().assert_kept(ids.into_iter().zip(&fds));
}

#[test]
fn allocations_when_the_manager_is_stuck_then_those_that_have_a_place_and_later_all_the_others() {
    let fds = memfds(3 * DEVICE_FDS_PER_CARRIER);
    for is_heard in [false, true] {
        let mut kept = Kept::new();
        kept.stick();
        kept.is_stuck = true;
        let ids = kept.keep_all(&fds, CudaVmm);
        assert_eq!(kept.bench.server.kept.carried(), DEVICE_FDS_PER_CARRIER);
        // One that waits ends, and one that does not.
        let mut left: Vec<_> = ids.iter().copied().zip(&fds).collect();
        for ended in [left.len() - 1, 0] {
            kept.end(left.remove(ended).0);
        }
        if is_heard {
            kept.until_told();
        } else {
            left.truncate(DEVICE_FDS_PER_CARRIER - 1);
        }
        let mut kept = kept.kill();
        kept.assert_kept(left.iter().copied());
        kept.until_carried(left.len());
    }
}

#[test]
fn allocation_when_killed_between_its_end_and_its_drop_then_it_does_not_come_back() {
    let (mut kept, fds, ids) = keeping(2);
    kept.end(ids[0]);
    assert_eq!(kept.bench.server.kept.carried(), 2);
    let mut kept = kept.kill();
    kept.assert_kept([(ids[1], &fds[1])]);
    kept.until_carried(1);
}

#[test]
fn allocations_when_all_carriers_are_full_then_no_chore_is_due_and_the_next_has_the_place_of_an_ended_one()
 {
    // Room for two carriers, of which one is kept for what is written again.
    let mut kept = Kept::with_entries(STORED_BESIDE_CARRIERS + 4);
    let most = DEVICE_FDS_PER_CARRIER;
    let fds = memfds(most + 2);
    let ids = kept.keep_all(&fds, CudaVmm);
    kept.until_told();
    assert_eq!(kept.bench.server.kept.carried(), most);
    kept.end(ids[0]);
    let written = kept.bench.server.kept.written();
    kept.bench.until(|server| server.kept.written() > written);
    let left = ids.into_iter().zip(&fds).enumerate().filter(|(at, _)| (1..=most).contains(at));
    kept.kill().assert_kept(left.map(|(_, it)| it));
}

#[test]
fn all_that_is_kept_when_the_table_of_a_planned_restart_is_lost_then_it_is_carried_anew_in_time() {
    let mut kept = Kept::new();
    let fds = memfds(2 * DEVICE_FDS_PER_CARRIER);
    let ids = kept.keep_all(&fds, CudaVmm);
    for index in 0..2 * DEVICE_FDS_PER_CARRIER {
        kept.put(&[&format!("{index}")], How { kind: CudaVmm, ..KEEP });
        kept.store.hear();
        kept.bench.rest();
    }
    let names = kept.names();
    let parcel = kept.bench.server.pack(Way::Store).unwrap();
    kept.bench.server.leave_places();
    kept.store.stored = vec![(names::FORMER_BOOK.to_owned(), memfd())];
    let mut kept = kept.kill_with(|mut inherited| {
        (inherited.ledger, inherited.carriers) = (Some(parcel.ledger), parcel.carriers);
        inherited
    });
    kept.until_told();
    kept.until_carried(ids.len() + names.len());
    assert!(kept.store.stored.iter().all(|(name, _)| name != names::FORMER_BOOK));
    let kept = kept.kill();
    assert_eq!(kept.names(), names);
    kept.assert_kept(ids.into_iter().zip(&fds));
}

#[test]
fn allocations_when_their_records_change_often_then_the_table_stays_small_and_has_them_all() {
    let (mut kept, fds, ids) = keeping(20);
    for id in ids.iter().cycle().take(40_000) {
        let Server { kept, manager, core, fds, .. } = &mut kept.bench.server;
        kept.keep(id.slot, manager, core, fds);
    }
    let written = kept.bench.server.kept.written();
    assert!(written < 2 << 20, "{written} bytes are written");
    kept.until_carried(20);
    kept.kill().assert_kept(ids.into_iter().zip(&fds));
}
