//! Kept allocations over the end of a broker that gives nothing to its successor. Their records are
//! in the table, and their fds are files of the service manager: none of them is in flight.

use super::*;
use nix::sys::eventfd::EventFd;

type Ids = Vec<AllocationId>;

impl Kept {
    /// Deposits a duplicate of `fd`, to be kept.
    pub(super) fn keep(&mut self, fd: BorrowedFd<'_>, kind: MemoryKind) -> AllocationId {
        let before = self.ids();
        let server = &mut self.bench.server;
        arrive(server, fd);
        let deposit = Deposit { keep: true, ..deposit() };
        let facts = Facts { kind, ..deposit.facts };
        let deposit = arrived(Deposit { facts, ..deposit });
        server.scratch.deposits = vec![deposit];
        let deposits = &[deposit];
        let body = Body::Register { deposits, credits_wanted: 1, deadline: Now(0) };
        server.step(body.by(self.client, RequestId(4)));
        server.fds.refuse_rest(0);
        self.peers.0.count();
        self.ids().into_iter().find(|id| !before.contains(id)).expect("it is kept")
    }

    fn keep_all(&mut self, fds: &[OwnedFd]) -> Ids {
        fds.iter().map(|fd| self.keep(fd.as_fd(), MemoryKind::Memfd)).collect()
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

    /// These are all that is kept, each is its own file, and none is in flight.
    #[track_caller]
    fn assert_kept<'a>(&self, expected: impl IntoIterator<Item = (AllocationId, &'a OwnedFd)>) {
        let mut ids = Vec::new();
        for (id, fd) in expected {
            let held = self.bench.server.fds.held(id.slot).expect("it is held");
            let is_it = is_same_file(held, fd.as_fd(), KernelFeatures::ALL);
            assert_eq!(is_it, Some(true), "{id} is something else");
            ids.push(id);
        }
        ids.sort_unstable();
        assert_eq!(self.ids(), ids);
        assert_eq!(self.bench.server.kept.carried(), 0);
    }

    /// Has the service manager read nothing, with its socket full, until it hears again.
    fn stick(&mut self) {
        while self.bench.server.manager.remove("x", Duration::ZERO).is_ok() {}
    }

    /// Names of stored files of kept allocations.
    fn stored(&self) -> Vec<&str> {
        let names = self.store.stored.iter().map(|(name, _)| name.as_str());
        names.filter(|name| name.starts_with('k') || *name == names::FORMER_BOOK).collect()
    }
}

fn memfds(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| memfd()).collect()
}

/// A broker that keeps so many files, and has told the service manager of all of them.
fn keeping(count: usize) -> (Kept, Vec<OwnedFd>, Ids) {
    let mut kept = Kept::new();
    let fds = memfds(count);
    let ids = kept.keep_all(&fds);
    kept.until_told();
    (kept, fds, ids)
}

#[test]
fn allocations_when_there_are_more_than_a_message_takes_then_all_over_kills_and_none_in_flight() {
    // Test, broker and store have each of them open, and the next broker's.
    if !here::has_fds(2048) {
        return;
    }
    let mut kept = Kept::new();
    let fds = memfds(fdbroker_scm::MAX_FDS + 47);
    let mut ids = Vec::new();
    for fd in &fds {
        ids.push(kept.keep(fd.as_fd(), MemoryKind::Memfd));
        kept.store.hear();
    }
    assert_eq!((kept.store.messages, kept.store.most_fds), (fds.len(), 1), "one fd at a time");
    for _ in 0..2 {
        kept = kept.kill();
        kept.assert_kept(ids.iter().copied().zip(&fds));
    }
    assert_eq!(kept.stored().len(), fds.len());
    kept.store.messages = 0;
    kept.until_told();
    assert_eq!(kept.store.messages, 0, "what it has already is not sent again");
}

#[test]
fn allocations_when_some_end_then_the_others_alone_over_a_kill_and_nothing_else_is_stored() {
    let (mut kept, fds, ids) = keeping(9);
    for id in ids.iter().skip(1).step_by(2) {
        kept.end(*id);
    }
    kept.until_told();
    let rest: Vec<_> = ids.iter().copied().zip(&fds).step_by(2).collect();
    for _ in 0..2 {
        assert_eq!(kept.stored().len(), rest.len());
        kept = kept.kill();
        kept.until_told();
        kept.assert_kept(rest.iter().copied());
    }
}

/// Ranges of one memfd have one open file in the store, which takes none twice; the same inode
/// opened again is another one, and may be for reading alone.
#[test]
fn allocations_when_of_one_inode_then_each_has_its_open_file_until_its_last_one_ends() {
    let mut kept = Kept::new();
    let first = memfd();
    let second = std::fs::File::open(format!("/proc/self/fd/{}", first.as_raw_fd())).unwrap();
    let fds = [first.try_clone().unwrap(), second.into(), first];
    let ids = kept.keep_all(&fds);
    kept.until_told();
    assert_eq!(kept.stored().len(), 2);
    let mut left: Vec<_> = ids.iter().copied().zip(&fds).collect();
    for (ended, stored) in [(0, 2), (1, 1), (0, 0)] {
        kept = kept.kill();
        kept.assert_kept(left.iter().copied());
        let (id, _) = left.remove(ended);
        kept.end(id);
        kept.until_told();
        assert_eq!(kept.stored().len(), stored, "{id} has ended");
    }
    assert!(kept.kill().ids().is_empty());
}

