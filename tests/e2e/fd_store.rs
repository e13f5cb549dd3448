//! The daemon under a service manager that stores fds (a stand-in for systemd): a restart that
//! clients do not notice, a state that is refused, kept allocations over kill -9, sockets bound by
//! the manager, and what it is told.

use crate::support::admin::Admin;
use crate::support::manager::Manager;
use crate::support::memory::{BLOCK_BYTES, Blocks, all_seals, assert_bytes, memfd};
use crate::support::owner::notices;
use crate::support::raw::Raw;
use crate::support::wait::{eventually, eventually_some, patience};
use fdbroker_client::{Client, ClientBuilder, ErrorCode, Notice};
use fdbroker_protocol::message::{
    RedepositItem, RegisterHead, RegisterItem, Registered, register_flags,
};
use fdbroker_protocol::{Facts, FactsItem, Kind, MemoryKind, Share};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn builder(manager: &Manager, name: &str) -> ClientBuilder {
    let builder = Client::builder().socket(manager.socket()).name(name);
    builder.on_recall(|_| Err(ErrorCode::Again))
}

#[test]
fn clients_when_the_service_is_restarted_then_they_notice_nothing_and_nothing_stays_in_the_store() {
    let mut manager = Manager::new(&[]);
    manager.start(&[]);
    let (told, on_notice) = notices();
    let client = builder(&manager, "client").on_notice(on_notice).connect().expect("connect");
    let blocks = Blocks::new(40);
    let register = |index: usize| {
        let fd = blocks.export(index);
        client.register(&blocks.deposit(index), fd.as_fd(), patience()).expect("registered")
    };
    let registrations: Vec<_> = (0..40).map(register).collect();
    let grant = client.acquire(&registrations[3].handle, patience()).expect("granted");
    for _ in 0..3 {
        let open_fds = manager.settled_fds();
        assert_eq!(manager.end(Signal::SIGTERM).code(), Some(0));

        assert!(!client.is_current(registrations[0].id()), "a hit without a broker");
        assert!(client.is_connected());
        let stored = manager.stored();
        assert!(stored.contains(&"ledger".into()) && stored.contains(&"carrier".into()));
        std::thread::scope(|threads| {
            // Asked while there is no broker.
            let asked = threads.spawn(|| client.acquire(&registrations[7].handle, patience()));
            manager.start(&[]);
            drop(assert_bytes(asked.join().expect("no panic").expect("served by the next one"), 7));
        });

        assert!(client.is_current(registrations[0].id()), "a hit again, without a word");
        for (index, registration) in registrations.iter().enumerate() {
            let grant = client.acquire(&registration.handle, patience()).expect("served on");
            drop(assert_bytes(grant, index as u64));
        }
        eventually("the store has what outlives a crash alone", || manager.stored().is_empty());
        eventually("as many fds are open", || manager.open_fds() == open_fds);
    }
    drop(assert_bytes(grant, 3));
    told.assert_never_disconnected();
}

#[test]
fn clients_when_the_service_is_restarted_fifty_times_under_load_then_nobody_reconnects_and_no_handle_is_lost()
 {
    const RESTARTS: usize = 50;
    let mut manager = Manager::new(&[]);
    manager.start(&[]);
    let connect = |name: &str| {
        let (told, on_notice) = notices();
        (builder(&manager, name).on_notice(on_notice).connect().expect("connect"), told)
    };
    let (owner, clients) = (connect("owner"), [connect("client"), connect("client")]);
    let blocks = Blocks::new(64);
    let register = |index: usize| {
        let fd = blocks.export(index);
        owner.0.register(&blocks.deposit(index), fd.as_fd(), patience()).expect("registered")
    };
    let registrations: Vec<_> = (0..64).map(register).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for (client, _) in &clients {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for (registration, seed) in registrations.iter().zip(0..) {
                        let grant = client.acquire(&registration.handle, patience());
                        drop(assert_bytes(grant.expect("served on"), seed));
                    }
                }
            });
        }
        for _ in 0..RESTARTS {
            assert_eq!(manager.end(Signal::SIGTERM).code(), Some(0));
            manager.start(&[]);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (_, told) in clients.iter().chain([&owner]) {
        told.assert_never_disconnected();
    }
}

