//! Named objects with a scripted broker: messages, answers that come late or never, watches, GPU
//! memory under the stand-in for the driver. What needs the daemon is in
//! tests/e2e/objects/library.rs.

use crate::support::stub::{Stub, under_stub};
use crate::support::*;
use fdbroker_client::cuda::Device;
use fdbroker_client::{
    Client, Deadline, ErrorCode, Facts, GetProgress, MakersWork, MemoryKind, NewObject,
    ObjectEvent, ObjectOptions, Objects, Place, PutObject, SealError, Touch, WatchEvent,
};
use fdbroker_protocol::message::{DeclareItem, declare_flags};
use fdbroker_protocol::object::*;
use fdbroker_protocol::{AllocationId, Kind, Message, Status, Writer};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::uio::pread;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

/// Memory of the host, of one page.
const HOSTS: Facts = Facts::new(MemoryKind::Memfd, 4096);

/// Memory of a GPU that its owner has not named.
const OF_SOME_GPU: Facts = HOSTS.kind(MemoryKind::CudaVmm);

pub fn plain() -> ObjectOptions {
    ObjectOptions::default()
}

/// Name, offset, size and metadata of an object.
pub type Item = (String, u64, u64, Vec<u8>);

/// A create as the broker reads it: its head, and its objects.
pub fn created(request: &Received) -> (ObjectCreateHead, Vec<Item>) {
    assert_eq!(request.kind, Kind::ObjectCreate);
    request.message(|message| {
        let (head, items) = message.head_and_named::<ObjectCreateHead, ObjectItem>().unwrap();
        let item = |(item, name, more): (&ObjectItem, &[u8], &[u8])| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            (name, item.offset.get(), item.size_bytes.get(), more.to_vec())
        };
        (*head, items.map(item).collect())
    })
}

impl Peer {
    pub fn answer_create(&self, request: &Received, group: u64) {
        let body =
            ObjectCreated { group: group.into(), deposit_credits: 8.into(), flags: 0.into() };
        let mut writer = Writer::new();
        writer.start(Kind::ObjectCreated, request.id).push(&body);
        self.send(writer.finish(0, 0), &[]);
    }

    pub fn answer_seal(&self, request: &Received, version: u64) {
        assert_eq!(request.kind, Kind::ObjectSeal);
        let mut writer = Writer::new();
        let body = ObjectSealed { version: version.into() };
        writer.start(Kind::ObjectSealed, request.id).push(&body);
        self.send(writer.finish(0, 0), &[]);
    }

    pub fn answer_statuses(&self, request: &Received, statuses: &[Status]) {
        let mut writer = Writer::new();
        writer.start(Kind::ObjectReply, request.id);
        statuses.iter().for_each(|status| _ = writer.push(&status.to_bytes()));
        self.send(writer.finish(statuses.len(), 0), &[]);
    }

    /// Answers a get of objects that are all in one group: version and size of each.
    fn answer_get(
        &self,
        id: u64,
        objects: &[(u64, u64)],
        lease: u64,
        facts: Facts,
        fd: BorrowedFd<'_>,
    ) {
        let mut writer = Writer::new();
        let head = ObjectGotHead { grants: 1.into(), reserved: [0.into(); 3] };
        writer.start(Kind::ObjectGot, id).push(&head);
        for (version, size) in objects {
            writer.push(&ObjectGotItem {
                version: (*version).into(),
                offset: 0.into(),
                size_bytes: (*size).into(),
                grant: 0.into(),
                metadata_len: 0.into(),
                metadata_here: 0,
                reserved: [0; 3],
            });
        }
        let mut item = no_grant();
        item.lease = lease.into();
        item.slot = (lease as u32).into();
        item.generation = 1.into();
        item.facts = facts.into();
        item.fd_index = 0.into();
        writer.push(&item);
        self.send(writer.finish(objects.len(), 1), &[fd]);
    }

