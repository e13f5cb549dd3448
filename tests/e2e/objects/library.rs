//! Named objects through the library, with the real daemon: made, got without a copy, kept by their
//! readers, and what is left when makers, readers and brokers end.

use crate::support::broker::Broker;
use crate::support::peer::{Link, Peer};
use crate::support::wait::{eventually, patience, soon};
use fdbroker_client::{
    Client, Deadline, Error, ErrorCode, GetProgress, Group, NewObject, Object, ObjectOptions,
    ObjectState, Objects, Place, PutObject, SealError,
};
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES, NAME_OF_OBJECT_BYTES};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

fn plain() -> ObjectOptions {
    ObjectOptions::default()
}

fn replace() -> ObjectOptions {
    plain().replace(true)
}

fn kept() -> ObjectOptions {
    plain().keep(Duration::ZERO)
}

fn objects(broker: &Broker, name: &str) -> (Client, Objects) {
    let client = broker.client(name);
    let objects = client.objects();
    (client, objects)
}

fn put(objects: &Objects, name: &str, bytes: &[u8]) -> u64 {
    objects.put(name, bytes, plain(), patience()).expect("it is put")
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorCode {
    outcome.expect_err("it is refused").code
}

fn group(objects: &Objects, new: &[NewObject<'_>]) -> Group {
    objects.create(new, Place::Host, plain(), patience()).expect("a group")
}

fn bytes(object: &Object) -> Vec<u8> {
    object.bytes().expect("host memory").to_vec()
}

/// The mappings of object memory in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().filter(|line| line.contains("fdbroker-objects")).count()
}

#[test]
fn put_when_got_by_another_client_then_the_bytes_are_there_without_a_copy_and_without_an_fd() {
    let broker = Broker::start();
    let (_maker, made) = objects(&broker, "maker");
    let (_reader, got) = objects(&broker, "reader");
    let version = put(&made, "a/b", b"hello");
    let object = got.get("a/b", patience()).expect("it is sealed");
    assert_eq!((object.name(), object.version(), object.len()), ("a/b", version, 5));
    assert_eq!(object.bytes().expect("host memory"), b"hello");
    assert!(object.is_current());
    eventually("the lease is reported as mapped", || {
        let uses = broker.status().uses;
        (uses.open_leases.now.get(), uses.mapped_leases.now.get()) == (0, 1)
    });
    drop(object);
    eventually("the lease is given back", || broker.status().uses.mapped_leases.now.get() == 0);
}

#[test]
fn seal_when_a_group_is_written_then_all_appear_at_once_with_one_version_and_share_one_mapping() {
    let broker = Broker::start();
    let (_maker, made) = objects(&broker, "maker");
    let (_reader, got) = objects(&broker, "reader");
    let new = |name, size| NewObject::new(name, size).metadata(b"meta");
    let mut group = group(&made, &[new("w/0", 3), new("w/1", 0), new("w/2", 100_000)]);
    group.bytes_mut(0).expect("host memory").copy_from_slice(b"abc");
    group.write_at(2, 99_999, b"z").expect("inside");
    assert_eq!(code(group.write_at(2, 99_999, b"zz")), ErrorCode::BadHandle);
    let names = ["w/0", "w/1", "w/2", "w/0"];
    assert_eq!(code(got.get("w/1", Deadline::from_ms(0))), ErrorCode::NotSealed);
    assert_eq!(got.stat("w/2", patience()).expect("known").state, ObjectState::Making);
    let before = mappings();
    let version = group.seal(patience()).expect("nothing has it mapped");
    assert_eq!(mappings(), before - 1, "the maker's is gone");
    let all = got.get_many(&names, patience()).expect("all are sealed");
    assert_eq!(mappings(), before, "one for all");
    assert!(all.iter().all(|one| one.version() == version && one.metadata() == b"meta"));
    assert_eq!(bytes(&all[0]), b"abc");
    assert!(all[1].is_empty());
    let (first, last) = (bytes(&all[2])[0], bytes(&all[2])[99_999]);
    assert_eq!((first, last), (0, b'z'));
    assert_eq!(bytes(&all[3]), b"abc");
    drop(all);
    assert_eq!(mappings(), before - 1);
}

#[test]
fn group_when_it_is_to_be_kept_and_nobody_stores_the_brokers_fds_then_it_says_that_it_ends_with_the_broker()
 {
    let broker = Broker::start();
    let (_maker, made) = objects(&broker, "maker");
    let pin = plain().pin(true);
    for (name, options, ends) in
        [("plain", plain(), false), ("kept", kept(), true), ("pin", pin, true)]
    {
        let new = [NewObject::new(name, 1)];
        let group = made.create(&new, Place::Host, options, patience()).expect("begun");
        assert_eq!(group.ends_with_broker(), ends, "{name}");
        group.seal(patience()).expect("nothing has it mapped");
        assert_eq!(made.stat(name, patience()).expect("known").ends_with_broker, ends, "{name}");
    }
}

#[test]
fn put_many_when_more_than_a_group_then_all_are_there_and_few_fds_are_held() {
    let broker = Broker::start();
    let (_maker, made) = objects(&broker, "maker");
    let names: Vec<String> = (0..600).map(|at| format!("many/{at:04}")).collect();
    let contents: Vec<Vec<u8>> = (0..600_usize).map(|at| vec![at as u8; at % 130]).collect();
    let puts: Vec<PutObject<'_>> =
        names.iter().zip(&contents).map(|(name, bytes)| PutObject::new(name, bytes)).collect();
    let versions = made.put_many(&puts, plain(), patience()).expect("they are put");
    assert_eq!(versions.len(), 600);
    assert_eq!(broker.status().uses.held_fds.now.get(), 3, "one for each group");
    let listed: Vec<_> = made.list("many/", patience()).map(|one| one.expect("a record")).collect();
    assert_eq!(listed.len(), 600);
    assert!(listed.iter().zip(&names).all(|(info, name)| info.name == *name));
    for (at, name) in names.iter().enumerate().step_by(37) {
        let object = made.get(name, patience()).expect("it is there");
        assert_eq!((bytes(&object), object.version()), (contents[at].clone(), versions[at]));
    }
}

#[test]
fn get_when_the_metadata_is_long_then_all_of_it_comes_blocking_and_not() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    let names: Vec<String> = (0..20).map(|at| format!("long/{at}")).collect();
    let metadata: Vec<Vec<u8>> = (0..20_u8).map(|at| vec![at; 4096]).collect();
    let puts: Vec<PutObject<'_>> = names
        .iter()
        .zip(&metadata)
        .map(|(name, metadata)| PutObject::new(name, b"x").metadata(metadata))
        .collect();
    objects.put_group(&puts, plain(), patience()).expect("it is put");
    let all = objects.get_many(&names, patience()).expect("they are there");
    assert!(all.iter().zip(&metadata).all(|(object, expected)| object.metadata() == expected));
    let mut request = objects.get_start(&names, patience()).expect("it starts");
    let all = loop {
        match request.test() {
            GetProgress::UnderWay(under_way) => request = under_way,
            GetProgress::Done(outcome) => break outcome.expect("they are there"),
        }
        thread::yield_now();
    };
    assert!(all.iter().zip(&metadata).all(|(object, expected)| object.metadata() == expected));
    assert_eq!(objects.stat(&names[3], patience()).expect("known").metadata, metadata[3]);
}

