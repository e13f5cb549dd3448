//! The library with a real broker, where the protocol by hand would prove nothing: its own mappings
//! and fds, its checks before it sends, and groups that come in several messages.

use crate::support::broker::Broker;
use crate::support::peer::Link;
use crate::support::wait::{eventually, patience, soon};
use fdbroker_client::{
    Client, Deadline, ErrorCode, NewObject, ObjectOptions, Objects, Place, PutObject,
};
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES, NAME_OF_OBJECT_BYTES};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::time::Duration;

fn objects(broker: &Broker) -> (Client, Objects) {
    let client = broker.client("objects");
    let objects = client.objects();
    (client, objects)
}

fn kept() -> ObjectOptions {
    ObjectOptions { keep: Some(Duration::ZERO), ..ObjectOptions::default() }
}

#[test]
fn group_when_as_large_as_may_be_then_all_of_it_is_got_with_its_metadata() {
    let broker = Broker::start();
    let (client, objects) = objects(&broker);
    let names: Vec<String> = (0..MAX_GROUP)
        .map(|at| format!("{at:03}{}", "n".repeat(NAME_OF_OBJECT_BYTES - 3)))
        .collect();
    let bytes: Vec<Vec<u8>> = (0..MAX_GROUP).map(|at| vec![at as u8; 100]).collect();
    let metadata: Vec<Vec<u8>> = (0..MAX_GROUP).map(|at| vec![at as u8; METADATA_BYTES]).collect();
    let put =
        |at: usize| PutObject { metadata: &metadata[at], ..PutObject::new(&names[at], &bytes[at]) };
    let group: Vec<PutObject<'_>> = (0..MAX_GROUP).map(put).collect();
    let version = objects.put_group(&group, kept(), patience()).expect("made");
    for first in (0..MAX_GROUP).step_by(100) {
        let part = &names[first..MAX_GROUP.min(first + 100)];
        for (object, at) in objects.get_many(part, patience()).expect("sealed").iter().zip(first..)
        {
            assert_eq!((object.name(), object.version()), (names[at].as_str(), version));
            assert_eq!(object.bytes().expect("host memory"), bytes[at]);
            assert_eq!(object.metadata(), metadata[at]);
        }
    }
    let one_more = [&group[..], &[PutObject::new("more", b"x")]].concat();
    let error = objects.put_group(&one_more, kept(), patience()).expect_err("254");
    assert_eq!(error.code, ErrorCode::TooLong, "{error}");
    let doomed: Vec<_> = names.iter().map(|name| (name.as_str(), Some(version))).collect();
    let outcomes = objects.delete_many(&doomed, patience()).expect("deleted");
    assert!(outcomes.iter().all(Result::is_ok));
    drop((objects, client));
    broker.assert_nothing_left();
}

#[test]
fn name_or_metadata_when_it_cannot_be_then_refused_before_anything_is_sent() {
    let broker = Broker::start();
    let (client, objects) = objects(&broker);
    let long = "x".repeat(NAME_OF_OBJECT_BYTES + 1);
    for name in ["", "a\0b", &long] {
        let codes = [
            objects.put(name, b"x", ObjectOptions::default(), soon()).expect_err("no name").code,
            objects.get(name, soon()).expect_err("no name").code,
            objects.delete(name, None, soon()).expect_err("no name").code,
            objects.stat(name, soon()).expect_err("no name").code,
        ];
        let possible = [ErrorCode::TooLong, ErrorCode::BadHandle];
        assert!(codes.iter().all(|code| possible.contains(code)), "{name:?}: {codes:?}");
    }
    let metadata = vec![0; METADATA_BYTES + 1];
    let new = NewObject { metadata: &metadata, ..NewObject::new("a", 1) };
    let error = objects.create(&[new], Place::Host, ObjectOptions::default(), soon());
    assert_eq!(error.expect_err("too much").code, ErrorCode::TooLong);
    // The connection is as good as before.
    objects.put("a", b"x", ObjectOptions::default(), patience()).expect("made");
    drop((objects, client));
    broker.assert_nothing_left();
}