    /// Answers a list with a page of these names, which is not the last one.
    fn answer_page(&self, request: &Received, names: &[&str]) {
        assert_eq!(request.kind, Kind::ObjectList);
        let mut writer = Writer::new();
        let head = ObjectPage { done: 0.into(), reserved: 0.into() };
        writer.start(Kind::ObjectRecords, request.id).push(&head);
        for name in names {
            writer.push(&sealed_record(name)).push(name.as_bytes());
        }
        self.send(writer.finish(names.len(), 0), &[]);
    }

    fn tell(&self, events: &[(ObjectEvent, &str, u64)]) {
        let mut writer = Writer::new();
        writer.start(Kind::ObjectEvents, 0);
        for (event, name, version) in events {
            let name_len = u8::try_from(name.len()).unwrap();
            let (event, version) = (*event as u8, (*version).into());
            writer.push(&ObjectEventItem { version, event, name_len, reserved: [0.into(); 3] });
            writer.push(name.as_bytes());
        }
        self.send_event(writer.finish(events.len(), 0));
    }
}

/// The record of an object of no bytes.
fn sealed_record(name: &str) -> ObjectRecord {
    ObjectRecord {
        version: 1.into(),
        offset: 0.into(),
        size_bytes: 0.into(),
        group: 1.into(),
        group_bytes: 4096.into(),
        age_ms: 0.into(),
        ttl_left_ms: u64::MAX.into(),
        slot: 0.into(),
        generation: 1.into(),
        group_names: 1.into(),
        leases: 0.into(),
        creator_pid: 0.into(),
        metadata_len: 0.into(),
        metadata_here: 0.into(),
        state: ObjectState::Sealed as u8,
        flags: 0,
        kind: MemoryKind::Memfd as u8,
        name_len: u8::try_from(name.len()).unwrap(),
        reserved: [0.into(); 3],
    }
}

/// A memfd that nobody can write.
fn sealed(bytes: &[u8]) -> OwnedFd {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let fd = memfd_create(c"sealed", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    nix::unistd::ftruncate(&fd, 4096).unwrap();
    nix::sys::uio::pwrite(&fd, bytes, 0).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK)).unwrap();
    // A sealed one is mapped by readers, who have it open for reading alone.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    std::fs::File::open(path).unwrap().into()
}

pub fn client() -> (FakeBroker, Client, Peer, Objects) {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let objects = client.objects();
    (broker, client, peer, objects)
}

#[test]
fn put_when_made_then_two_messages_and_the_broker_gets_a_file_that_nobody_can_change() {
    let (_broker, _client, peer, objects) = client();
    thread::scope(|scope| {
        let first = PutObject::new("a", b"abc").metadata(b"meta").expect(3);
        let puts = [first, PutObject::new("b", &[7; 100]), PutObject::new("c", b"")];
        let options = plain().replace(true).keep(Duration::from_secs(1)).evictable(true);
        let objects = &objects;
        let call = scope.spawn(move || objects.put_group(&puts, options, soon()));
        let request = peer.recv();
        let (head, items) = created(&request);
        let expected = object_flags::REPLACE | object_flags::KEEP | object_flags::EVICTABLE;
        assert_eq!((head.flags.get(), head.ttl_ms.get()), (expected, 1000));
        assert_eq!((head.facts.size_bytes.get(), head.facts.kind), (4096, MemoryKind::Memfd as u8));
        let names: Vec<_> = items.iter().map(|it| (it.0.as_str(), it.1, it.2)).collect();
        assert_eq!(names, [("a", 0, 3), ("b", 64, 100), ("c", 192, 0)]);
        assert_eq!(items[0].3, b"meta");
        let fd = &request.fds[0];
        let seals = SealFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GET_SEALS).unwrap());
        assert!(seals.contains(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK));
        assert!(seals.contains(SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL));
        let mut bytes = [0; 200];
        pread(fd, &mut bytes, 0).unwrap();
        assert_eq!(
            (&bytes[..3], bytes[3], bytes[64..164].to_vec()),
            (&b"abc"[..], 0, vec![7; 100])
        );
        peer.answer_create(&request, 5);
        peer.answer_seal(&peer.recv(), 77);
        assert_eq!(call.join().unwrap().unwrap(), 77);
    });
    peer.assert_silent();
}