#[test]
fn get_when_it_is_not_there_yet_then_waits_for_it_and_says_in_vain_for_what() {
    let broker = Broker::start();
    let (_maker, made) = objects(&broker, "maker");
    let (_reader, got) = objects(&broker, "reader");
    let unknown = got.get("later", Deadline::from_ms(0));
    assert_eq!(code(unknown), ErrorCode::NotFound);
    let error = got.get("later", soon()).expect_err("nobody makes it");
    assert_eq!(error.code, ErrorCode::TimedOut);
    assert!(error.to_string().contains("no object has this name"), "{error}");
    let group = group(&made, &[NewObject::new("later", 4)]);
    let error = got.get("later", soon()).expect_err("it is in the making");
    let maker = format!("pid {} is still making it", std::process::id());
    assert!(error.code == ErrorCode::TimedOut && error.to_string().contains(&maker), "{error}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| got.get("later", patience()));
        group.seal(patience()).expect("it is sealed");
        assert_eq!(waiting.join().expect("no panic").expect("it came").len(), 4);
    });
}

#[test]
fn cancel_when_a_get_waits_then_nothing_of_it_is_left_and_the_client_goes_on() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    let request = objects.get_start(&["never"], patience()).expect("it starts");
    eventually("it is parked", || broker.status().uses.parked_requests.now.get() == 1);
    request.cancel();
    eventually("it is not", || broker.status().uses.parked_requests.now.get() == 0);
    put(&objects, "never", b"now");
    assert_eq!(bytes(&objects.get("never", patience()).expect("it is there")), b"now");
    assert_eq!(broker.status().uses.open_leases.now.get(), 0);
}

