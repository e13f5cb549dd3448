//! A broker that is killed while its sockets stay open, as they do when a lane of it hangs in the
//! kernel: clients see no end of their connections, and know by the liveness word of the page
//! alone. And brokers that are only away for a moment. Must never pass because a socket has ended
//! after all.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup, until_gone};
use crate::support::fuse::HungFile;
use crate::support::fuse_server::why_not;
use crate::support::memory::assert_bytes;
use crate::support::owner::{Notices, Owner, notices};
use crate::support::rank::dispatching_rank;
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Client, Deadline, Error, Notice, ObjectOptions};
use fdbroker_protocol::ErrorCode;
use nix::sys::socket::sockopt::AcceptConn;
use nix::sys::socket::{UnixAddr, getsockname, getsockopt};
use nix::unistd::Pid;
use std::fs::DirEntry;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

const OWNERS: usize = 7;
const HANDLES_EACH: usize = 64;

/// Ten times what a client takes to move over to another broker.
const MOVE_LIMIT: Duration = Duration::from_secs(30);

/// The deadline of what waits.
fn soon() -> Deadline {
    Deadline::after(MOVE_LIMIT)
}

/// Duplicates of all fds of a process, as a hung thread of it keeps them: connections, listeners,
/// the lock of the directory. They stay open when it is killed.
fn fds_of(pid: Pid, sockets_alone: bool) -> Vec<OwnedFd> {
    // SAFETY: takes numbers only; the result is a new fd or an error.
    let pidfd = made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) });
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").flatten();
    let is_wanted = |entry: &DirEntry| {
        let link = std::fs::read_link(entry.path());
        !sockets_alone || link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    let numbers = entries.filter(is_wanted).map(|entry| entry.file_name());
    let numbers = numbers.filter_map(|name| name.to_str()?.parse::<RawFd>().ok());
    // SAFETY: as above.
    let get = |number: RawFd| unsafe {
        libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0)
    };
    // It may have closed one meanwhile.
    numbers.map(get).filter(|result| *result >= 0).map(made).collect()
}

fn made(result: libc::c_long) -> OwnedFd {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the system call before has just made it.
    unsafe { OwnedFd::from_raw_fd(RawFd::try_from(result).expect("an fd number")) }
}