#[test]
fn seal_when_a_name_has_another_version_then_says_which_name_and_which_version() {
    let (_broker, _client, peer, objects) = client();
    thread::scope(|scope| {
        let puts = [PutObject::new("a", b"x"), PutObject::new("b", b"x").expect(3)];
        let objects = &objects;
        let put = scope.spawn(move || objects.put_group(&puts, plain(), soon()));
        peer.answer_create(&peer.recv(), 5);
        peer.fail(peer.recv_kind(Kind::ObjectSeal).id, Status::with_value(ErrorCode::Version, 7));
        let said = put.join().unwrap().unwrap_err().to_string();
        assert!(said.starts_with("seal b: VERSION: ") && said.ends_with("version 7)"), "{said}");
        peer.answer_statuses(&peer.recv_kind(Kind::ObjectAbort), &[Status::OK]);

        let new = [NewObject::new("a", 1).expect(0), NewObject::new("b", 1).expect(3)];
        let made = scope.spawn(move || objects.create(&new, Place::Host, plain(), soon()));
        peer.answer_create(&peer.recv(), 6);
        let group = made.join().unwrap().unwrap();
        let sealed = scope.spawn(|| group.seal(soon()).map_err(|failure| failure.to_string()));
        peer.fail(peer.recv_kind(Kind::ObjectSeal).id, Status::with_value(ErrorCode::Version, 0));
        let said = sealed.join().unwrap().unwrap_err();
        assert!(said.starts_with("seal a or one of 1 others: VERSION: "), "{said}");
    });
}

#[test]
fn create_when_its_answer_comes_too_late_then_the_group_is_given_up() {
    let (_broker, client, peer, objects) = client();
    let error = objects.put("late", b"x", plain(), Deadline::from_ms(10)).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut);
    let request = peer.recv_kind(Kind::ObjectCreate);
    assert_eq!(peer.recv_kind(Kind::Cancel).id, request.id);
    peer.answer_create(&request, 9);
    let abort = peer.recv_kind(Kind::ObjectAbort);
    assert_eq!(abort.message(|it| it.body_as::<ObjectGroup>().unwrap().group.get()), 9);
    peer.answer_statuses(&abort, &[Status::OK]);
    eventually("it goes on", || client.is_connected());
    peer.assert_silent();
}

