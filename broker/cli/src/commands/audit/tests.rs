//! Judging looks that are made up: each kind of finding, and its innocent neighbours.

mod ended;

use super::book::Look;
use super::finding::{Finding, Kind};
use super::ledger::{Allocation, Client, Files, Lease, Ledger, MemoryKey};
use super::limits::{LOOKS, LOOKS_AT_WORK};
use super::process::{Buffer, Mapped, MemoryFd, Process, Queue, Ring};
use super::tombstones::EndedFile;
use super::{check_wanted, confirm, confirmed, gaps, judge, unread_parties};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::{AllocationId, MemoryKind};

const BROKER: u32 = 10;
const OWNER: u32 = 20;
const HOLDER: u32 = 30;
const STRANGER: u32 = 40;
const INODE: u64 = 7;
/// Of memory that cannot be told.
const NO_FILES: Files = Files { numbers: [0; 4], known_ms: u64::MAX };

fn key(kind: MemoryKind) -> MemoryKey {
    MemoryKey { kind, number: INODE }
}

fn id(slot: u32) -> AllocationId {
    AllocationId { slot, generation: 1 }
}

fn allocation(kind: MemoryKind) -> Allocation {
    Allocation {
        state: AllocationState::Held,
        kind,
        fd: Some(5),
        files: Files { numbers: [INODE, 0, 0, 0], known_ms: u64::MAX },
        keep: false,
        named: false,
        owner_pid: OWNER,
        owner_gone: false,
        owner_uid: Some(1000),
        size_bytes: 4096,
        leases: 0,
        virtual_fd: None,
    }
}

fn fd(fd: i32, kind: MemoryKind) -> MemoryFd {
    MemoryFd::new(fd, key(kind))
}

/// A broker that holds allocation 0, its owner, a client and a process that is none.
struct World(Look);

impl World {
    fn new(kind: MemoryKind) -> Self {
        let mut look = Look::default();
        look.scan.cuda_seen = true;
        for pid in [BROKER, OWNER, HOLDER, STRANGER] {
            let process = Process { command: format!("p{pid}"), state: 'S', ..Process::default() };
            look.scan.processes.insert(pid, process);
        }
        let mut world = World(look);
        world.process(BROKER).fds.push(fd(5, kind));
        world.both(|ledger| {
            ledger.is_whole = true;
            ledger.broker = BROKER;
            ledger.stored_fds = 1;
            ledger.allocations.insert(id(0), allocation(kind));
            for pid in [OWNER, HOLDER] {
                ledger.clients.insert(pid, Client { silent: false });
            }
        });
        world
    }

    fn both(&mut self, change: impl Fn(&mut Ledger)) {
        change(&mut self.0.before);
        change(&mut self.0.after);
    }

    fn process(&mut self, pid: u32) -> &mut Process {
        self.0.scan.processes.get_mut(&pid).expect("one of the world's")
    }

    fn lease(&mut self, number: u64, slot: u32, mapped: bool) {
        let lease = lease(slot, mapped);
        self.both(|ledger| {
            ledger.leases.insert(number, lease);
        });
    }

    /// The broker holds no fd of allocation 0.
    fn evict(&mut self) {
        self.process(BROKER).fds.clear();
        self.both(|ledger| {
            ledger.stored_fds = 0;
            let allocation = ledger.allocations.get_mut(&id(0)).expect("there");
            allocation.fd = None;
            if !allocation.kind.has_own_inode() {
                allocation.files = NO_FILES;
            }
            allocation.state = AllocationState::Evicted;
        });
    }

    fn map(&mut self, pid: u32, kind: MemoryKind) {
        let mapped = Mapped { mappings: 1, bytes: 4096 };
        self.process(pid).mapped.insert(key(kind), mapped);
    }

    /// Kind, process and fds of each.
    fn found(&self) -> Vec<(Kind, Option<u32>, Vec<i32>)> {
        let found = judge(&self.0).into_iter();
        found.map(|finding| (finding.kind, finding.pid, finding.fds)).collect()
    }
}