#[test]
fn replace_when_a_reader_holds_the_old_one_then_it_keeps_it_and_the_next_gets_the_new() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    let first = put(&objects, "name", b"old");
    let old = objects.get("name", patience()).expect("it is there");
    assert_eq!(code(objects.put("name", b"new", plain(), patience())), ErrorCode::Exists);
    let second = objects.put("name", b"new", replace(), patience()).expect("it is replaced");
    assert!(second > first);
    assert_eq!((bytes(&old), old.version()), (b"old".to_vec(), first));
    let new = objects.get("name", patience()).expect("it is there");
    assert_eq!((bytes(&new), new.version()), (b"new".to_vec(), second));
    // A seal that expects a version is refused when the name has moved.
    let puts = [PutObject::new("name", b"third").expect(first)];
    let error = objects.put_group(&puts, plain(), patience()).expect_err("it has moved");
    let said = error.status.map(|status| status.value);
    assert_eq!((error.code, said), (ErrorCode::Version, Some(second)), "{error}");
    let puts = [puts[0].expect(second)];
    objects.put_group(&puts, plain(), patience()).expect("it has not");
    drop((old, new));
    eventually("the old ones' memory goes", || broker.status().uses.allocations.now.get() == 1);
}

#[test]
fn seal_when_an_expected_version_has_moved_then_sealed_later_and_not_written_any_more() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    let new = [NewObject::new("name", 4).expect(0)];
    let mut group = objects.create(&new, Place::Host, plain(), patience()).expect("a group");
    group.write_at(0, 0, b"mine").expect("host memory");
    objects.put("name", b"theirs", replace(), patience()).expect("it comes first");
    let SealError { error, group, .. } = group.seal(patience()).expect_err("it has moved");
    assert_eq!(error.code, ErrorCode::Version, "{error}");
    let mut group = group.expect("it can be sealed again");
    assert_eq!(code(group.write_at(0, 0, b"more")), ErrorCode::Sealed);
    objects.delete("name", None, patience()).expect("it is there");
    group.seal(patience()).expect("the name is free");
    assert_eq!(bytes(&objects.get("name", patience()).expect("it is there")), b"mine");
}

#[test]
fn drop_when_a_group_is_not_sealed_then_the_name_is_free_and_nothing_is_charged() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    for _ in 0..3 {
        drop(group(&objects, &[NewObject::new("again", 1 << 20)]));
    }
    group(&objects, &[NewObject::new("again", 1)]).abort();
    eventually("nothing is charged", || {
        let uses = broker.status().uses;
        let left = [&uses.object_names, &uses.allocations, &uses.held_bytes, &uses.metadata_bytes];
        left.iter().all(|use_of| use_of.now.get() == 0)
    });
    assert_eq!(code(objects.stat("again", patience())), ErrorCode::NotFound);
}