/// The state with one byte changed, sealed like it.
fn changed(ledger: &OwnedFd, at: usize) -> OwnedFd {
    let mut bytes = Vec::new();
    let file = File::from(ledger.try_clone().expect("dup"));
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = file.read_at(&mut piece, bytes.len() as u64) {
        bytes.extend_from_slice(&piece[..length]);
    }
    bytes[at] ^= 1;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("changed", flags).expect("a memfd"));
    file.write_all_at(&bytes, 0).expect("write");
    let seals = SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("seal");
    file.into()
}

#[test]
fn state_when_of_another_format_or_damaged_then_one_line_says_so_and_all_its_fds_are_closed() {
    for (at, says) in [(8, "it has format"), (40, "its checksum is wrong")] {
        let mut manager = Manager::new(&[]);
        manager.start(&[]);
        let open_fds = manager.settled_fds();
        let mut raw = Raw::connect(&manager.socket());
        let block = memfd(c"block", BLOCK_BYTES, all_seals());
        let registered = raw.register(&[item(0)], &[block.as_fd()]);
        assert!(registered[0].status.get().is_ok());
        manager.end(Signal::SIGTERM);
        manager.replace("ledger", |ledger| changed(ledger, at));

        manager.start(&[]);

        raw.assert_ended();
        // A thread writes the log.
        let last = "starting as after a crash";
        let log =
            eventually_some("it says so", || Some(manager.log()).filter(|log| log.contains(last)));
        assert_eq!(log.matches("is not gone on with").count(), 1, "{log}");
        assert!(log.contains(says), "{log}");
        eventually("its fds are closed", || manager.open_fds() == open_fds);
        eventually("the store is empty", || manager.stored().is_empty());
        Raw::connect(&manager.socket());
    }
}

#[test]
fn state_when_the_store_hands_it_out_twice_then_the_second_time_it_is_refused() {
    let mut manager = Manager::new(&[]);
    // The sockets are the manager's: an idle broker has nothing to send.
    let (path, admin) = (manager.socket(), manager.dir().join("fdbroker-admin/admin.sock"));
    let sockets = [("client", bound(&path)), ("admin", bound(&admin))];
    manager.start(&sockets);
    manager.end(Signal::SIGTERM);
    let mut stale = manager.copy();
    stale.retain(|(name, _)| name == "ledger" || name == "carrier");
    manager.start(&sockets);
    assert!(!manager.log().contains("is not gone on with"), "{}", manager.log());
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let register =
        || Raw::connect(&path).register(&[item(0)], &[block.as_fd()])[0].handle.get().id();
    let before = register();
    manager.end(Signal::SIGKILL);
    // It was stuck, and what it was told to remove is there still.
    eventually("it was told to", || manager.stored().is_empty());
    manager.put_back(stale);

    manager.start(&sockets);

    assert_ne!(register(), before, "an old handle would reach this");
    // A thread writes the log.
    eventually("it says so once", || manager.log().matches("is not gone on with").count() == 1);
}

/// One block, kept when `flags` say so.
fn item(flags: u8) -> RegisterItem {
    RegisterItem {
        facts: Facts::new(MemoryKind::Memfd, BLOCK_BYTES as u64).owner_allocation_id(7).into(),
        flags: flags | register_flags::RECALLABLE,
        share: Share::Uid as u8,
        driver_data_len: 3,
        base: 0.into(),
        driver_data: [9; 64],
    }
}

/// For longer than any test takes.
const KEPT_LONG: [&str; 2] = ["--set", "limits.keep_ttl_ms=600000"];

