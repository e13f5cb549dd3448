//! The places of the broker's sockets: whoever may write into a directory of one removes it,
//! replaces it, closes it, or floods the directory with files. The same socket is to stand there
//! again, clients go on, and the broker says what was done.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common::not_run;
use crate::fd_store::bound;
use crate::support::broker::{Broker, Setup, admin_socket};
use crate::support::manager::Manager;
use crate::support::owner::Owner;
use crate::support::raw::Raw;
use crate::support::wait::{eventually, eventually_some, patience};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

/// The further links of sockets in the administrator's directory.
fn links(broker: &Broker) -> Vec<PathBuf> {
    let directory = admin_socket(broker.dir()).parent().expect("a directory").to_owned();
    let all =
        std::fs::read_dir(directory).expect("ours").map(|entry| entry.expect("an entry").path());
    let is_link =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("socket-");
    all.filter(is_link).collect()
}

fn mended(broker: &Broker) -> u64 {
    broker.admin().metrics().journal.sockets_mended.get()
}

/// The broker of a node. That of one user has its directories for itself.
fn node() -> Broker {
    Setup::new().listeners(&["fdbroker"]).start()
}

/// The minute of the broker's clock.
fn minute() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().tv_sec() / 60
}

/// Minutes from that one on: the broker writes the same line once in each.
fn minutes_since(first: i64) -> usize {
    usize::try_from(minute() - first + 1).unwrap()
}

/// What somebody does to a socket, by its name.
type Deed = (&'static str, fn(&Path));

/// What others do to a socket.
const DEEDS: [Deed; 8] = [
    ("removed", |path| std::fs::remove_file(path).unwrap()),
    ("moved away", |path| std::fs::rename(path, path.with_extension("moved")).unwrap()),
    ("replaced by a file", |path| {
        let other = path.with_extension("other");
        std::fs::write(&other, "mine").unwrap();
        std::fs::rename(other, path).unwrap();
    }),
    ("replaced by a directory that is full", |path| {
        std::fs::remove_file(path).unwrap();
        std::fs::create_dir(path).unwrap();
        (0..100).for_each(|number| drop(File::create(path.join(number.to_string())).unwrap()));
    }),
    ("replaced by a link", |path| {
        std::fs::remove_file(path).unwrap();
        symlink("/dev/null", path).unwrap();
    }),
    ("replaced by another server", |path| {
        std::fs::remove_file(path).unwrap();
        // It ends with the test.
        std::mem::forget(UnixListener::bind(path).unwrap());
    }),
    ("closed", |path| std::fs::set_permissions(path, Permissions::from_mode(0o0)).unwrap()),
    ("closed with its directory", |path| {
        std::fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o100)).unwrap();
    }),
];

#[test]
fn socket_when_removed_replaced_or_closed_then_the_same_one_stands_there_again_and_it_is_said() {
    let broker = node();
    let first = minute();
    let owner = Owner::of(&broker, "owner", 1);
    let (path, before) = (broker.socket(), std::fs::symlink_metadata(broker.socket()).unwrap());
    for (number, (name, deed)) in DEEDS.iter().enumerate() {
        deed(&path);
        eventually(name, || mended(&broker) > number as u64 && inode(&path) == Some(before.ino()));
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode(), before.mode(), "{name}");
        let client = broker.client(name);
        let _ = client.acquire(&owner.handles()[0], patience()).expect(name);
    }
    let log = broker.log();
    let said =
        log.lines().filter(|line| line.contains("broker.sock") && line.contains("as it was again"));
    assert!((1..=minutes_since(first)).contains(&said.count()), "the others are counted: {log}");
    let status = broker.status();
    assert_eq!((status.gauges.sockets_away.get(), status.gauges.sockets_unkept.get()), (0, 0));
}

#[test]
fn socket_when_its_directory_is_moved_away_then_there_is_one_with_the_same_socket_again() {
    let broker = node();
    let (path, before) = (broker.socket(), inode(&broker.socket()));
    let directory = path.parent().unwrap();
    std::fs::rename(directory, directory.with_extension("moved")).unwrap();
    eventually("it stands there again", || inode(&path) == before);
    broker.client("another");
}

#[test]
fn socket_when_something_is_done_to_it_again_and_again_then_it_is_put_back_less_and_less_often() {
    let broker = node();
    let first = minute();
    let (path, before) = (broker.socket(), inode(&broker.socket()));
    for count in 1..=4 {
        std::fs::remove_file(&path).unwrap();
        eventually("put back", || inode(&path) == before && mended(&broker) == count);
    }
    let lines = broker.log().matches("was removed").count();
    assert!((1..=minutes_since(first)).contains(&lines));
}