#[test]
fn delete_when_readers_are_left_then_they_keep_it_and_outcomes_come_one_by_one() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    let version = put(&objects, "a", b"1");
    put(&objects, "b", b"2");
    let held = objects.get("a", patience()).expect("it is there");
    let cached = objects.get_cached("a", patience()).expect("it is there");
    let asked = [("a", Some(version + 9)), ("a", Some(version)), ("none", None), ("b", None)];
    let outcomes = objects.delete_many(&asked, patience()).expect("the broker answers");
    let codes: Vec<_> = outcomes.iter().map(|it| it.as_ref().err().map(|it| it.code)).collect();
    assert_eq!(codes, [Some(ErrorCode::Version), None, Some(ErrorCode::NotFound), None]);
    assert_eq!(code(objects.get("a", Deadline::from_ms(0))), ErrorCode::NotFound);
    assert_eq!(code(objects.get_cached("a", Deadline::from_ms(0))), ErrorCode::NotFound);
    eventually("it is not current", || !held.is_current());
    put(&objects, "a", b"another");
    assert_eq!((bytes(&held), bytes(&cached)), (b"1".to_vec(), b"1".to_vec()));
    objects.delete("a", None, patience()).expect("it is there");
    drop((held, cached));
    objects.empty();
    eventually("its memory is back", || broker.status().uses.allocations.now.get() == 0);
}

#[test]
fn get_cached_when_asked_again_then_no_message_and_never_an_old_version() {
    let broker = Broker::start();
    let (_maker, made) = objects(&broker, "maker");
    let (reader, got) = objects(&broker, "reader");
    put(&made, "alone", b"1");
    made.put_group(
        &[PutObject::new("two/a", b"a"), PutObject::new("two/b", b"b")],
        plain(),
        patience(),
    )
    .expect("it is put");
    for name in ["alone", "two/a"] {
        let first = got.get_cached(name, patience()).expect("it is there");
        let again = got.get_cached(name, patience()).expect("it is there");
        assert_eq!(first.lease().number(), again.lease().number(), "{name}");
    }
    // One that is alone is had while nobody answers.
    broker.stop();
    assert_eq!(bytes(&got.get_cached("alone", Deadline::from_ms(0)).expect("kept")), b"1");
    broker.go_on();
    for name in ["alone", "two/a"] {
        let version = made.put(name, b"new", replace(), patience()).expect("it is replaced");
        eventually("the page says so", || {
            got.get_cached(name, patience()).expect("it is there").version() == version
        });
    }
    assert!(got.empty() > 0);
    reader.flush(patience()).expect("the broker answers");
    eventually("all is given back", || broker.status().uses.mapped_leases.now.get() == 0);
}

#[test]
fn broker_when_it_is_killed_then_objects_stay_readable_and_groups_in_the_making_are_aborted() {
    let mut broker = Broker::start();
    let (client, objects) = objects(&broker, "client");
    put(&objects, "name", b"bytes");
    let held = objects.get("name", patience()).expect("it is there");
    let mut group = group(&objects, &[NewObject::new("unsealed", 4)]);
    broker.kill();
    eventually("the loss is seen", || !client.is_connected());
    assert!(!held.is_current());
    assert_eq!(bytes(&held), b"bytes");
    group.write_at(0, 0, b"more").expect("it is this process's");
    broker.restart();
    eventually("it is connected again", || client.is_connected());
    let SealError { error, group, .. } = group.seal(patience()).expect_err("its broker is gone");
    assert_eq!((error.code, group.is_none()), (ErrorCode::Aborted, true), "{error}");
    assert!(!held.is_current(), "the new broker does not know of it");
    assert_eq!(bytes(&held), b"bytes");
    drop(held);
    put(&objects, "unsealed", b"again");
    assert_eq!(bytes(&objects.get("unsealed", patience()).expect("it is there")), b"again");
}

