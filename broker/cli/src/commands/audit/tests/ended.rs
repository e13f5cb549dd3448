//! Looks at ended memory, at what hides fds, and at owners that are stopped.

use super::*;

/// A world in which allocation 0 has ended, and nobody has a lease of it.
fn after_the_end(kind: MemoryKind) -> World {
    let mut world = World::new(kind);
    world.process(BROKER).fds.clear();
    world.both(|ledger| {
        ledger.allocations.clear();
        ledger.stored_fds = 0;
    });
    let file = EndedFile {
        id: id(0),
        size_bytes: 4096,
        age_ms: 75_000,
        owners: [(OWNER, 0)].into(),
        job: "slurm:7".into(),
        reason: "OWNER_GONE".into(),
    };
    world.0.tombstones.files.insert(key(kind), file);
    world
}

#[test]
fn judge_when_ended_memory_has_copies_then_named_with_the_owner_but_not_what_the_owner_keeps() {
    for kind in [MemoryKind::Memfd, MemoryKind::DmaBuf] {
        let mut world = after_the_end(kind);
        world.process(OWNER).fds.push(fd(3, kind));
        world.map(OWNER, kind);
        assert_eq!(world.found(), [], "{kind:?}");
        world.process(HOLDER).fds.extend([fd(4, kind), fd(5, kind)]);
        world.map(STRANGER, kind);
        let expected = [
            (Kind::EndedCopy, Some(HOLDER), vec![4, 5]),
            (Kind::EndedCopy, Some(STRANGER), vec![]),
        ];
        assert_eq!(world.found(), expected, "{kind:?}");
        let first = judge(&world.0).remove(0);
        let what = "2 fds of memory that has ended (OWNER_GONE 1 min 15 s ago, owned by process 20 of slurm:7)";
        assert_eq!((first.what.as_str(), first.age_ms), (what, Some(75_000)));
        // Another process may have the owner's pid by now.
        world.process(OWNER).uid = 1;
        assert_eq!(world.found().len(), 3, "{kind:?}");
    }
}