/// Repeats a call for as long as there is no broker, as a rank does.
fn once_connected<T>(mut call: impl FnMut() -> Result<T, Error>) -> T {
    let began = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
                assert!(began.elapsed() < MOVE_LIMIT, "it does not move over: {error}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn until_lost(told: &Notices) {
    told.until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
}

fn until_back(told: &Notices) {
    told.until("reconnected", |notice| match notice {
        Notice::RegistrationLost { id, code, .. } => panic!("lost: {id} ({code})"),
        Notice::Reconnected { .. } => Some(()),
        _ => None,
    });
}

/// Owners, a waiter and a watch, over a broker that `kill` kills so that its sockets stay open. The
/// next one is started at once, or when all have found out and ask the dead one's listener.
fn all_go_on_after<T>(
    broker: &mut Broker,
    is_late: bool,
    kill: impl FnOnce(&mut Broker) -> T,
) -> T {
    let owners: Vec<Owner> =
        (0..OWNERS).map(|_| Owner::of(broker, "owner", HANDLES_EACH)).collect();
    let consumer = broker.client("consumer");
    let imports: Vec<_> = (owners[0].handles().iter().zip(0..))
        .map(|(handle, seed)| {
            assert_bytes(consumer.acquire(handle, patience()).expect("held"), seed)
        })
        .collect();
    // They have nothing at the broker, and wait.
    let (waiter, watcher) = (broker.client("waiter"), broker.client("watcher"));
    let watch = watcher.objects().watch("late", patience()).expect("watched");
    let mut rank = dispatching_rank(&broker.socket());
    let of_rank = rank.share(4, 0);
    let dead = std::thread::scope(|scope| {
        let got = scope.spawn(|| once_connected(|| waiter.objects().get("late", soon())));
        let seen = scope.spawn(|| once_connected(|| watch.next(soon())));
        eventually("it waits", || broker.status().uses.parked_requests.now.get() >= 1);
        let dead = kill(broker);
        if is_late {
            owners.iter().for_each(|owner| until_lost(&owner.notices));
        }
        broker.restart();
        let began = Instant::now();
        if !is_late {
            owners.iter().for_each(|owner| until_lost(&owner.notices));
        }
        owners.iter().for_each(|owner| until_back(&owner.notices));
        assert!(began.elapsed() < MOVE_LIMIT, "{:?}", began.elapsed());
        let put = || consumer.objects().put("late", b"here", ObjectOptions::default(), patience());
        once_connected(put);
        assert_eq!(got.join().expect("no panic").len(), 4);
        seen.join().expect("no panic").expect("an event");
        dead
    });
    for owner in &owners {
        for (handle, seed) in owner.handles().iter().zip(0..) {
            let grant = consumer.acquire(handle, patience()).expect("no handle is lost");
            drop(assert_bytes(grant, seed));
        }
    }
    assert!(imports.iter().all(|import| import.is_current()), "a lease is lost");
    // It serves in its calls alone.
    eventually("the rank has moved over", || {
        match rank.with_handles("check 0", &of_rank).as_str() {
            "OK" => true,
            answer => {
                assert_eq!(answer, "NOT_CONNECTED");
                false
            }
        }
    });
    dead
}

/// As long as a handle may be nobody's: one that is not named by then is lost.
fn grace() -> Setup {
    Setup::new().config("[limits]\ngrace_ms = 20000")
}

#[test]
fn handles_when_a_killed_brokers_sockets_stay_open_then_none_is_lost_and_waiters_move_over() {
    let mut broker = grace().start();
    let killed = all_go_on_after(&mut broker, false, |broker| {
        // Not reaped, it counts as one that hangs.
        (fds_of(broker.pid(), false), broker.kill_unreaped())
    });
    assert!(killed.0.len() > OWNERS);
}

#[test]
fn handles_when_clients_ask_a_dead_listener_then_they_find_the_next_broker_and_none_is_lost() {
    let mut broker = grace().start();
    let killed = all_go_on_after(&mut broker, true, |broker| {
        // Not reaped, it counts as one that hangs.
        (fds_of(broker.pid(), false), broker.kill_unreaped())
    });
    assert!(killed.0.len() > OWNERS);
}

#[test]
fn handles_when_a_broker_has_left_and_its_sockets_stay_open_then_the_next_one_is_asked_and_none_is_lost()
 {
    let mut broker = grace().start();
    let kept_open = all_go_on_after(&mut broker, false, |broker| {
        // Without its lock: it has ended, and somebody has its connections.
        let fds = fds_of(broker.pid(), true);
        broker.terminate();
        fds
    });
    assert!(kept_open.len() > OWNERS);
}

/// Kills a broker, which is reaped: of what it had open, the socket that listens at `path` stays.
fn kill_but_listener(broker: &mut Broker, path: &Path) -> Vec<OwnedFd> {
    let mut held = fds_of(broker.pid(), true);
    held.retain(|fd| {
        let is_there = getsockname::<UnixAddr>(fd.as_raw_fd())
            .is_ok_and(|address| address.path() == Some(path));
        is_there && getsockopt(fd, AcceptConn) == Ok(true)
    });
    assert_eq!(held.len(), 1, "it listens at {}", path.display());
    broker.kill();
    held
}

#[test]
fn handles_when_somebody_holds_a_killed_brokers_listener_for_clients_then_the_next_one_serves_and_none_is_lost()
 {
    let mut broker = grace().start();
    let path = broker.socket();
    all_go_on_after(&mut broker, false, |broker| kill_but_listener(broker, &path));
}

#[test]
fn handles_when_somebody_holds_a_killed_brokers_admin_listener_then_the_next_one_serves_and_none_is_lost()
 {
    let mut broker = grace().start();
    let path = broker.admin_socket();
    all_go_on_after(&mut broker, false, |broker| kill_but_listener(broker, &path));
}

#[test]
fn handles_when_somebody_holds_a_listener_that_was_taken_over_then_the_next_one_serves_and_none_is_lost()
 {
    let mut broker = grace().start();
    broker.take_over();
    for path in [broker.socket(), broker.admin_socket()] {
        all_go_on_after(&mut broker, false, |broker| kill_but_listener(broker, &path));
    }
}

#[test]
fn handles_when_somebody_holds_all_fds_of_a_broker_that_is_reaped_then_the_next_one_serves_and_none_is_lost()
 {
    let mut broker = grace().start();
    let held = all_go_on_after(&mut broker, false, |broker| {
        let held = fds_of(broker.pid(), false);
        broker.kill();
        held
    });
    assert!(held.len() > OWNERS);
}

#[test]
fn handles_when_a_killed_broker_hangs_in_a_close_then_none_is_lost_and_waiters_move_over() {
    const NAME: &str = "handles_when_a_killed_broker_hangs_in_a_close_then_none_is_lost";
    if let Some(reason) = why_not() {
        return not_run(NAME, reason);
    }
    let mut broker = grace().start();
    let mut hung = HungFile::new(broker.dir(), &broker.socket());
    let answer = hung.deposit();
    assert!(answer.contains("UNSUPPORTED_FD"), "{answer}");
    let lane = all_go_on_after(&mut broker, false, Broker::kill_hung);
    hung.server.kill();
    until_gone(lane);
}

#[test]
fn calls_when_the_broker_is_stopped_under_load_then_they_go_on_after_and_nobody_reconnects() {
    let broker = grace().start();
    let owner = Owner::of(&broker, "owner", HANDLES_EACH);
    let clients: Vec<(Client, Notices)> = (0..4)
        .map(|_| {
            let (told, on_notice) = notices();
            (broker.builder("client").on_notice(on_notice).connect().expect("connect"), told)
        })
        .collect();
    let handles = owner.handles();
    std::thread::scope(|scope| {
        let until = Instant::now() + STOPPED + STOPPED / 5;
        for (client, _) in &clients {
            let handles = &handles;
            scope.spawn(move || {
                while Instant::now() < until {
                    for (handle, seed) in handles.iter().zip(0..) {
                        drop(assert_bytes(
                            client.acquire(handle, patience()).expect("served"),
                            seed,
                        ));
                    }
                }
            });
        }
        broker.stop();
        // Longer than any look at the liveness word takes, and than an answer may.
        std::thread::sleep(STOPPED);
        broker.go_on();
    });
    owner.notices.assert_never_disconnected();
    clients.iter().for_each(|(_, told)| told.assert_never_disconnected());
}

#[test]
fn connect_when_the_broker_is_stopped_then_it_ends_at_its_deadline_and_says_why() {
    let broker = Broker::start();
    broker.stop();
    let began = Instant::now();
    let late = broker.builder("late").connect_within(Deadline::from_ms(100));
    let took = began.elapsed();
    broker.go_on();
    let error = late.expect_err("it is stopped");
    assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    let text = error.to_string();
    assert!(text.contains("does not answer") && text.contains("it is stopped"), "{text}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    broker.client("later");
}

/// For how long the issue has it stopped.
const STOPPED: Duration = Duration::from_secs(10);