/// With a broker that keeps for a moment what it finds kept, nothing is kept soon.
#[track_caller]
fn assert_soon_over(manager: &mut Manager) {
    manager.end(Signal::SIGKILL);
    manager.use_flags(&["--set", "limits.keep_ttl_ms=100"]);
    manager.start(&[]);
    eventually("their time is over", || manager.carried() == 0);
}

#[test]
fn kept_allocations_when_the_broker_is_killed_then_their_handles_work_until_their_time_is_over() {
    let mut manager = Manager::new(&KEPT_LONG);
    manager.start(&[]);
    let mut owner = Raw::connect(&manager.socket());
    let blocks: Vec<OwnedFd> = (0..20).map(|_| memfd(c"block", BLOCK_BYTES, all_seals())).collect();
    let mut handles = Vec::new();
    for block in &blocks {
        let registered = owner.register(&[item(register_flags::KEEP)], &[block.as_fd()]);
        assert!(registered[0].status.get().is_ok(), "{}", registered[0].status.get());
        handles.push(registered[0].handle.get());
    }
    eventually("all are stored", || manager.carried() == 20);
    owner.unregister(&[handles[0].id()]);
    eventually("one is out of the store", || manager.carried() == 19);
    // A planned restart leaves them as they are.
    manager.end(Signal::SIGTERM);
    manager.start(&[]);
    owner.unregister(&[handles[1].id()]);
    eventually("another one is out of the store", || manager.carried() == 18);

    manager.end(Signal::SIGKILL);
    manager.start(&[]);

    let mut consumer = Raw::connect(&manager.socket());
    let (items, fds) = consumer.acquire(&handles[2..]);
    for item in &items {
        assert!(item.status.get().is_ok(), "{}", item.status.get());
        assert_eq!(item.driver_data_len, 3);
    }
    assert_eq!(fds.len(), 18);
    for (fd, block) in fds.iter().zip(&blocks[2..]) {
        assert_eq!(inode(fd), inode(block));
    }
    assert_soon_over(&mut manager);
}

#[test]
fn kept_allocations_when_their_job_has_ended_then_its_still_over_a_restart_and_a_crash() {
    let mut manager = Manager::new(&KEPT_LONG);
    manager.start(&[]);
    let mut owner = Raw::connect(&manager.socket());
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let registered = owner.register(&[item(register_flags::KEEP)], &[block.as_fd()]);
    assert!(registered[0].status.get().is_ok(), "{}", registered[0].status.get());
    let admin_of =
        |manager: &Manager| Admin::connect(&manager.dir().join("fdbroker-admin/admin.sock"));
    let admin = admin_of(&manager);
    // Whatever the cgroup of this test is, it is one.
    let [job] = admin.jobs()[..] else { panic!("one job") };
    let named = (job.key, job.name);
    assert_eq!((job.uses.connections.now.get(), job.left_allocations.get()), (1, 0));
    drop(owner);
    eventually("it is noticed", || admin.status().uses.connections.now.get() == 0);
    eventually("it is stored", || manager.carried() == 1);
    let left = |manager: &Manager| {
        let admin = admin_of(manager);
        let [job] = admin.jobs()[..] else { panic!("one job") };
        assert_eq!((job.uses.connections.now.get(), job.left_allocations.get()), (0, 1));
        let [record] = admin.allocations()[..] else { panic!("one allocation") };
        assert_eq!((record.job, record.job_name), (job.key, job.name));
        (job.key, job.name)
    };
    assert_eq!(left(&manager), named);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        manager.end(signal);
        manager.start(&[]);
        assert_eq!(left(&manager), named, "{signal}");
    }
}

fn inode(fd: &OwnedFd) -> u64 {
    nix::sys::stat::fstat(fd).expect("fstat").st_ino
}