#[test]
fn judge_when_the_ledger_knows_the_file_of_ended_memory_then_its_leases_count() {
    let mut world = after_the_end(MemoryKind::Memfd);
    let again =
        Allocation { fd: None, state: AllocationState::Evicted, ..allocation(MemoryKind::Memfd) };
    world.both(|ledger| {
        ledger.allocations.insert(id(1), again);
    });
    world.lease(1, 1, false);
    world.process(HOLDER).fds.push(fd(4, MemoryKind::Memfd));
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_a_child_of_the_owner_has_ended_memory_mapped_then_a_note_unless_it_is_a_client() {
    let mut world = after_the_end(MemoryKind::Memfd);
    world.map(STRANGER, MemoryKind::Memfd);
    world.process(STRANGER).parent = OWNER;
    assert_eq!(world.found(), [(Kind::Inherited, Some(STRANGER), vec![])]);
    world.both(|ledger| {
        ledger.clients.insert(STRANGER, Client { silent: false });
    });
    assert_eq!(world.found(), [(Kind::EndedCopy, Some(STRANGER), vec![])]);
}

#[test]
fn judge_when_a_child_that_is_a_client_keeps_a_mapping_then_stray() {
    let mut world = World::new(MemoryKind::Memfd);
    world.map(STRANGER, MemoryKind::Memfd);
    world.process(STRANGER).parent = OWNER;
    world.both(|ledger| {
        ledger.clients.insert(STRANGER, Client { silent: false });
    });
    assert_eq!(world.found(), [(Kind::StrayMapping, Some(STRANGER), vec![])]);
    world.both(|ledger| {
        let lease = Lease { pid: STRANGER, ..lease(0, true) };
        ledger.leases.insert(1, lease);
    });
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_ended_memory_is_leased_for_long_then_pinned() {
    let mut world = World::new(MemoryKind::CudaVmm);
    world.both(|ledger| {
        ledger.leases.insert(1, Lease { ended: true, ..lease(0, true) });
    });
    for (ms, kind) in [(59_000, Kind::Ended), (61_000, Kind::Pinned)] {
        world.0.tombstones.ages_ms.insert(id(0), ms);
        assert_eq!(world.found(), [(kind, Some(HOLDER), vec![])]);
    }
}

#[test]
fn judge_when_no_process_has_a_dma_buf_then_a_finding_if_it_has_ended_and_a_note_if_it_is_unknown()
{
    let kind = MemoryKind::DmaBuf;
    let buffer =
        |inode| Buffer { inode, size_bytes: 4096, references: 1, exporter: "udmabuf".into() };
    let mut world = after_the_end(kind);
    world.0.scan.buffers = vec![buffer(INODE), buffer(INODE + 1)];
    assert_eq!(world.found(), [(Kind::EndedUnheld, None, vec![]), (Kind::Unheld, None, vec![])]);
    world.process(STRANGER).unread = Some("no".into());
    assert_eq!(world.found(), [(Kind::EndedUnheld, None, vec![])]);
    world.process(OWNER).fds.push(fd(3, kind));
    assert_eq!(world.found(), []);
    let mut world = World::new(kind);
    world.process(BROKER).fds.clear();
    world.evict();
    world.0.scan.buffers = vec![buffer(INODE)];
    assert_eq!(world.found(), [], "the ledger knows it");
}

#[test]
fn judge_when_a_thread_has_an_fd_table_of_its_own_then_its_copies_are_named_with_it() {
    let mut world = World::new(MemoryKind::Memfd);
    world.lease(1, 0, false);
    let copy = MemoryFd { thread: 31, ..fd(4, MemoryKind::Memfd) };
    world.process(HOLDER).fds.push(copy);
    assert_eq!(world.found(), [], "one fd, one lease, in whichever table");
    world.process(HOLDER).fds.push(fd(4, MemoryKind::Memfd));
    assert_eq!(world.found(), [(Kind::ThreadTable, Some(HOLDER), vec![4])]);
    assert!(judge(&world.0)[0].what.ends_with("in the fd table of thread 31"));
}

#[test]
fn judge_when_the_first_thread_has_ended_then_named_if_the_process_is_near_the_broker() {
    let mut world = World::new(MemoryKind::Memfd);
    for pid in [HOLDER, STRANGER] {
        (world.process(pid).state, world.process(pid).headless) = ('Z', Some(2));
    }
    assert_eq!(world.found(), [(Kind::Headless, Some(HOLDER), vec![])]);
}

#[test]
fn judge_when_a_ring_has_files_of_memory_then_a_finding_and_a_note_if_only_buffers() {
    let mut world = World::new(MemoryKind::Memfd);
    let ring = |fd, files, buffers| Ring { fd, files, buffers };
    world.process(HOLDER).rings = vec![ring(7, 2, 1), ring(8, 0, 3), ring(9, 0, 0)];
    (world.process(STRANGER).rings, world.process(STRANGER).uid) = (vec![ring(7, 2, 1)], 1);
    let expected =
        [(Kind::IoUring, Some(HOLDER), vec![7]), (Kind::RingBuffers, Some(HOLDER), vec![8])];
    assert_eq!(world.found(), expected);
    world.process(STRANGER).uid = 0;
    assert_eq!(world.found().len(), 3);
}

#[test]
fn judge_when_an_owner_is_stopped_then_named_until_all_that_it_owns_has_ended() {
    let mut world = World::new(MemoryKind::Memfd);
    (world.process(OWNER).state, world.process(HOLDER).state) = ('T', 'T');
    assert_eq!(world.found(), [(Kind::Stopped, Some(OWNER), vec![])]);
    let mut world = after_the_end(MemoryKind::Memfd);
    world.process(OWNER).state = 'T';
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_a_client_has_memory_that_the_broker_does_not_know_then_a_note() {
    let mut world = World::new(MemoryKind::Memfd);
    let other = |fd, number, sealed| {
        let key = MemoryKey { kind: MemoryKind::Memfd, number };
        MemoryFd { sealed, ..MemoryFd::new(fd, key) }
    };
    world.process(HOLDER).fds = vec![other(4, 50, true), other(5, 50, true), other(6, 51, false)];
    world.process(STRANGER).fds = vec![other(4, 50, true)];
    assert_eq!(world.found(), [(Kind::Unknown, Some(HOLDER), vec![4, 5])]);
    assert!(Kind::Unknown.is_note());
}
