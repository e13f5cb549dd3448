//! What may be deposited and what may not: the daemon looks at each fd itself, without touching
//! what hangs.

use crate::support::broker::Broker;
use crate::support::memory::{
    BLOCK_BYTES, all_seals, assert_bytes, block_with_forged_name, memfd, memory_kind,
};
use crate::support::owner::Owner;
use crate::support::raw::Raw;
use crate::support::wait::patience;
use fdbroker_client::{Client, Deposit, Error, Share};
use fdbroker_protocol::{ErrorCode, FdType, MemoryKind};
use nix::fcntl::{OFlag, SealFlag};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::Mode;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// So many that a reply which does not wait is noticed: it comes before the close every other time.
const ROUNDS: usize = 200;

/// Deposits `fd` as one page of memory of `kind`.
fn deposit(client: &Client, kind: MemoryKind, fd: &OwnedFd) -> Error {
    let deposit = Deposit::new(kind, BLOCK_BYTES as u64);
    let outcome = client.register(&deposit, fd.as_fd(), patience());
    outcome.expect_err("it was accepted")
}

/// The fd is refused by name, whatever memory it is said to be; nothing of it stays in the daemon.
#[track_caller]
fn assert_unsupported(fd: OwnedFd, expected: FdType) {
    let broker = Broker::start();
    let client = broker.client("depositor");
    for kind in [MemoryKind::DmaBuf, MemoryKind::CudaVmm, MemoryKind::Memfd] {
        let error = deposit(&client, kind, &fd);
        assert_eq!(error.code, ErrorCode::UnsupportedFd, "{error}");
        let value = error.status.expect("from the broker").value;
        assert_eq!(value, expected as u64, "{error}");
    }
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn register_when_no_memory_then_unsupported_names_what_it_is() {
    let (socket, _other) = fdbroker_scm::seqpacket_pair().expect("a pair");
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("eventfd");
    let open = |path: &str| OwnedFd::from(File::open(path).expect("open"));
    let memfd = memfd(c"path", BLOCK_BYTES, all_seals());
    let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
    let path = nix::fcntl::open(path.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
    for (fd, expected) in [
        (socket, FdType::Socket),
        (reader, FdType::Pipe),
        (writer, FdType::Pipe),
        (epoll.0, FdType::Anonymous),
        (eventfd.into(), FdType::Anonymous),
        (open("/"), FdType::Directory),
        (open("/proc/self/exe"), FdType::File),
        (open("/dev/null"), FdType::Device),
        (path.expect("open"), FdType::File),
    ] {
        assert_unsupported(fd, expected);
    }
}

#[test]
fn register_when_a_memfd_lacks_a_seal_then_unsupported() {
    // Without F_SEAL_SHRINK its producer could end every reader; without F_SEAL_SEAL a consumer
    // could seal it.
    for seals in [SealFlag::empty(), SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_SEAL] {
        assert_unsupported(memfd(c"unsealed", BLOCK_BYTES, seals), FdType::UnsealedMemfd);
    }
}

#[test]
fn register_when_the_brokers_own_connection_then_unsupported() {
    // A connection that holds itself would never end.
    let broker = Broker::start();
    let raw = Raw::connect(&broker.socket());
    let client = broker.client("depositor");
    let error = deposit(&client, MemoryKind::Memfd, &raw.socket);
    assert_eq!(error.code, ErrorCode::UnsupportedFd, "{error}");
    drop((raw, client));
    broker.assert_nothing_left();
}

#[test]
fn register_when_a_memfd_may_grow_then_not_for_other_uids() {
    // Another user could add to it what its depositor is charged for.
    let fd = memfd(c"growable", BLOCK_BYTES, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL);
    let broker = Broker::start();
    let client = broker.client("depositor");
    let register = |id, share| {
        let memory = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
        let deposit = memory.facts(memory.facts.owner_allocation_id(id)).share(share);
        client.register(&deposit, fd.as_fd(), patience())
    };
    for (id, share) in [(1, Share::Gid), (2, Share::Any)] {
        let error = register(id, share).expect_err("it may grow");
        assert_eq!(error.code, ErrorCode::UnsupportedFd, "{error}");
        assert!(error.to_string().contains("F_SEAL_GROW"), "{error}");
    }
    register(3, Share::Uid).expect("its uid can add to it anyway");
}

#[test]
fn register_when_a_memfd_is_named_like_a_dma_buf_then_told_apart() {
    let forged = c"dmabuf:\nexp_name:\tudmabuf\nsize:\t4096";
    let fd = memfd(forged, BLOCK_BYTES, all_seals());
    let broker = Broker::start();
    let client = broker.client("depositor");
    let error = deposit(&client, MemoryKind::DmaBuf, &fd);
    assert_eq!(error.code, ErrorCode::UnsupportedFd, "{error}");
    let value = error.status.expect("from the broker").value;
    assert_eq!(value, FdType::KindMismatch as u64, "{error}");
}

#[test]
fn register_when_the_memorys_name_forges_a_size_then_the_true_one_counts() {
    let broker = Broker::start();
    let client = broker.client("depositor");
    let fd = block_with_forged_name();
    let true_size = Deposit::new(memory_kind(), BLOCK_BYTES as u64);
    client.register(&true_size, fd.as_fd(), patience()).expect("it is what it is");
    let forged_size = Deposit::new(memory_kind(), 99_999_999);
    let error = client.register(&forged_size, fd.as_fd(), patience()).expect_err("accepted");
    let value = error.status.expect("from the broker").value;
    assert_eq!((error.code, value), (ErrorCode::UnsupportedFd, FdType::TooSmall as u64), "{error}");
}

#[test]
fn register_when_the_fd_is_smaller_than_claimed_then_unsupported() {
    let broker = Broker::start();
    let owner = Owner::without(&broker, "depositor", 1);
    let fd = owner.blocks.export(0);
    let whole = BLOCK_BYTES as u64;
    for (size_bytes, fd_offset) in [(whole + 1, 0), (whole, 1), (1, u64::MAX - 1), (u64::MAX, 0)] {
        let mut deposit = Deposit::new(memory_kind(), size_bytes);
        deposit.facts.fd_offset = fd_offset;
        let error = owner.client.register(&deposit, fd.as_fd(), patience()).expect_err("accepted");
        assert_eq!(error.code, ErrorCode::UnsupportedFd, "{size_bytes} at {fd_offset}: {error}");
        let value = error.status.expect("from the broker").value;
        assert_eq!(value, FdType::TooSmall as u64, "{size_bytes} at {fd_offset}: {error}");
    }
}

#[test]
fn register_when_one_of_many_is_unsupported_then_the_others_are_accepted() {
    let broker = Broker::start();
    let owner = Owner::without(&broker, "depositor", 3);
    let deposits: Vec<_> = (0..3).map(|index| owner.blocks.deposit(index)).collect();
    let fds: Vec<OwnedFd> = vec![
        owner.blocks.export(0),
        File::open("/dev/null").expect("open").into(),
        owner.blocks.export(2),
    ];
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let outcomes = owner.client.register_many(&deposits, &borrowed, patience()).expect("connected");
    let error = outcomes[1].as_ref().expect_err("a device");
    assert_eq!(error.code, ErrorCode::UnsupportedFd, "{error}");
    for index in [0, 2] {
        let handle = outcomes[index].as_ref().expect("memory").handle;
        let grant = owner.client.acquire(&handle, patience()).expect("a grant");
        drop(assert_bytes(grant, index as u64));
    }
}

#[test]
fn register_when_the_size_is_zero_then_refused() {
    let broker = Broker::start();
    let owner = Owner::without(&broker, "depositor", 1);
    let deposit = Deposit::new(memory_kind(), 0);
    let fd = owner.blocks.export(0);
    let outcome = owner.client.register(&deposit, fd.as_fd(), patience());
    outcome.expect_err("an allocation of no bytes");
}

/// More old allocations than one message ends.
const MANY: usize = 200;

#[test]
fn register_when_it_overlaps_many_then_all_of_them_end_and_it_is_there() {
    let broker = Broker::start();
    let owner = Owner::without(&broker, "owner", 1);
    let piece = BLOCK_BYTES as u64 / MANY as u64;
    let whole = owner.blocks.deposit(0);
    let pieces: Vec<Deposit> = (0..MANY as u64)
        .map(|index| {
            let (base, id) = (whole.base + index * piece, 1000 + index);
            whole.facts(whole.facts.size_bytes(piece).owner_allocation_id(id)).base(base)
        })
        .collect();
    let export = |_| Ok(owner.blocks.export(0));
    let old = owner.client.register_with(&pieces, export, patience()).expect("connected");
    let old: Vec<_> = old.into_iter().map(|one| one.expect("registered").handle).collect();

    let export = |_| Ok(owner.blocks.export(0));
    let registered = owner.client.register_with(&[whole], export, patience()).expect("connected");

    let handle = registered[0].as_ref().expect("after several tries").handle;
    let client = broker.client("consumer");
    drop(assert_bytes(client.acquire(&handle, patience()).expect("it lives"), 0));
    let codes = old.iter().map(|handle| client.acquire(handle, patience()).expect_err("gone").code);
    assert!(codes.into_iter().all(|code| code == ErrorCode::Stale));
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn unregister_when_of_many_then_all_of_them_end() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", MANY);
    let ids: Vec<_> = (0..MANY).map(|index| owner.id(index)).collect();
    let ended = owner.client.unregister_many(ids, patience()).expect("connected");
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(broker.status().uses.allocations.now.get(), 0);
    drop(owner);
    broker.assert_nothing_left();
}

#[test]
fn register_when_many_are_no_memory_then_each_says_so_and_the_others_are_kept() {
    let broker = Broker::start();
    let owner = Owner::without(&broker, "owner", 4);
    let (pipe, _end) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    let is_good = |index: usize| index % 6 == 5;
    let deposits: Vec<Deposit> = (0..24).map(|index| owner.blocks.deposit(index / 6)).collect();
    let deposits: Vec<Deposit> = (0..24)
        .map(|index| deposits[index].base(if is_good(index) { deposits[index].base } else { 0 }))
        .collect();
    let export = |index: usize| match is_good(index) {
        true => Ok(owner.blocks.export(index / 6)),
        false => Ok(pipe.try_clone().expect("dup")),
    };
    let registered = owner.client.register_with(&deposits, export, patience()).expect("connected");
    for (index, outcome) in registered.iter().enumerate() {
        match outcome {
            Ok(_) => assert!(is_good(index), "{index} is a pipe"),
            Err(error) => {
                assert_eq!(
                    (error.code, is_good(index)),
                    (ErrorCode::UnsupportedFd, false),
                    "{index}"
                );
            }
        }
    }
    drop(owner);
    broker.assert_nothing_left();
}

#[test]
fn settle_when_allocations_have_ended_then_the_broker_has_closed_their_fds() {
    let broker = Broker::start();
    let client = broker.client("owner");
    client.settle(patience()).expect("there is nothing to wait for");
    let memory = memfd(c"settled", BLOCK_BYTES, all_seals());
    let before = broker.settled_fds();
    for _ in 0..ROUNDS {
        let deposit = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
        let one = client.register(&deposit, memory.as_fd(), patience()).expect("registered");
        client.unregister(&one).expect("known");
        client.settle(patience()).expect("closes do not hang");
        assert_eq!(broker.open_fds(), before);
    }
}