#[test]
fn directory_when_flooded_with_files_then_clients_are_served_and_the_socket_is_still_put_back() {
    let broker = node();
    let (path, before) = (broker.socket(), inode(&broker.socket()));
    let directory = path.parent().unwrap().to_owned();
    let (ended, is_ended) = std::sync::mpsc::channel::<()>();
    let flood = std::thread::spawn(move || {
        let mut count = 0_u64;
        while is_ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let file = directory.join(format!("flood-{}", count % 64));
            let _ = File::create(&file).and_then(|_| std::fs::remove_file(&file));
            count += 1;
        }
        count
    });
    let owner = Owner::of(&broker, "owner", 1);
    for _ in 0..3 {
        std::fs::remove_file(&path).unwrap();
        eventually("put back", || inode(&path) == before);
        let _ = broker.client("another").acquire(&owner.handles()[0], patience()).expect("served");
    }
    drop(ended);
    assert!(flood.join().unwrap() > 0);
}

#[test]
fn sockets_when_there_are_two_listeners_then_each_is_put_back_at_its_own_path() {
    let broker = Setup::new().listeners(&["a", "b"]).start();
    let paths = ["a", "b"].map(|name| broker.dir().join(name).join("broker.sock"));
    let before = [inode(&paths[0]), inode(&paths[1])];
    assert_ne!(before[0], before[1]);
    let [a, b] = &paths;
    std::fs::rename(a, a.with_extension("x")).unwrap();
    std::fs::rename(b, a).unwrap();
    std::fs::rename(a.with_extension("x"), b).unwrap();
    eventually("each is at its own", || [inode(a), inode(b)] == before);
}

#[test]
fn links_when_the_broker_ends_is_killed_or_is_taken_over_from_then_there_is_one_for_each_socket() {
    let mut broker = node();
    let links_at_start = links(&broker);
    assert!(!links_at_start.is_empty());
    broker.take_over();
    assert_eq!(links(&broker), links_at_start);
    std::fs::remove_file(broker.socket()).unwrap();
    eventually("put back by the second one", || broker.socket().exists());
    broker.kill();
    // Of another configuration.
    std::fs::write(links_at_start[0].with_file_name("socket-0123456789abcdef"), "").unwrap();
    broker.restart();
    eventually("what is left over is gone", || links(&broker).len() == links_at_start.len());
    broker.client("another");
    broker.terminate();
    assert_eq!(links(&broker), Vec::<PathBuf>::new());
    assert!(!broker.socket().exists());
    broker.restart();
    assert_eq!(links(&broker).len(), links_at_start.len());
}

#[test]
fn start_when_somebody_has_taken_the_place_of_a_killed_brokers_socket_then_served_there() {
    for (name, deed) in DEEDS.iter().filter(|(name, _)| name.starts_with("replaced")) {
        let mut broker = node();
        broker.kill();
        deed(&broker.socket());
        broker.restart();
        broker.client(name);
    }
}

#[test]
fn socket_when_the_directories_are_on_two_file_systems_then_status_says_that_it_cannot_be_put_back()
{
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let broker = {
        let path = other.path().join("clients/broker.sock");
        let lines = format!("[[listener]]\npath = {path:?}\n");
        Setup::new().config(&lines).listeners(&["a"]).start()
    };
    let path = other.path().join("clients/broker.sock");
    let status = broker.status();
    assert_eq!(status.gauges.sockets_unkept.get() > 0, is_elsewhere(&path, broker.dir()));
    if !is_elsewhere(&path, broker.dir()) {
        return not_run("sockets_unkept", "/dev/shm is where temporary files are");
    }
    assert_eq!(status.unkept_errno.get(), nix::errno::Errno::EXDEV as u32);
    std::fs::remove_file(&path).unwrap();
    let away = || Some(broker.status().gauges.sockets_away.get()).filter(|away| *away > 0);
    assert_eq!(eventually_some("it is said", away), 1);
    eventually("and in the log", || broker.log().contains("cannot be put back"));
    assert!(broker.log().contains(path.to_str().unwrap()));
    assert!(!std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket()));
}

fn is_elsewhere(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
    device(one.parent().unwrap()) != device(other)
}

#[test]
fn socket_of_the_service_manager_when_taken_while_a_broker_runs_or_none_does_then_put_back() {
    let mut manager = Manager::new(&[]);
    let (path, admin) = (manager.socket(), admin_socket(manager.dir()));
    manager.serve_all_users();
    let sockets = [("client", bound(&path)), ("admin", bound(&admin))];
    let before = inode(&path);
    for (name, deed) in &DEEDS[..6] {
        manager.start(&sockets);
        eventually(name, || inode(&path) == before);
        Raw::connect(&path);
        std::fs::remove_file(&path).unwrap();
        eventually("put back", || inode(&path) == before);
        manager.end(Signal::SIGTERM);
        assert_eq!(inode(&path), before, "it is the manager's");
        // The next broker finds that.
        deed(&path);
    }
}