/// Before kept allocations were records of the log, they had a list of their own.
#[test]
fn kept_allocations_when_stored_by_a_list_of_before_then_one_line_says_so_and_all_of_it_goes() {
    let mut manager = Manager::new(&[]);
    manager.start(&[]);
    let open_fds = manager.settled_fds();
    manager.end(Signal::SIGKILL);
    let stale = ["book", "k3.1", "k4.1"].map(|name| {
        let fd = memfd(c"stale", BLOCK_BYTES, all_seals());
        (name.to_owned(), fd)
    });
    manager.put_back(stale.into());
    manager.start(&[]);
    eventually("all of it has left the store", || manager.stored().is_empty());
    eventually("and is closed", || manager.open_fds() == open_fds);
    // A thread writes the log.
    let says = "the list of kept allocations is an older broker's";
    eventually("it says so once", || manager.log().matches(says).count() == 1);
}

#[test]
fn kept_allocations_when_the_broker_is_killed_while_the_manager_is_stuck_then_those_it_has_heard_of()
 {
    let mut manager = Manager::new(&KEPT_LONG);
    manager.start(&[]);
    let mut owner = Raw::connect(&manager.socket());
    let blocks: Vec<OwnedFd> = (0..3).map(|_| memfd(c"block", BLOCK_BYTES, all_seals())).collect();
    let mut keep = |block: &OwnedFd| {
        let registered = owner.register(&[item(register_flags::KEEP)], &[block.as_fd()])[0];
        assert!(registered.status.get().is_ok(), "{}", registered.status.get());
        registered.handle.get()
    };
    let mut handles = vec![keep(&blocks[0])];
    eventually("it is stored", || manager.carried() == 1);
    manager.while_stuck(|manager| {
        handles.extend(blocks[1..].iter().map(&mut keep));
        manager.signal(Signal::SIGKILL);
    });
    manager.end(Signal::SIGKILL);
    manager.start(&[]);
    let (items, fds) = Raw::connect(&manager.socket()).acquire(&handles[..1]);
    assert!(
        items[0].status.get().is_ok() && inode(&fds[0]) == inode(&blocks[0]),
        "{}",
        items[0].status.get()
    );
    // Nothing of the others stays, whether the manager has heard of them or not.
    assert_soon_over(&mut manager);
}

#[test]
fn kept_allocations_when_unregistered_while_there_is_no_broker_then_refused_and_their_fds_are_gone()
{
    let mut manager = Manager::new(&KEPT_LONG);
    manager.start(&[]);
    let (told, on_notice) = notices();
    let client = builder(&manager, "client").on_notice(on_notice).connect().expect("connect");
    let blocks = [Blocks::new(1), Blocks::new(2)];
    let keep = |index: usize| {
        let deposit = blocks[index].deposit(index).keep(true);
        let fd = blocks[index].export(index);
        client.register(&deposit, fd.as_fd(), patience()).expect("registered")
    };
    let registrations = [keep(0), keep(1)];
    eventually("both are stored", || manager.carried() == 2);
    manager.end(Signal::SIGKILL);
    let lost = |notice| matches!(notice, Notice::Disconnected).then_some(());
    told.until("the broker is lost", lost);
    assert!(!client.unregister(&registrations[0]).expect("it ends all the same").0);

    manager.start(&[]);

    eventually("one is out of the store", || manager.carried() == 1);
    let consumer = builder(&manager, "consumer").connect().expect("connect");
    let [ended, stays] =
        [0, 1].map(|index: usize| consumer.acquire(&registrations[index].handle, patience()));
    assert_eq!(ended.expect_err("it has ended").code, ErrorCode::Stale);
    drop(assert_bytes(stays.expect("it is kept"), 1));
}