fn lease(slot: u32, mapped: bool) -> Lease {
    Lease {
        allocation: id(slot),
        pid: HOLDER,
        uid: 1000,
        mapped,
        ended: false,
        age_ms: 500,
        size_bytes: 4096,
    }
}

#[test]
fn judge_when_owner_and_holder_have_what_is_theirs_then_nothing() {
    for kind in MemoryKind::ALL {
        let mut world = World::new(*kind);
        world.process(OWNER).fds.push(fd(3, *kind));
        world.map(OWNER, *kind);
        world.lease(1, 0, false);
        world.process(HOLDER).fds.push(fd(4, *kind));
        assert_eq!(world.found(), [], "{kind:?}");
    }
}

#[test]
fn judge_when_fd_without_lease_then_leak_of_a_client_and_stray_of_another() {
    for kind in MemoryKind::ALL {
        let mut world = World::new(*kind);
        world.process(HOLDER).fds.push(fd(4, *kind));
        world.process(STRANGER).fds.push(fd(6, *kind));
        let expected =
            [(Kind::Leak, Some(HOLDER), vec![4]), (Kind::Stray, Some(STRANGER), vec![6])];
        assert_eq!(world.found(), expected, "{kind:?}");
    }
}

#[test]
fn judge_when_the_lease_is_in_one_ledger_only_then_neither_leak_nor_forgotten() {
    for is_before in [true, false] {
        let mut world = World::new(MemoryKind::Memfd);
        let ledger = if is_before { &mut world.0.before } else { &mut world.0.after };
        ledger.leases.insert(1, lease(0, false));
        assert_eq!(world.found(), []);
        world.process(HOLDER).fds.push(fd(4, MemoryKind::Memfd));
        assert_eq!(world.found(), []);
    }
}