#[test]
fn name_when_twice_in_one_call_then_a_typed_error_where_it_is_made_and_elsewhere_each_is_got() {
    let broker = Broker::start();
    let (client, objects) = objects(&broker);
    let twice = [PutObject::new("a", b"1"), PutObject::new("a", b"2")];
    let error = objects.put_group(&twice, kept(), patience()).expect_err("which of them is a?");
    assert_eq!(error.code, ErrorCode::BadHandle, "{error}");
    let version = objects.put("a", b"text", kept(), patience()).expect("none is left of those");
    let both = objects.get_many(&["a", "a"], patience()).expect("sealed");
    assert_eq!(both.len(), 2);
    for object in &both {
        assert_eq!((object.version(), object.bytes()), (version, Ok(&b"text"[..])));
    }
    drop(both);
    objects.delete("a", None, patience()).expect("deleted");
    drop((objects, client));
    broker.assert_nothing_left();
}

#[test]
fn create_when_of_a_job_and_kept_then_not_supported() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker);
    let error = objects.of_job().put("a", b"x", kept(), soon()).expect_err("it ends with the job");
    assert_eq!(error.code, ErrorCode::NotSupported, "{error}");
}

// Fds leaked into children (ray 52622).
#[test]
fn fds_when_objects_are_made_and_read_then_no_child_has_any_of_them() {
    let broker = Broker::start();
    let mut child = crate::support::peer::Peer::start("children");
    child.link.say(&broker.socket().display().to_string());
    assert_eq!(child.hear(), "0 1 2", "what a child has open");
}

/// Makes and reads objects, and says which fds a child that it starts has open.
pub fn play_children(mut link: Link) {
    let socket = link.hear().expect("a socket");
    let client = Client::builder().socket(socket).connect().expect("connect");
    let objects = client.objects();
    objects.put("a", b"x", kept(), patience()).expect("made");
    let half = objects.create(&[NewObject::new("b", 9)], Place::Host, kept(), patience());
    let read = objects.get("a", patience()).expect("sealed");
    let cached = objects.get_cached("a", patience()).expect("sealed");
    let watch = objects.watch("", patience()).expect("watched");
    // The shell's own `echo *` opens the folder, but not in its own name: of the numbers that it
    // lists that one is gone.
    let listed = Command::new("sh").args(["-c", "cd /proc/self/fd && echo *"]).output();
    let listed = String::from_utf8(listed.expect("a shell").stdout).expect("text");
    let is_open = |fd: &&str| fd.parse::<u32>().is_ok_and(|fd| fd <= 2 || is_inherited(fd));
    let open: Vec<&str> = listed.split_whitespace().filter(is_open).collect();
    drop((half, read, cached, watch));
    link.say(&open.join(" "));
}

/// Whether a child would have this fd of this process.
fn is_inherited(fd: u32) -> bool {
    // SAFETY: only asked for its flags; a number that is not open is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.cast_signed()) };
    let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD);
    flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

#[test]
fn object_when_deleted_and_replaced_while_it_is_mapped_then_its_bytes_stay() {
    let broker = Broker::start();
    let (maker, made) = objects(&broker);
    let (reader, read) = objects(&broker);
    made.put("a", &[1; 100_000], kept(), patience()).expect("made");
    let first = read.get("a", patience()).expect("sealed");
    let cached = read.get_cached("a", patience()).expect("sealed");
    let replace = ObjectOptions { replace: true, ..kept() };
    let version = made.put("a", &[2; 100_000], replace, patience()).expect("replaced");
    assert!(!cached.is_current());
    let second = read.get_cached("a", patience()).expect("sealed");
    assert_eq!(second.version(), version, "never an old version from the cache");
    made.delete("a", None, patience()).expect("deleted");
    let at_once = Deadline::from_ms(0);
    assert_eq!(read.get_cached("a", at_once).expect_err("gone").code, ErrorCode::NotFound);
    assert!(first.bytes().expect("mapped").iter().all(|byte| *byte == 1));
    assert!(cached.bytes().expect("mapped").iter().all(|byte| *byte == 1));
    assert!(second.bytes().expect("mapped").iter().all(|byte| *byte == 2));
    drop((first, cached, second));
    read.empty();
    eventually("nothing is held", || broker.status().uses.held_bytes.now.get() == 0);
    drop((made, read, maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn group_when_dropped_then_its_names_are_free_at_once() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker);
    for _ in 0..50 {
        let new = [NewObject::new("a", 100)];
        let mut group =
            objects.create(&new, Place::Host, ObjectOptions::default(), patience()).expect("begun");
        group.write_at(0, 0, b"half").expect("in bounds");
        drop(group);
    }
    assert_eq!(objects.stat("a", soon()).expect_err("none").code, ErrorCode::NotFound);
    objects.put("a", b"", ObjectOptions::default(), patience()).expect("an empty one");
    assert!(objects.get("a", patience()).expect("sealed").is_empty());
}