#[test]
fn create_when_the_credit_was_taken_back_then_it_is_sent_again() {
    let (_broker, _client, peer, objects) = client();
    thread::scope(|scope| {
        let call = scope.spawn(|| objects.put("a", b"x", plain(), soon()));
        let first = peer.recv_kind(Kind::ObjectCreate);
        peer.fail(first.id, ErrorCode::Again.into());
        let again = peer.recv_kind(Kind::ObjectCreate);
        assert_eq!(again.fds.len(), 1);
        peer.answer_create(&again, 5);
        peer.answer_seal(&peer.recv(), 1);
        assert_eq!(call.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn drop_when_many_groups_are_given_up_then_all_are_said_whatever_is_answered() {
    const GROUPS: u64 = 150;
    let (_broker, client, peer, objects) = client();
    thread::scope(|scope| {
        let call = scope.spawn(|| {
            let new = [NewObject::new("a", 1)];
            let make = |_| objects.create(&new, Place::Host, plain(), soon()).unwrap();
            (0..GROUPS).map(make).collect::<Vec<_>>()
        });
        for group in 1..=GROUPS {
            peer.answer_create(&peer.recv(), group);
        }
        drop(call.join().unwrap());
    });
    let mut given_up = Vec::new();
    while given_up.len() < GROUPS as usize {
        let abort = peer.recv_kind(Kind::ObjectAbort);
        given_up.push(abort.message(|it| it.body_as::<ObjectGroup>().unwrap().group.get()));
        peer.answer_statuses(&abort, &[Status::OK]);
    }
    assert_eq!(given_up, (1..=GROUPS).collect::<Vec<_>>());
    assert!(client.is_connected());
}

#[test]
fn create_when_the_metadata_exceeds_a_message_then_the_rest_is_added() {
    let (_broker, _client, peer, objects) = client();
    let names: Vec<String> = (0..20).map(|at| format!("n{at}")).collect();
    let new: Vec<NewObject<'_>> =
        names.iter().map(|name| NewObject::new(name, 10).metadata(&[1; 4096])).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| objects.create(&new, Place::Host, plain(), soon()));
        let request = peer.recv();
        let mut count = created(&request).1.len();
        peer.answer_create(&request, 5);
        while count < names.len() {
            let add = peer.recv_kind(Kind::ObjectAdd);
            count += add.count;
            peer.answer_statuses(&add, &[Status::OK]);
        }
        assert_eq!(call.join().unwrap().unwrap().len(), 20);
        peer.recv_kind(Kind::ObjectAbort);
    });
}

#[test]
fn get_when_one_group_has_all_names_then_one_mapping_one_lease_and_no_fd() {
    let (_broker, _client, peer, objects) = client();
    let fd = sealed(b"bytes");
    let got = thread::scope(|scope| {
        let call = scope.spawn(|| objects.get_many(&["a", "b"], soon()).unwrap());
        let request = peer.recv_kind(Kind::ObjectGet);
        let names: Vec<Vec<u8>> = request.message(|message| {
            let (_, items) = message.head_and_named::<ObjectGetHead, ObjectName>().unwrap();
            items.map(|(_, name, _)| name.to_vec()).collect()
        });
        assert_eq!(names, [b"a", b"b"]);
        peer.answer_get(request.id, &[(3, 5), (3, 2)], 1, HOSTS, fd.as_fd());
        call.join().unwrap()
    });
    assert_eq!(peer.recv_kind(Kind::Mapped).leases(), [1]);
    assert_eq!((got[0].bytes().unwrap(), got[1].bytes().unwrap()), (&b"bytes"[..], &b"by"[..]));
    assert_eq!(got[0].as_ptr(), got[1].as_ptr());
    drop(got);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
}

#[test]
fn get_when_the_memory_is_not_sealed_then_no_slice_of_it_but_copies() {
    let (_broker, _client, peer, objects) = client();
    let fd = memory(b"bytes");
    let object = thread::scope(|scope| {
        let call = scope.spawn(|| objects.get("a", soon()).unwrap());
        let request = peer.recv_kind(Kind::ObjectGet);
        peer.answer_get(request.id, &[(3, 5)], 1, HOSTS, fd.as_fd());
        call.join().unwrap()
    });
    assert_eq!(object.bytes().unwrap_err().code, ErrorCode::NotSupported);
    let mut bytes = [0; 5];
    object.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    assert_eq!(object.read_at(1, &mut bytes).unwrap_err().code, ErrorCode::BadHandle);
}

#[test]
fn get_when_an_object_is_outside_its_group_then_protocol_and_the_grant_is_given_back() {
    let (_broker, _client, peer, objects) = client();
    let fd = sealed(b"bytes");
    thread::scope(|scope| {
        let call = scope.spawn(|| objects.get("a", soon()));
        let request = peer.recv_kind(Kind::ObjectGet);
        peer.answer_get(request.id, &[(3, 4097)], 1, HOSTS, fd.as_fd());
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Protocol);
    });
    assert_eq!(peer.recv_kind(Kind::Mapped).leases(), [1]);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
}

#[test]
fn cancel_when_a_get_is_answered_all_the_same_then_its_grant_is_given_back() {
    let (_broker, _client, peer, objects) = client();
    let fd = sealed(b"bytes");
    let request = objects.get_start(&["a"], soon()).unwrap();
    let asked = peer.recv_kind(Kind::ObjectGet);
    let GetProgress::UnderWay(request) = request.test() else { panic!("nothing has come") };
    request.cancel();
    assert_eq!(peer.recv_kind(Kind::Cancel).id, asked.id);
    peer.answer_get(asked.id, &[(3, 5)], 1, HOSTS, fd.as_fd());
    assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
}