/// Its owner comes back to the broker that it had lost, and says nothing else.
#[test]
fn kept_allocations_when_their_owner_names_one_as_ended_then_refused_and_its_fd_is_gone() {
    for is_killed in [false, true] {
        let mut manager = Manager::new(&KEPT_LONG);
        manager.start(&[]);
        let mut owner = Raw::connect(&manager.socket());
        let block = memfd(c"block", BLOCK_BYTES, all_seals());
        let registered = owner.register(&[item(register_flags::KEEP)], &[block.as_fd()])[0];
        assert!(registered.status.get().is_ok(), "{}", registered.status.get());
        eventually("it is stored", || manager.carried() == 1);
        drop(owner);
        if is_killed {
            manager.end(Signal::SIGKILL);
            manager.start(&[]);
        } else {
            let admin = Admin::connect(&manager.dir().join("fdbroker-admin/admin.sock"));
            eventually("it is noticed", || admin.status().uses.connections.now.get() == 0);
        }
        let mut owner = Raw::connect(&manager.socket());
        let Registered { handle, token, .. } = registered;
        let item = item(register_flags::KEEP | register_flags::ENDED);
        let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
        let named = RedepositItem { item, handle, token };
        let answer =
            owner.request(Kind::Redeposit, |writer| writer.push(&head).push(&named), 1, &[]);
        let status = answer.registered().1[0].status.get();
        assert!(status.is_ok(), "{status}");
        eventually("it is out of the store", || manager.carried() == 0);
        let (items, _) = Raw::connect(&manager.socket()).acquire(&[handle.get()]);
        assert_eq!(items[0].status.get().result(), Err(ErrorCode::Stale));
    }
}

/// A broker with a table of 2,048 fds carries a quarter of it at most, whatever the caps let in.
#[test]
fn kept_allocations_when_more_than_are_carried_then_accepted_and_carried_as_others_end() {
    if !crate::common::has_fds(2048) {
        return;
    }
    const CARRIED: usize = 512;
    const KEPT: usize = 600;
    let mut manager = Manager::new(&[&KEPT_LONG[..], &["--set", "limits.table_fds=2048"]].concat());
    manager.start(&[]);
    let mut owner = Raw::connect(&manager.socket());
    let mut kept = Vec::new();
    for _ in 0..KEPT {
        let block = memfd(c"block", BLOCK_BYTES, all_seals());
        let registered = owner.register(&[item(register_flags::KEEP)], &[block.as_fd()])[0];
        assert!(registered.status.get().is_ok(), "{}", registered.status.get());
        kept.push((registered.handle.get(), inode(&block)));
    }
    eventually("as many as may be are stored", || manager.carried() == CARRIED);
    let says =
        format!("carriers are full: {CARRIED} kept allocations and groups of objects outlive");
    eventually("it says so once", || manager.log().matches(&says).count() == 1);

    // Every fifth: holes in all carriers, and room for all that wait.
    let mut index = 0;
    let (ended, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|_| {
        index += 1;
        index % 5 == 0
    });
    for ended in ended.chunks(20) {
        let ids: Vec<_> = ended.iter().map(|(handle, _)| handle.id()).collect();
        assert!(owner.unregister(&ids).iter().all(|status| status.result().is_ok()));
    }
    let mut inodes: Vec<_> = kept.iter().map(|(_, inode)| *inode).collect();
    inodes.sort_unstable();
    eventually("those that waited are stored", || manager.carried_inodes() == inodes);
    // The second time with what the first one found, in carriers that were written anew.
    for _ in 0..2 {
        manager.end(Signal::SIGKILL);
        manager.start(&[]);
        let mut consumer = Raw::connect(&manager.socket());
        for kept in kept.chunks(100) {
            let handles: Vec<_> = kept.iter().map(|(handle, _)| *handle).collect();
            let (items, fds) = consumer.acquire(&handles);
            assert!(items.iter().all(|item| item.status.get().is_ok()));
            assert!(fds.iter().map(inode).eq(kept.iter().map(|(_, inode)| *inode)));
        }
        let (items, fds) = consumer.acquire(&[ended[0].0]);
        assert!(!items[0].status.get().is_ok() && fds.is_empty());
        eventually("those alone are stored", || manager.carried_inodes() == inodes);
    }
}