#[test]
fn judge_when_more_fds_than_leases_then_all_that_may_be_the_one_too_many() {
    let mut world = World::new(MemoryKind::Memfd);
    world.lease(1, 0, false);
    world.process(HOLDER).fds.extend([fd(4, MemoryKind::Memfd), fd(8, MemoryKind::Memfd)]);
    assert_eq!(world.found(), [(Kind::Leak, Some(HOLDER), vec![4, 8])]);
    // Another range of the same memfd.
    world.both(|ledger| {
        ledger.stored_fds = 2;
        let second = Allocation { fd: Some(9), ..allocation(MemoryKind::Memfd) };
        ledger.allocations.insert(id(1), second);
    });
    world.process(BROKER).fds.push(fd(9, MemoryKind::Memfd));
    world.lease(2, 1, false);
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_a_lease_is_of_memory_that_cannot_be_told_then_any_fd_of_the_kind_may_be_its() {
    let mut world = World::new(MemoryKind::Memfd);
    world.both(|ledger| {
        let files = NO_FILES;
        let unknown = Allocation { fd: None, files, ..allocation(MemoryKind::Memfd) };
        ledger.allocations.insert(id(1), unknown);
    });
    world.lease(1, 1, false);
    world.process(HOLDER).fds.push(fd(4, MemoryKind::Memfd));
    let kinds: Vec<Kind> = judge(&world.0).iter().map(|finding| finding.kind).collect();
    assert!(!kinds.contains(&Kind::Leak), "{kinds:?}");
    world.process(HOLDER).fds.push(fd(5, MemoryKind::Memfd));
    assert!(world.found().contains(&(Kind::Leak, Some(HOLDER), vec![4, 5])));
}

#[test]
fn judge_when_evicted_then_copies_are_told_as_before_but_of_cuda() {
    for kind in MemoryKind::ALL {
        let mut world = World::new(*kind);
        world.evict();
        world.process(OWNER).fds.push(fd(3, *kind));
        world.lease(1, 0, false);
        world.process(HOLDER).fds.push(fd(4, *kind));
        assert_eq!(world.found(), [], "{kind:?}");
        world.process(HOLDER).fds.push(fd(6, *kind));
        world.process(STRANGER).fds.push(fd(8, *kind));
        let expected =
            [(Kind::Leak, Some(HOLDER), vec![4, 6]), (Kind::Stray, Some(STRANGER), vec![8])];
        let expected = if !kind.has_own_inode() { &[][..] } else { &expected[..] };
        assert_eq!(world.found(), expected, "{kind:?}");
    }
}

#[test]
fn judge_when_exported_anew_then_copies_of_the_files_before_are_its_too() {
    let kind = MemoryKind::DmaBuf;
    let anew = |fd, number| MemoryFd::new(fd, MemoryKey { kind, number });
    let mut world = World::new(kind);
    world.lease(1, 0, false);
    world.process(HOLDER).fds.push(fd(4, kind));
    let files = |numbers, known_ms| {
        move |ledger: &mut Ledger| {
            ledger.allocations.get_mut(&id(0)).expect("there").files = Files { numbers, known_ms };
        }
    };
    // The holder has what the allocation was before, and the broker what it is now: in one ledger,
    // or in both.
    files([INODE + 1, INODE, 0, 0], u64::MAX)(&mut world.0.after);
    assert_eq!(world.found(), []);
    world.process(BROKER).fds = vec![anew(5, INODE + 1)];
    assert_eq!(world.found(), []);
    world.both(files([INODE + 1, INODE, 0, 0], u64::MAX));
    assert_eq!(world.found(), []);
    world.process(STRANGER).fds.push(fd(8, kind));
    assert_eq!(world.found(), [(Kind::Stray, Some(STRANGER), vec![8])]);
    let leases = std::mem::take(&mut world.0.before.leases);
    world.0.after.leases.clear();
    let expected = [(Kind::Leak, Some(HOLDER), vec![4]), (Kind::Stray, Some(STRANGER), vec![8])];
    assert_eq!(world.found(), expected);
    // Of a file that nobody remembers.
    world.both(|ledger| ledger.leases = leases.clone());
    world.process(BROKER).fds = vec![anew(5, INODE + 4)];
    let age_ms = lease(0, false).age_ms;
    let late = [(Kind::Forgotten, Some(HOLDER), vec![]), (Kind::Unknown, Some(HOLDER), vec![4])];
    for (known_ms, expected) in [(age_ms, &[][..]), (age_ms + 1, &late)] {
        world.both(files([INODE + 4, INODE + 3, INODE + 2, INODE + 1], known_ms));
        assert_eq!(world.found(), expected);
    }
}

#[test]
fn judge_when_a_cuda_file_is_the_brokers_in_one_ledger_only_then_its_lease_is_not_forgotten() {
    for is_before in [true, false] {
        let mut world = World::new(MemoryKind::CudaVmm);
        world.lease(1, 0, false);
        assert_eq!(world.found(), [(Kind::Forgotten, Some(HOLDER), vec![])]);
        let ledger = if is_before { &mut world.0.before } else { &mut world.0.after };
        let allocation = ledger.allocations.get_mut(&id(0)).expect("there");
        (allocation.fd, allocation.files) = (None, NO_FILES);
        ledger.stored_fds = 0;
        assert_eq!(world.found(), []);
    }
}

#[test]
fn judge_when_two_cuda_files_then_each_with_its_own_leases() {
    let kind = MemoryKind::CudaVmm;
    let file = |fd, number| MemoryFd::new(fd, MemoryKey { kind, number });
    let mut world = World::new(kind);
    world.both(|ledger| {
        ledger.stored_fds = 2;
        let files = Files { numbers: [INODE + 1, 0, 0, 0], known_ms: u64::MAX };
        let virtual_fd = Some(1 << 30);
        let other = Allocation { fd: Some(6), files, virtual_fd, ..allocation(kind) };
        ledger.allocations.insert(id(1), other);
    });
    world.process(BROKER).fds.push(file(6, INODE + 1));
    world.process(OWNER).fds.extend([fd(3, kind), file(4, INODE + 1)]);
    world.lease(1, 0, false);
    world.process(HOLDER).fds.push(file(7, INODE + 1));
    let expected = [(Kind::Leak, Some(HOLDER), vec![7]), (Kind::Forgotten, Some(HOLDER), vec![])];
    assert_eq!(world.found(), expected);
    let allocations: Vec<_> =
        judge(&world.0).into_iter().map(|it| (it.allocation, it.virtual_fd)).collect();
    assert_eq!(allocations, [(Some(id(1)), Some(1 << 30)), (Some(id(0)), None)]);
    // An open lease of the other one does not account for it, evicted or not.
    world.evict();
    world.process(BROKER).fds.push(file(6, INODE + 1));
    world.both(|ledger| ledger.stored_fds = 1);
    assert_eq!(world.found(), [(Kind::Leak, Some(HOLDER), vec![7])]);
}

#[test]
fn judge_when_lease_without_fd_then_forgotten_unless_in_flight_or_mapped() {
    let mut world = World::new(MemoryKind::Memfd);
    world.lease(1, 0, false);
    assert_eq!(world.found(), [(Kind::Forgotten, Some(HOLDER), vec![])]);
    // A grant that is not read yet, in its connection to the broker.
    world.process(BROKER).sockets.push(100);
    world.process(HOLDER).queues.push(Queue { fd: 3, inode: 101, in_flight: 1 });
    world.0.peers.insert(101, Some(100));
    assert_eq!(world.found(), [(Kind::Unread, Some(HOLDER), vec![3])]);
    world.process(HOLDER).queues.clear();
    world.map(HOLDER, MemoryKind::Memfd);
    assert_eq!(world.found(), [(Kind::Unreported, Some(HOLDER), vec![])]);
}

#[test]
fn judge_when_evicted_and_the_holder_has_no_fd_of_the_kind_then_forgotten_but_not_of_cuda() {
    for (kind, count) in [(MemoryKind::Memfd, 1), (MemoryKind::DmaBuf, 1), (MemoryKind::CudaVmm, 0)]
    {
        let mut world = World::new(kind);
        world.evict();
        world.lease(1, 0, false);
        let found = world.found();
        assert_eq!(found.len(), count, "{found:?}");
        assert!(found.iter().all(|(kind, ..)| *kind == Kind::Forgotten));
    }
}

#[test]
fn judge_when_cuda_fds_cannot_be_compared_then_no_lease_is_forgotten() {
    let mut world = World::new(MemoryKind::CudaVmm);
    world.lease(1, 0, false);
    world.0.scan.cuda_seen = false;
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_mapped_lease_without_mapping_then_forgotten_only_where_a_mapping_can_be_seen() {
    for kind in MemoryKind::ALL {
        let mut world = World::new(*kind);
        world.lease(1, 0, true);
        let expected = if kind.shows_each_import() { 1 } else { 0 };
        assert_eq!(world.found().len(), expected, "{kind:?}");
        world.map(HOLDER, *kind);
        assert_eq!(world.found(), [], "{kind:?}");
    }
}

#[test]
fn judge_when_a_dma_buf_has_no_reference_for_an_import_then_its_mapped_lease_is_forgotten() {
    let mut world = World::new(MemoryKind::DmaBuf);
    world.lease(1, 0, true);
    world.process(BROKER).fds[0].references = Some(2);
    assert_eq!(world.found(), [(Kind::Imports, None, vec![])]);
    world.process(BROKER).fds[0].references = Some(1);
    assert_eq!(world.found(), [(Kind::Forgotten, Some(HOLDER), vec![])]);
}

#[test]
fn judge_when_mapping_without_lease_then_stray_and_a_note_of_a_child_of_the_owner() {
    let mut world = World::new(MemoryKind::Memfd);
    world.map(STRANGER, MemoryKind::Memfd);
    assert_eq!(world.found(), [(Kind::StrayMapping, Some(STRANGER), vec![])]);
    world.process(STRANGER).parent = OWNER;
    assert_eq!(world.found(), [(Kind::Inherited, Some(STRANGER), vec![])]);
}

#[test]
fn judge_when_fds_in_flight_then_a_finding_where_no_grant_can_be() {
    let mut world = World::new(MemoryKind::Memfd);
    world.process(BROKER).sockets.push(100);
    world.process(HOLDER).queues.push(Queue { fd: 3, inode: 101, in_flight: 2 });
    // The other end cannot be seen, and no lease accounts for them.
    assert_eq!(world.found(), [(Kind::InFlight, Some(HOLDER), vec![3])]);
    world.0.peers.insert(101, None);
    assert_eq!(world.found(), [(Kind::InFlight, Some(HOLDER), vec![3])]);
    // A process that has nothing to do with the broker may do as it likes.
    let queues = std::mem::take(&mut world.process(HOLDER).queues);
    (world.process(STRANGER).queues, world.process(STRANGER).uid) = (queues, 1);
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_fds_in_flight_to_a_stranger_then_named_if_a_client_sent_them_or_its_user_has_clients()
{
    let mut world = World::new(MemoryKind::Memfd);
    world.process(BROKER).sockets.push(100);
    (world.process(STRANGER).uid, world.process(STRANGER).sockets) = (1, vec![101]);
    world.process(STRANGER).queues.push(Queue { fd: 3, inode: 101, in_flight: 2 });
    let named = [(Kind::InFlight, Some(STRANGER), vec![3])];
    // Its other end is its own.
    world.0.peers.insert(101, Some(102));
    world.process(STRANGER).sockets.push(102);
    assert_eq!(world.found(), []);
    world.process(HOLDER).sockets.push(102);
    assert_eq!(world.found(), named);
    // Nobody has the other end any more.
    world.process(HOLDER).sockets.clear();
    world.0.peers.insert(101, None);
    assert_eq!(world.found(), []);
    world.process(STRANGER).uid = 0;
    assert_eq!(world.found(), named);
    world.process(STRANGER).job = "unit:other.service".into();
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_a_process_could_not_be_read_then_nothing_of_it() {
    let mut world = World::new(MemoryKind::Memfd);
    world.lease(1, 0, false);
    world.lease(2, 0, true);
    world.process(HOLDER).unread = Some("no".into());
    world.process(BROKER).unread = Some("no".into());
    assert_eq!(world.found(), []);
}

#[test]
fn unread_parties_when_clients_or_the_broker_are_not_readable_then_counted_and_strangers_are_not() {
    let mut world = World::new(MemoryKind::Memfd);
    // A process that lives, and so is not gone.
    let own = std::process::id();
    let process = Process { unread: Some("no".into()), ..Process::default() };
    world.0.scan.processes.insert(own, process);
    assert_eq!(unread_parties(&world.0, None), 0);
    world.both(|ledger| {
        ledger.clients.insert(own, Client { silent: false });
    });
    assert_eq!((unread_parties(&world.0, None), unread_parties(&world.0, Some(OWNER))), (1, 0));
    world.both(|ledger| {
        ledger.clients.remove(&own);
        ledger.broker = own;
    });
    assert_eq!(unread_parties(&world.0, None), 1);
    world.both(|ledger| ledger.is_whole = false);
    assert_eq!(unread_parties(&world.0, None), 0);
}

#[test]
fn judge_when_ended_memory_then_pinned_by_the_stopped_and_the_silent_and_a_note_else() {
    let mut world = World::new(MemoryKind::DmaBuf);
    let ended = Lease { ended: true, ..lease(0, true) };
    world.both(|ledger| {
        ledger.leases.insert(1, ended);
    });
    assert_eq!(world.found(), [(Kind::Ended, Some(HOLDER), vec![])]);
    world.process(HOLDER).state = 'T';
    assert_eq!(world.found(), [(Kind::Pinned, Some(HOLDER), vec![])]);
    world.process(HOLDER).state = 'S';
    world.both(|ledger| ledger.clients.get_mut(&HOLDER).expect("a client").silent = true);
    assert_eq!(world.found(), [(Kind::Pinned, Some(HOLDER), vec![])]);
}

#[test]
fn judge_when_the_owner_is_gone_then_orphan_until_somebody_has_a_lease() {
    let mut world = World::new(MemoryKind::Memfd);
    world.both(|ledger| {
        let allocation = ledger.allocations.get_mut(&id(0)).expect("there");
        (allocation.owner_gone, allocation.owner_pid, allocation.keep) = (true, 0, true);
    });
    assert_eq!(world.found(), [(Kind::Orphan, None, vec![])]);
    // The service manager's copy, for the time after a crash.
    world.process(BROKER).parent = STRANGER;
    world.process(STRANGER).fds.push(fd(6, MemoryKind::Memfd));
    assert!(world.found().contains(&(Kind::Kept, Some(STRANGER), vec![6])));
    world.both(|ledger| ledger.allocations.get_mut(&id(0)).expect("there").leases = 1);
    assert_eq!(world.found(), [(Kind::Kept, Some(STRANGER), vec![6])]);
}

#[test]
fn judge_when_nobody_reads_a_named_object_whose_maker_is_gone_then_no_finding() {
    let mut world = World::new(MemoryKind::Memfd);
    world.both(|ledger| {
        let allocation = ledger.allocations.get_mut(&id(0)).expect("there");
        (allocation.owner_gone, allocation.owner_pid, allocation.named) = (true, 0, true);
    });
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_the_brokers_fds_are_not_its_ledgers_then_drift_unless_closing() {
    let mut world = World::new(MemoryKind::Memfd);
    let other = MemoryKey { kind: MemoryKind::Memfd, number: INODE + 1 };
    world.process(BROKER).fds.push(MemoryFd::new(9, other));
    assert_eq!(world.found(), [(Kind::Drift, Some(BROKER), vec![9])]);
    world.0.before.closing_fds = 1;
    assert_eq!(world.found(), []);
    world.process(BROKER).fds.clear();
    assert_eq!(world.found(), [(Kind::Drift, Some(BROKER), vec![])]);
    let mut world = World::new(MemoryKind::Memfd);
    world.both(|ledger| ledger.stored_fds = 2);
    assert_eq!(world.found(), [(Kind::Drift, Some(BROKER), vec![])]);
}

#[test]
fn judge_when_only_a_part_of_the_ledger_is_seen_then_the_brokers_fds_are_not_compared() {
    let mut world = World::new(MemoryKind::Memfd);
    let other = MemoryKey { kind: MemoryKind::Memfd, number: INODE + 1 };
    world.process(BROKER).fds.push(MemoryFd::new(9, other));
    world.both(|ledger| (ledger.is_whole, ledger.stored_fds) = (false, 3));
    assert_eq!(world.found(), []);
}

#[test]
fn confirm_when_the_broker_has_another_file_at_the_number_in_each_look_then_no_drift() {
    let mut looks = (1..).map(|number| {
        let mut world = World::new(MemoryKind::Memfd);
        let (leak, passing) = (INODE + 1, INODE + 1 + number);
        for (fd, number) in [(8, leak), (9, passing)] {
            let key = MemoryKey { kind: MemoryKind::Memfd, number };
            world.process(BROKER).fds.push(MemoryFd::new(fd, key));
        }
        world.0
    });
    let mut next = || Ok(looks.next().expect("endless"));
    let first = next().expect("a look");
    let (_, found, _) = confirm(first, LOOKS, next).expect("looks");
    let fds: Vec<_> = found.iter().map(|finding| &finding.fds[..]).collect();
    assert_eq!(fds, [[8]]);
}

#[test]
fn confirm_when_one_look_counts_the_brokers_fd_then_no_drift() {
    let mut world = World::new(MemoryKind::Memfd);
    let other = MemoryKey { kind: MemoryKind::Memfd, number: INODE + 1 };
    world.process(BROKER).fds.push(MemoryFd::new(9, other));
    let uncounted = World(world.0.clone());
    world.both(|ledger| {
        let mut one = allocation(MemoryKind::Memfd);
        (one.fd, one.files.numbers[0]) = (Some(9), INODE + 1);
        ledger.allocations.insert(id(1), one);
        ledger.stored_fds = 2;
    });
    let mut left = [uncounted.0.clone(), world.0, uncounted.0].into_iter();
    let first = left.next().expect("three");
    let (_, found, _) = confirm(first, LOOKS, || Ok(left.next().expect("three"))).expect("looks");
    assert_eq!(found, []);
}

#[test]
fn judge_when_a_dma_buf_has_more_references_than_were_seen_then_a_note() {
    let mut world = World::new(MemoryKind::DmaBuf);
    world.process(BROKER).fds[0].references = Some(2);
    assert_eq!(world.found(), [(Kind::Imports, None, vec![])]);
    world.map(OWNER, MemoryKind::DmaBuf);
    assert_eq!(world.found(), []);
}

#[test]
fn judge_when_nobody_has_named_it_after_a_crash_then_its_lease_may_be_of_any_kind() {
    for kind in MemoryKind::ALL {
        for mapped in [false, true] {
            let mut world = World::new(MemoryKind::Memfd);
            world.evict();
            world.both(|ledger| {
                let reserved = ledger.allocations.get_mut(&id(0)).expect("there");
                // The kind stands for one that is not known.
                reserved.state = AllocationState::Reserved;
                (reserved.files, reserved.owner_uid, reserved.owner_pid) = (NO_FILES, None, 0);
            });
            world.lease(1, 0, mapped);
            world.process(HOLDER).fds.push(fd(4, *kind));
            assert_eq!(world.found(), [], "{kind:?}");
            // Named again between the two ledgers, and not asked for yet.
            let named = world.0.after.allocations.get_mut(&id(0)).expect("there");
            (named.owner_uid, named.kind, named.state) =
                (Some(1000), *kind, AllocationState::Evicted);
            assert_eq!(world.found(), [], "{kind:?}");
        }
    }
}

/// What `confirm` finds in `count` looks of a duplicate too many, and none after, of a broker that
/// has granted `granted` in each; and how many looks it takes.
fn confirmed_of(count: usize, granted: u64) -> (usize, usize) {
    let mut odd = World::new(MemoryKind::DmaBuf);
    odd.0.after.done.0 += granted;
    let even = World(odd.0.clone());
    odd.process(HOLDER).fds.push(fd(4, MemoryKind::DmaBuf));
    let mut left = std::iter::repeat_n(odd.0, count).chain(std::iter::repeat(even.0));
    let first = left.next().expect("endless");
    let (_, found, looks) =
        confirm(first, LOOKS, || Ok(left.next().expect("endless"))).expect("looks");
    (found.len(), looks)
}

#[test]
fn confirm_when_the_broker_is_at_work_then_only_what_holds_in_more_looks() {
    assert_eq!(confirmed_of(0, 0), (0, 1));
    assert_eq!(confirmed_of(LOOKS - 1, 0), (0, LOOKS));
    assert_eq!(confirmed_of(LOOKS, 0), (1, LOOKS));
    assert_eq!(confirmed_of(LOOKS, 1), (0, LOOKS + 1));
    assert_eq!(confirmed_of(LOOKS_AT_WORK, 1), (1, LOOKS_AT_WORK));
}

#[test]
fn confirmed_when_another_process_or_memory_then_not_the_same_finding() {
    let of = |pid, inode| {
        let mut finding = Finding::new(Kind::Leak, "x");
        (finding.pid, finding.inode) = (Some(pid), Some(inode));
        finding
    };
    let before = [of(1, 7), of(2, 7)];
    // Which of several fds it is may change.
    let now = vec![of(1, 7).fds(&[3]), of(1, 8), of(3, 7)];
    assert_eq!(confirmed(now, &before), [of(1, 7).fds(&[3])]);
}

#[test]
fn gaps_when_the_process_asked_for_is_not_readable_then_said_of_it_by_itself() {
    let mut world = World::new(MemoryKind::Memfd);
    for pid in [HOLDER, STRANGER] {
        world.process(pid).unread = Some("no".into());
    }
    let said = |wanted| gaps(&world.0, wanted).into_keys().collect::<Vec<_>>();
    assert_eq!(said(None), ["clients: no", "processes: no"]);
    assert_eq!(said(Some(STRANGER)), ["clients: no", "the process asked for: no"]);
    assert!(check_wanted(STRANGER, &world.0).is_ok() && check_wanted(0, &world.0).is_err());
}

#[test]
fn check_wanted_when_it_is_a_thread_then_no_process() {
    let world = World::new(MemoryKind::Memfd);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let number = u32::try_from(nix::unistd::gettid().as_raw()).expect("positive");
            check_wanted(number, &world.0).is_err()
        });
        assert!(thread.join().expect("no panic"));
    });
}