#[test]
fn allocations_when_their_fds_share_an_inode_then_each_its_own_after_a_kill() {
    let mut kept = Kept::new();
    let fds: Vec<OwnedFd> = (0..5).map(|_| EventFd::new().unwrap().into()).collect();
    let keep = |fd: &OwnedFd| kept.keep(fd.as_fd(), MemoryKind::CudaVmm);
    let ids: Ids = fds.iter().map(keep).collect();
    kept.until_told();
    assert_eq!(kept.stored().len(), 5);
    kept.kill().assert_kept(ids.into_iter().zip(&fds));
}

#[test]
fn allocation_when_killed_between_its_record_and_the_message_then_none_and_none_later() {
    let mut kept = Kept::new();
    let fds = memfds(3);
    let first = kept.keep(fds[0].as_fd(), MemoryKind::Memfd);
    kept.until_told();
    kept.stick();
    kept.keep_all(&fds[1..]);
    let mut kept = kept.kill();
    kept.assert_kept([(first, &fds[0])]);
    kept.until_told();
    assert_eq!(kept.stored().len(), 1);
    kept.kill().assert_kept([(first, &fds[0])]);
}

#[test]
fn allocation_when_killed_between_its_end_and_the_message_then_it_does_not_come_back() {
    let (mut kept, fds, ids) = keeping(2);
    kept.stick();
    kept.end(ids[0]);
    kept.store.hear();
    assert_eq!(kept.stored().len(), 2, "it was not told");
    let mut kept = kept.kill();
    kept.assert_kept([(ids[1], &fds[1])]);
    kept.until_told();
    assert_eq!(kept.stored().len(), 1);
}

#[test]
fn stored_file_when_it_has_no_record_or_another_inode_then_of_no_handle_and_out_of_the_store() {
    let (mut kept, fds, ids) = keeping(2);
    let stored = &mut kept.store.stored;
    stored.push((format!("{}77.7", names::KEPT_PREFIX), memfd()));
    let name = format!("{}{}.{}", names::KEPT_PREFIX, ids[0].slot, ids[0].generation);
    let (_, fd) = stored.iter_mut().find(|(its, _)| *its == name).unwrap();
    *fd = memfd();
    let mut kept = kept.kill();
    kept.assert_kept([(ids[1], &fds[1])]);
    kept.until_told();
    assert_eq!(kept.stored().len(), 1);
    kept.kill().assert_kept([(ids[1], &fds[1])]);
}

#[test]
fn stored_file_when_another_has_its_name_then_the_allocations_alone_is_left() {
    let (mut kept, fds, ids) = keeping(2);
    // Later ones, which systemd hands out first.
    let doubles: Vec<_> = kept.stored().iter().map(|name| (name.to_string(), memfd())).collect();
    kept.store.stored.splice(0..0, doubles);
    for _ in 0..2 {
        kept = kept.kill();
        kept.assert_kept(ids.iter().copied().zip(&fds));
        kept.until_told();
        assert_eq!(kept.stored().len(), 2);
    }
}

#[test]
fn allocations_when_the_store_is_smaller_than_their_cap_then_as_many_as_it_takes_and_more_later() {
    // Three beside those that a restart needs.
    let mut kept = Kept::with_entries(128 + 3);
    let fds = memfds(5);
    let ids = kept.keep_all(&fds);
    kept.until_told();
    assert_eq!(kept.stored().len(), 3);
    kept.end(ids[1]);
    kept.until_told();
    assert_eq!(kept.stored().len(), 3, "there is room for another one");
    let kept = kept.kill();
    let left = kept.ids();
    assert_eq!(left.len(), 3);
    kept.assert_kept(ids.into_iter().zip(&fds).filter(|(id, _)| left.contains(id)));
}

#[test]
fn allocations_when_a_broker_before_has_stored_them_by_its_list_then_a_planned_restart_has_them() {
    let (mut kept, fds, ids) = keeping(3);
    let parcel = kept.bench.server.pack(Way::Store).unwrap();
    kept.bench.server.leave_places();
    kept.store.stored.retain(|(name, _)| name.starts_with(names::KEPT_PREFIX));
    kept.store.stored.push((names::FORMER_BOOK.to_owned(), memfd()));
    let mut kept = kept.kill_with(|mut inherited| {
        (inherited.ledger, inherited.carriers) = (Some(parcel.ledger), parcel.carriers);
        inherited
    });
    kept.until_told();
    assert_eq!(kept.stored().len(), 3, "and the list has gone");
    kept.kill().assert_kept(ids.into_iter().zip(&fds));
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
    kept.until_told();
    assert_eq!(kept.stored().len(), 20);
    kept.kill().assert_kept(ids.into_iter().zip(&fds));
}