/// What is dropped from carriers meanwhile lies there twice, and takes nobody's place.
#[test]
fn kept_allocations_when_replaced_in_a_row_and_the_broker_is_killed_then_all_of_them_work() {
    if !crate::common::has_fds(2048) {
        return;
    }
    for _ in 0..3 {
        let flags = [&KEPT_LONG[..], &["--set", "limits.table_fds=2048"]].concat();
        let mut manager = Manager::new(&flags);
        manager.start(&[]);
        let mut owner = Raw::connect(&manager.socket());
        let keep = |owner: &mut Raw| {
            let block = memfd(c"block", BLOCK_BYTES, all_seals());
            let registered = owner.register(&[item(register_flags::KEEP)], &[block.as_fd()])[0];
            assert!(registered.status.get().is_ok(), "{}", registered.status.get());
            (registered.handle.get(), inode(&block))
        };
        // There is room for 62 more, and each of 60 may lie there for some time after its end.
        let mut kept: Vec<_> = (0..450).map(|_| keep(&mut owner)).collect();
        eventually("all are stored", || manager.carried() == kept.len());
        for index in 0..60 {
            let (ended, _) = std::mem::replace(&mut kept[index * 7], keep(&mut owner));
            assert!(owner.unregister(&[ended.id()])[0].result().is_ok());
        }
        manager.end(Signal::SIGKILL);
        manager.start(&[]);
        let mut consumer = Raw::connect(&manager.socket());
        for (handle, its) in &kept {
            let (items, fds) = consumer.acquire(&[*handle]);
            assert!(items[0].status.get().is_ok(), "{}", items[0].status.get());
            assert_eq!(inode(&fds[0]), *its);
        }
    }
}

#[test]
fn kept_allocations_when_what_names_them_is_lost_then_the_log_says_so() {
    for (is_record, says) in
        [(true, "all 1 kept allocations and groups of objects"), (false, "1 kept fds are given up")]
    {
        let mut manager = Manager::new(&KEPT_LONG);
        manager.start(&[]);
        let mut owner = Raw::connect(&manager.socket());
        let block = memfd(c"block", BLOCK_BYTES, all_seals());
        owner.register(&[item(register_flags::KEEP)], &[block.as_fd()]);
        eventually("it is stored", || manager.carried() == 1);
        manager.end(Signal::SIGKILL);
        if is_record {
            std::fs::remove_file(manager.dir().join("fdbroker-admin/records"))
                .expect("it is there");
        } else {
            manager.lose("objects");
        }
        manager.start(&[]);
        eventually("it says so", || manager.log().contains(says));
    }
}

/// Two ranges of one memfd, deposited with the same fd.
#[test]
fn kept_ranges_of_one_memfd_when_the_broker_is_killed_then_those_not_ended_work_until_their_time_is_over()
 {
    for ended in [None, Some(0), Some(1)] {
        let mut manager = Manager::new(&KEPT_LONG);
        manager.start(&[]);
        let mut owner = Raw::connect(&manager.socket());
        let memory = memfd(c"ranges", 2 * BLOCK_BYTES, all_seals());
        let mut range = |index: usize| {
            let (fd_offset, base) = ((index * BLOCK_BYTES) as u64, (1 + index) * (1 << 20));
            let item = RegisterItem {
                facts: FactsItem {
                    fd_offset: fd_offset.into(),
                    ..item(register_flags::KEEP).facts
                },
                base: (base as u64).into(),
                ..item(register_flags::KEEP)
            };
            let registered = owner.register(&[item], &[memory.as_fd()])[0];
            assert!(registered.status.get().is_ok(), "{}", registered.status.get());
            registered.handle.get()
        };
        let mut handles = vec![range(0), range(1)];
        eventually("both are stored", || manager.carried() == 2);
        if let Some(ended) = ended {
            owner.unregister(&[handles.remove(ended).id()]);
        }

        // The second time with what the first one found.
        for _ in 0..2 {
            manager.end(Signal::SIGKILL);
            manager.start(&[]);
            let (items, fds) = Raw::connect(&manager.socket()).acquire(&handles);
            let codes: Vec<_> = items.iter().map(|item| item.status.get().result().err()).collect();
            assert_eq!(codes, vec![None; handles.len()], "{ended:?} has ended");
            assert!(fds.len() == handles.len() && fds.iter().all(|fd| inode(fd) == inode(&memory)));
        }
        eventually("those alone are stored", || manager.carried() == handles.len());
        assert_soon_over(&mut manager);
    }
}