#[test]
fn fork_when_a_child_uses_what_it_inherits_then_it_reads_sealed_bytes_alone_and_the_parent_is_undisturbed()
 {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    put(&objects, "name", b"bytes");
    let held = objects.get("name", patience()).expect("it is there");
    let mut making = group(&objects, &[NewObject::new("group", 8192)]);
    // SAFETY: the child makes calls that must take no lock, and leaves.
    let child = match unsafe { fork() }.expect("fork") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let refused = held.bytes().is_ok_and(|bytes| bytes == b"bytes")
                && objects.get("name", Deadline::from_ms(0)).is_err()
                && making.bytes_mut(0).is_err();
            drop((held, making));
            // SAFETY: it ends the process.
            unsafe { nix::libc::_exit(i32::from(!refused)) }
        }
    };
    assert_eq!(waitpid(child, None).expect("its end"), WaitStatus::Exited(child, 0));
    assert_eq!(bytes(&held), b"bytes");
    making.write_at(0, 0, b"parent").expect("host memory");
    making.seal(patience()).expect("the child has it not mapped");
    let object = objects.get("group", patience()).expect("it is there");
    assert_eq!(&bytes(&object)[..6], b"parent");
}

#[test]
fn import_when_a_reader_wants_to_write_then_nobody_can() {
    let broker = Broker::start();
    let (_client, objects) = objects(&broker, "client");
    put(&objects, "name", b"bytes");
    let object = objects.get("name", patience()).expect("it is there");
    let address = object.as_ptr().expect("host memory").addr();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let begins = format!("{address:x}-");
    let line = maps.lines().find(|line| line.starts_with(&begins)).expect("it is mapped");
    assert!(line.contains(" r--s "), "{line}");
}

#[test]
fn group_when_as_large_as_may_be_then_all_of_it_is_got_with_its_metadata() {
    let broker = Broker::start();
    let (client, objects) = objects(&broker, "client");
    let names: Vec<String> = (0..MAX_GROUP)
        .map(|at| format!("{at:03}{}", "n".repeat(NAME_OF_OBJECT_BYTES - 3)))
        .collect();
    let bytes: Vec<Vec<u8>> = (0..MAX_GROUP).map(|at| vec![at as u8; 100]).collect();
    let metadata: Vec<Vec<u8>> = (0..MAX_GROUP).map(|at| vec![at as u8; METADATA_BYTES]).collect();
    let put = |at: usize| PutObject::new(&names[at], &bytes[at]).metadata(&metadata[at]);
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
    let (client, objects) = objects(&broker, "client");
    let long = "x".repeat(NAME_OF_OBJECT_BYTES + 1);
    for name in ["", "a\0b", &long] {
        let codes = [
            objects.put(name, b"x", plain(), soon()).expect_err("no name").code,
            objects.get(name, soon()).expect_err("no name").code,
            objects.delete(name, None, soon()).expect_err("no name").code,
            objects.stat(name, soon()).expect_err("no name").code,
        ];
        let possible = [ErrorCode::TooLong, ErrorCode::BadHandle];
        assert!(codes.iter().all(|code| possible.contains(code)), "{name:?}: {codes:?}");
    }
    let metadata = vec![0; METADATA_BYTES + 1];
    let new = NewObject::new("a", 1).metadata(&metadata);
    let error = objects.create(&[new], Place::Host, plain(), soon());
    assert_eq!(error.expect_err("too much").code, ErrorCode::TooLong);
    // The connection is as good as before.
    objects.put("a", b"x", plain(), patience()).expect("made");
    drop((objects, client));
    broker.assert_nothing_left();
}

#[test]
fn name_when_twice_in_one_call_then_a_typed_error_where_it_is_made_and_elsewhere_each_is_got() {
    let broker = Broker::start();
    let (client, objects) = objects(&broker, "client");
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
    let (_client, objects) = objects(&broker, "client");
    let error = objects.of_job().put("a", b"x", kept(), soon()).expect_err("it ends with the job");
    assert_eq!(error.code, ErrorCode::NotSupported, "{error}");
}

// Fds leaked into children (ray 52622).
#[test]
fn fds_when_objects_are_made_and_read_then_no_child_has_any_of_them() {
    let broker = Broker::start();
    let mut child = Peer::start("children");
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