#[test]
fn touch_when_asked_then_its_flags_and_outcomes_are_those_of_the_names() {
    let (_broker, client, peer, _) = client();
    let objects = client.objects();
    thread::scope(|scope| {
        let touch = Touch::default().keep(Duration::from_millis(5)).pin(false);
        let objects = &objects;
        let call = scope.spawn(move || objects.touch(&["a", "b"], touch, soon()).unwrap());
        let request = peer.recv_kind(Kind::ObjectTouch);
        let (ttl_ms, flags) = request.message(|message| {
            let (head, _) = message.head_and_named::<ObjectTouchHead, ObjectName>().unwrap();
            (head.ttl_ms.get(), head.flags.get())
        });
        let expected = object_flags::KEEP | object_flags::UNPIN;
        assert_eq!((ttl_ms, flags), (5, expected));
        peer.answer_statuses(&request, &[Status::OK, ErrorCode::NotFound.into()]);
        let outcomes = call.join().unwrap();
        let error = outcomes[1].as_ref().unwrap_err();
        assert!(outcomes[0].is_ok() && error.to_string().starts_with("touch b: NOT_FOUND: "));
    });
}

#[test]
fn list_when_its_deadline_passes_between_two_pages_then_timed_out_and_the_next_is_not_asked_for() {
    let (_broker, _client, peer, objects) = client();
    // Long enough for the first page, on a busy machine, too.
    let deadline = Deadline::from_ms(2000);
    let mut list = objects.list("a", deadline);
    let next =
        |list: &mut fdbroker_client::ObjectList| list.next().map(|one| one.map(|it| it.name));
    thread::scope(|scope| {
        let call = scope.spawn(|| next(&mut list).unwrap().unwrap());
        peer.answer_page(&peer.recv(), &["a1", "a2"]);
        assert_eq!(call.join().unwrap(), "a1");
    });
    // The program takes its time; answers are waited for a little longer than the deadline.
    thread::sleep(deadline.remaining() + Duration::from_millis(60));
    assert_eq!(next(&mut list).unwrap().unwrap(), "a2", "what has come is given all the same");
    assert_eq!(next(&mut list).unwrap().unwrap_err().code, ErrorCode::TimedOut);
    assert!(next(&mut list).is_none());
    peer.assert_silent();
}

#[test]
fn watch_when_events_come_then_those_of_its_prefix_in_order_and_lost_to_all() {
    let (_broker, _client, peer, objects) = client();
    let watch = |prefix: &'static str| {
        thread::scope(|scope| {
            let call = scope.spawn(|| objects.watch(prefix, soon()).unwrap());
            let request = peer.recv_kind(Kind::ObjectWatch);
            let asked = request.message(|message| message.prefix().unwrap().1.to_vec());
            assert_eq!(asked, prefix.as_bytes());
            peer.answer_statuses(&request, &[Status::OK]);
            call.join().unwrap()
        })
    };
    let (all, some) = (watch(""), watch("a/"));
    assert_eq!(some.next(Deadline::from_ms(0)).unwrap(), None);
    peer.tell(&[
        (ObjectEvent::Sealed, "a/1", 4),
        (ObjectEvent::Replaced, "b", 5),
        (ObjectEvent::Lost, "", 2),
        (ObjectEvent::Aborted, "a/2", 0),
    ]);
    let take = |watch: &fdbroker_client::Watch, count: usize| -> Vec<WatchEvent> {
        (0..count).map(|_| watch.next(soon()).unwrap().unwrap()).collect()
    };
    let event = |event, name: &str, version| WatchEvent::new(event, name, version);
    let (first, lost) = (event(ObjectEvent::Sealed, "a/1", 4), event(ObjectEvent::Lost, "", 2));
    let (other, last) =
        (event(ObjectEvent::Replaced, "b", 5), event(ObjectEvent::Aborted, "a/2", 0));
    assert_eq!(take(&some, 3), [first.clone(), lost.clone(), last.clone()]);
    assert_eq!(take(&all, 4), [first, other, lost, last]);
    drop(some);
    let request = peer.recv_kind(Kind::ObjectWatch);
    let flags = request.message(|message| message.prefix().unwrap().0.flags.get());
    assert_eq!(flags, object_flags::UNWATCH);
}