pub fn bound(path: &Path) -> OwnedFd {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(path.parent().expect("a directory"), private).expect("chmod");
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let socket = socket.expect("a socket");
    bind(socket.as_raw_fd(), &UnixAddr::new(path).expect("short")).expect("bind");
    listen(&socket, Backlog::new(16).expect("few")).expect("listen");
    socket
}

#[test]
fn store_when_it_has_names_of_no_use_then_they_leave_it_and_one_line_says_so() {
    let mut manager = Manager::new(&[]);
    manager.start(&[]);
    manager.end(Signal::SIGKILL);
    let strange = ["o900.0", "o900.1", "o901.1", "k9.9", "stored", "ledger of another"];
    let fd = || memfd_create("of no use", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    manager.put_back(strange.iter().map(|name| ((*name).to_owned(), fd())).collect());
    manager.start(&[]);
    eventually("they leave it", || {
        let names = [manager.stored(), manager.stored_for_kept()].concat();
        !names.iter().any(|name| strange.contains(&name.as_str()))
    });
    assert_eq!(manager.log().matches("names of no use").count(), 1, "{}", manager.log());
    assert_eq!(manager.log().matches("carriers cannot be read").count(), 1, "{}", manager.log());
}

#[test]
fn sockets_when_bound_by_the_manager_then_served_and_left_where_they_are() {
    let mut manager = Manager::new(&[]);
    let (path, admin) = (manager.socket(), manager.dir().join("fdbroker-admin/admin.sock"));
    let sockets = [("client", bound(&path)), ("admin", bound(&admin))];
    // Before anybody serves it.
    let early = crate::support::raw::open(&path).expect("connect");
    manager.start(&sockets);
    let mut raw = Raw::of(early);
    raw.request(
        fdbroker_protocol::Kind::Hello,
        |writer| writer.push(&crate::support::raw::hello()),
        0,
        &[],
    );
    crate::support::admin::Admin::connect(&admin).status();
    manager.end(Signal::SIGTERM);
    assert!(path.exists() && admin.exists());
    manager.start(&sockets);
    crate::support::admin::Admin::connect(&admin).status();
    Raw::connect(&path);
}

#[test]
fn manager_when_it_watches_then_it_is_told_that_the_loop_turns_and_of_a_reload() {
    let mut manager = Manager::new(&[]);
    manager.set("WATCHDOG_USEC", "40000");
    manager.start(&[]);
    eventually("the loop says so by itself", || manager.count("WATCHDOG=1") >= 5);
    manager.signal(Signal::SIGHUP);
    eventually("ready again", || manager.count("READY=1") == 2);
    let said: Vec<String> =
        manager.said().into_iter().filter(|line| !line.starts_with("WATCHDOG")).collect();
    let at = said.iter().position(|line| line == "RELOADING=1").expect("it says so");
    assert!(said[at + 1].starts_with("MONOTONIC_USEC="), "{said:?}");
    assert_eq!(said[at + 2], "READY=1");
    manager.end(Signal::SIGTERM);
    assert_eq!(manager.count("STOPPING=1"), 1);
}

#[test]
fn manager_when_it_has_no_room_at_a_reload_then_it_is_told_once_it_has() {
    let mut manager = Manager::new(&[]);
    manager.start(&[]);
    let pid = manager.pid();
    manager.while_stuck(|manager| {
        nix::sys::signal::kill(pid, Signal::SIGHUP).expect("kill");
        eventually("it reads its configuration", || manager.log().contains("SIGHUP:"));
        // Its loop turns on.
        Raw::connect(&manager.socket());
    });
    eventually("it hears of the end of the reload", || manager.count("READY=1") == 2);
    assert_eq!(manager.count("RELOADING=1"), 1);
}