#[test]
fn watch_when_the_broker_is_lost_then_told_to_the_next_one_and_lost_is_said_first() {
    let (mut broker, client, peer, objects) = client();
    let watch = thread::scope(|scope| {
        let call = scope.spawn(|| objects.watch("a", soon()).unwrap());
        peer.answer_statuses(&peer.recv_kind(Kind::ObjectWatch), &[Status::OK]);
        call.join().unwrap()
    });
    broker.stop();
    drop(peer);
    eventually("the loss is seen", || !client.is_connected());
    assert_eq!(watch.next(Deadline::from_ms(0)).unwrap_err().code, ErrorCode::NotConnected);
    broker.start();
    let peer = broker.accept(Terms::default());
    eventually("it is back", || client.is_connected());
    thread::scope(|scope| {
        let call = scope.spawn(|| watch.next(soon()).unwrap().unwrap());
        peer.answer_statuses(&peer.recv_kind(Kind::ObjectWatch), &[Status::OK]);
        assert_eq!(call.join().unwrap().event, ObjectEvent::Lost);
    });
    peer.tell(&[(ObjectEvent::Deleted, "a", 1)]);
    assert_eq!(watch.next(soon()).unwrap().unwrap().event, ObjectEvent::Deleted);
}

#[test]
fn lease_when_the_broker_is_lost_then_declared_without_a_handle_and_readable_throughout() {
    for answer in [Ok(()), Err(ErrorCode::Stale)] {
        let (mut broker, client, peer, objects) = client();
        let fd = sealed(b"bytes");
        let object = thread::scope(|scope| {
            let call = scope.spawn(|| objects.get("a", soon()).unwrap());
            let request = peer.recv_kind(Kind::ObjectGet);
            peer.answer_get(request.id, &[(3, 5)], 1, HOSTS, fd.as_fd());
            call.join().unwrap()
        });
        broker.stop();
        drop(peer);
        eventually("the loss is seen", || !client.is_connected());
        assert!(!object.is_current());
        broker.start();
        let mut peer = broker.accept(Terms::default());
        let request = peer.recv_kind(Kind::Declare);
        let flags = |message: &Message<'_>| message.items::<DeclareItem>().unwrap()[0].flags.get();
        assert_eq!(request.message(flags), declare_flags::OBJECT, "its fd is closed: it is mapped");
        assert_eq!(request.declare()[0].0, AllocationId { slot: 1, generation: 1 });
        peer.page.set(AllocationId { slot: 1, generation: 1 });
        assert!(!object.is_current(), "not before the answer");
        let leases = peer.declared(&request, &[answer]);
        assert_eq!(object.bytes().unwrap(), b"bytes");
        if answer.is_ok() {
            eventually("the answer is known", || object.is_current());
        }
        drop(object);
        if answer.is_ok() {
            assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
        }
        peer.assert_silent();
    }
}

// --- GPU memory ----------------------------------------------------------------------------------

#[test]
fn create_when_there_is_no_driver_then_not_supported_and_other_calls_work() {
    let name = "create_when_there_is_no_driver_then_not_supported_and_other_calls_work";
    under_stub(name, Stub::NoLibrary, &[], || {
        let (_broker, _client, peer, objects) = client();
        assert_eq!(Device::open(0).unwrap_err().code, ErrorCode::NotSupported);
        let fd = memory(b"");
        thread::scope(|scope| {
            let call = scope.spawn(|| objects.get("gpu", soon()));
            let request = peer.recv_kind(Kind::ObjectGet);
            peer.answer_get(request.id, &[(3, 5)], 1, OF_SOME_GPU, fd.as_fd());
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::NotSupported);
        });
        assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
    });
}

#[test]
fn seal_when_on_a_device_then_waits_for_the_makers_work_and_drops_its_mapping() {
    let name = "seal_when_on_a_device_then_waits_for_the_makers_work_and_drops_its_mapping";
    under_stub(name, Stub::Whole, &[], || {
        let broker = FakeBroker::listen();
        let (client, peer) = broker.client_with(Client::builder().own_fds(2), Terms::default());
        let (objects, device) = (client.objects(), Device::open(0).unwrap());
        let free = || device.memory_info().unwrap().free_bytes;
        let before = free();
        for after_event in [false, true] {
            thread::scope(|scope| {
                let (objects, device) = (&objects, &device);
                let call = scope.spawn(move || {
                    let new = [NewObject::new("gpu/a", 5), NewObject::new("gpu/b", 300)];
                    objects.create(&new, Place::Cuda(device), plain(), soon()).unwrap()
                });
                let mut request = peer.recv();
                let (head, items) = created(&request);
                assert_eq!(head.facts.kind, MemoryKind::CudaVmm as u8);
                assert_eq!(items[1].1, 256);
                let fd = request.fds.pop().unwrap();
                peer.answer_create(&request, 5);
                let mut group = call.join().unwrap();
                assert_eq!(group.bytes_mut(0).unwrap_err().code, ErrorCode::NotSupported);
                group.write_at(1, 0, b"settled").unwrap();
                fill_without_waiting(group.device_ptr(0).unwrap(), b'w', 5);
                let mut bytes = [0; 5];
                pread(&fd, &mut bytes, 0).unwrap();
                assert_ne!(&bytes, b"wwwww", "it has not arrived");
                let sealing = scope.spawn(move || match after_event {
                    false => group.seal(soon()),
                    // SAFETY: any event but null is one of the stub's.
                    true => unsafe {
                        let event = std::ptr::without_provenance_mut(1);
                        group.seal_after(MakersWork::Event(event), soon())
                    },
                });
                let seal = peer.recv();
                pread(&fd, &mut bytes, 0).unwrap();
                assert_eq!(&bytes, b"wwwww");
                peer.answer_seal(&seal, 3);
                assert_eq!(sealing.join().unwrap().unwrap(), 3);
                drop(fd);
            });
            assert_eq!(free(), before, "nothing of it is left here");
        }
    });
}

#[test]
fn seal_when_the_makers_work_has_failed_then_nothing_is_sealed_and_the_group_can_be_sealed_later() {
    let name = "seal_when_the_makers_work_has_failed_then_nothing_is_sealed_and_the_group_can_be_sealed_later";
    under_stub(name, Stub::Whole, &[], || {
        let broker = FakeBroker::listen();
        let (client, peer) = broker.client_with(Client::builder().own_fds(2), Terms::default());
        let (objects, device) = (client.objects(), Device::open(0).unwrap());
        thread::scope(|scope| {
            let (objects, device) = (&objects, &device);
            let call = scope.spawn(move || {
                objects.create(&[NewObject::new("gpu", 5)], Place::Cuda(device), plain(), soon())
            });
            peer.answer_create(&peer.recv(), 5);
            let group = call.join().unwrap().unwrap();
            // SAFETY: the stub looks at no stream: it knows none, and says so of any.
            let refused = unsafe {
                let stream = std::ptr::without_provenance_mut(1);
                group.seal_after(MakersWork::Stream(stream), soon())
            };
            let SealError { error, group, .. } = refused.unwrap_err();
            assert_eq!(error.code, ErrorCode::Internal, "{error}");
            peer.assert_silent();
            let mut group = *group.expect("nothing has happened to it");
            group.write_at(0, 0, b"again").unwrap();
            let sealing = scope.spawn(move || group.seal(soon()));
            peer.answer_seal(&peer.recv(), 3);
            assert_eq!(sealing.join().unwrap().unwrap(), 3);
        });
    });
}

/// Has the device write, as a kernel does: nobody waits for it.
fn fill_without_waiting(to: u64, byte: u8, count: usize) {
    use nix::libc::{RTLD_LOCAL, RTLD_NOW, c_int, c_void, dlopen, dlsym};
    type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
    type Push = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    type Fill = unsafe extern "C" fn(u64, u8, usize) -> c_int;
    // SAFETY: the library is the stub, whose functions of these names have these types (cuda.h).
    unsafe {
        let library = dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW | RTLD_LOCAL);
        let find = |name: &std::ffi::CStr| dlsym(library, name.as_ptr());
        let retain: Retain = std::mem::transmute(find(c"cuDevicePrimaryCtxRetain"));
        let push: Push = std::mem::transmute(find(c"cuCtxPushCurrent_v2"));
        let pop: Pop = std::mem::transmute(find(c"cuCtxPopCurrent_v2"));
        let fill: Fill = std::mem::transmute(find(c"cuMemsetD8_v2"));
        let mut context = std::ptr::null_mut();
        assert_eq!(retain(&raw mut context, 0), 0);
        assert_eq!(push(context), 0);
        assert_eq!(fill(to, byte, count), 0);
        assert_eq!(pop(&raw mut context), 0);
    }
}

#[test]
fn get_when_on_a_device_then_opened_there_for_reading() {
    let name = "get_when_on_a_device_then_opened_there_for_reading";
    under_stub(name, Stub::Whole, &[], || {
        let (_broker, _client, peer, objects) = client();
        let device = Device::open(0).unwrap();
        let memory = fdbroker_client::cuda::CudaMemory::new(&device, 4096).unwrap();
        memory.write_at(0, b"bytes").unwrap();
        let fd = memory.export().unwrap();
        let facts = OF_SOME_GPU.gpu(device.gpu());
        let get = |objects: &Objects, facts| {
            thread::scope(|scope| {
                let call = scope.spawn(|| objects.get("gpu", soon()));
                let request = peer.recv_kind(Kind::ObjectGet);
                peer.answer_get(request.id, &[(3, 5)], 1, facts, fd.as_fd());
                call.join().unwrap()
            })
        };
        let refused = get(&objects, OF_SOME_GPU).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotSupported, "no GPU is guessed: {refused}");
        assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
        let with_device = objects.with_cuda(&device);
        for (objects, facts) in
            [(&objects, facts), (&with_device, facts), (&with_device, OF_SOME_GPU)]
        {
            let object = get(objects, facts).unwrap();
            let mut bytes = [0; 5];
            object.read_at(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"bytes");
            assert_eq!(object.bytes().unwrap_err().code, ErrorCode::NotSupported);
            assert!(object.device_ptr().is_some() && object.as_ptr().is_none());
            assert_eq!(peer.recv_kind(Kind::Mapped).leases(), [1]);
            drop(object);
            assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
        }
    });
}

#[test]
fn seal_when_refused_for_good_then_no_group_is_left() {
    let (_broker, _client, peer, objects) = client();
    for (code, is_left) in [
        (ErrorCode::Exists, true),
        (ErrorCode::SealedBusy, true),
        (ErrorCode::NoQuota, true),
        (ErrorCode::Aborted, false),
    ] {
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let new = [NewObject::new("a", 1)];
                objects.create(&new, Place::Host, plain(), soon()).unwrap().seal(soon())
            });
            peer.answer_create(&peer.recv(), 5);
            let seal = peer.recv_kind(Kind::ObjectSeal);
            peer.fail(seal.id, code.into());
            let SealError { error, group, .. } = call.join().unwrap().unwrap_err();
            assert_eq!((error.code, group.is_some()), (code, is_left));
            drop(group);
            peer.recv_kind(Kind::ObjectAbort);
        });
    }
}
