//! Kept objects over the deaths of their maker and of the broker, under a service manager that
//! stores fds (a stand-in for systemd), and what is said of them without one.

use crate::support::broker::Broker;
use crate::support::manager::Manager;
use crate::support::objects::{Group, New, SIZE, bytes_of, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::{PATIENCE, eventually, eventually_some, patience};
use fdbroker_client::{Client, ObjectInfo, ObjectOptions};
use fdbroker_protocol::object::object_flags::{KEEP, PIN};
use fdbroker_protocol::object::record_flags;
use fdbroker_protocol::{ErrorCode, Status};
use fdbrokerd::limits::CARRIERS_AHEAD;
use nix::sys::signal::Signal;
use std::time::Duration;

/// A broker under a service manager, which keeps for longer than any test takes.
fn managed() -> Manager {
    let mut manager = Manager::new(&["--set", "limits.object_ttl_ms=600000"]);
    manager.start(&[]);
    manager
}

/// The broker is killed, and the service manager starts another one.
fn kill(manager: &mut Manager) {
    manager.end(Signal::SIGKILL);
    manager.start(&[]);
}

fn ms() -> u32 {
    u32::try_from(PATIENCE.as_millis()).expect("minutes")
}

#[test]
fn kept_when_maker_and_broker_are_killed_then_a_get_gives_the_same_bytes_and_nothing_else_is_left()
{
    let mut manager = managed();
    let mut maker = Raw::connect(&manager.socket());
    let parts = [
        New { size: 8, metadata: vec![1, 2, 3], ..new("w/0") },
        New { offset: 8, size: 8, metadata: vec![4; 4096], ..new("w/1") },
        New { offset: 16, size: 8, ..new("w/2") },
    ];
    let bytes: Vec<u8> = (0..24).collect();
    let group = Group { size: 24, ..flags(KEEP) };
    let version = maker.put(&memory(&bytes), &group, &parts);
    let pinned = maker.put_bytes("pinned", &[7; 64], PIN);
    maker.put_bytes("plain", &[9; 16], 0);
    maker.create(&memory(&[0; SIZE]), &flags(KEEP), &[new("half")]).expect("begun");
    assert_eq!(maker.delete_versions(&[("w/2", version)])[0].result(), Ok(()));
    // The table, and both ends of a carrier in use and of those ahead of it, the last of which
    // comes in the background.
    let ends = 1 + 2 * (1 + CARRIERS_AHEAD);
    let all_ends = || Some(manager.stored_for_kept()).filter(|stored| stored.len() == ends);
    let stored = eventually_some("the carriers ahead are stored", all_ends);
    drop(maker);

    for _ in 0..2 {
        kill(&mut manager);
        let mut reader = Raw::connect(&manager.socket());
        let got = reader.get_within(&["w/1", "w/0", "pinned"], ms(), 0).expect("they are kept");
        assert_eq!(got.versions(), [version, version, pinned]);
        let expected = [bytes[8..16].to_vec(), bytes[..8].to_vec(), vec![7; 64]];
        assert_eq!([0, 1, 2].map(|index| got.bytes(index)), expected);
        assert_eq!(got.metadata[1], [1, 2, 3]);
        assert_eq!(got.grants.len(), 2, "one memory for a group");
        let names: Vec<String> = reader.list("").iter().map(|known| known.text()).collect();
        assert_eq!(names, ["pinned", "w/0", "w/1"]);
        assert_eq!(reader.stat(&["w/1"])[0].metadata, [4; 4096]);
        assert_eq!(code(&reader.get(&["plain"]).expect_err("not kept")), ErrorCode::NotFound);
    }
    assert_eq!(manager.stored_for_kept(), stored, "the service manager hears of no object");
}

#[test]
fn kept_when_the_manager_has_lost_an_end_of_the_last_carrier_then_what_is_kept_next_outlives_the_broker()
 {
    let mut manager = managed();
    manager.end(Signal::SIGKILL);
    let ends = manager.stored_for_kept();
    let last = ends.iter().filter(|name| name.ends_with(".1")).max().expect("carriers are ahead");
    manager.lose(last);
    manager.start(&[]);
    let other = last.replace(".1", ".0");
    let is_gone = || !manager.stored_for_kept().contains(&other);
    eventually("its other end has left the store", is_gone);
    let mut maker = Raw::connect(&manager.socket());
    maker.put_bytes("next", &[7; 64], KEEP);
    kill(&mut manager);
    let got = Raw::connect(&manager.socket()).get(&["next"]).expect("it is kept");
    assert_eq!(got.bytes(0), [7; 64]);
}

#[test]
fn names_when_there_are_10_000_in_100_groups_then_all_of_them_outlive_the_broker() {
    let mut manager = managed();
    let mut maker = Raw::connect(&manager.socket());
    let mut versions = Vec::new();
    for group in 0..100_u64 {
        let part = |part: u64| New { offset: part * 16, ..new(&format!("{group:03}/{part:03}")) };
        let parts: Vec<New> = (0..100).map(part).collect();
        let bytes = vec![u8::try_from(group).expect("small"); SIZE];
        versions.push(maker.put(&memory(&bytes), &flags(KEEP), &parts));
    }
    drop(maker);
    kill(&mut manager);
    let mut reader = Raw::connect(&manager.socket());
    let all = reader.list("");
    assert_eq!(all.len(), 10_000);
    for (at, known) in all.iter().enumerate() {
        assert_eq!(known.text(), format!("{:03}/{:03}", at / 100, at % 100));
        assert_eq!(known.record.version.get(), versions[at / 100]);
    }
    let got = reader.get(&["042/099"]).expect("it is kept");
    assert_eq!(got.bytes(0), [42; 16]);
}

#[test]
fn get_when_the_broker_is_killed_while_it_waits_then_the_next_broker_serves_it_again() {
    let mut manager = managed();
    let connect = |manager: &Manager| Raw::connect(&manager.socket());
    let (mut maker, mut reader) = (connect(&manager), connect(&manager));
    maker.put_bytes("there", &[1; 16], KEEP);
    let held = reader.get(&["there"]).expect("it is there");
    reader.start_get(&["there", "to come"], ms());
    kill(&mut manager);
    reader.assert_ended();
    assert_eq!(held.bytes(0), [1; 16], "what a reader has stays valid");
    let (mut maker, mut reader) = (connect(&manager), connect(&manager));
    let id = reader.start_get(&["there", "to come"], ms());
    maker.put_bytes("to come", &[2; 16], KEEP);
    let got = reader.finish_get(id).expect("both are there");
    assert_eq!((got.bytes(0), got.bytes(1)), (vec![1; 16], vec![2; 16]));
}

#[test]
fn declare_when_objects_are_held_over_a_crash_then_the_kept_ones_are_current_and_leased_again() {
    let mut manager = managed();
    let connect = |name| {
        let client = Client::builder().socket(manager.socket()).name(name).own_fds(2).connect();
        let client = client.expect("it answers");
        (client.objects(), client)
    };
    let ((maker, _client), (reader, client)) = (connect("maker"), connect("reader"));
    let kept = ObjectOptions::default().keep(Duration::ZERO);
    let names = ["kept", "again", "plain"];
    for (name, options) in names.iter().zip([kept, kept, ObjectOptions::default()]) {
        maker.put(name, b"bytes", options, patience()).expect("it is put");
    }
    let [kept, again, plain] = names.map(|name| reader.get(name, patience()).expect("there"));
    let (own, incarnation) = (maker.get("kept", patience()).expect("there"), client.incarnation());
    kill(&mut manager);
    eventually("it is connected again", || {
        client.is_connected() && client.incarnation() != incarnation
    });
    assert!(kept.is_current() && again.is_current() && !plain.is_current());
    eventually("the maker, too", || own.is_current());
    let leases = |names: &[&str]| {
        let infos = reader.stat_many(names, patience()).expect("it answers");
        let of = |info: Option<ObjectInfo>| info.expect("it is kept").leases;
        infos.into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(leases(&["kept", "again"]), [2, 1]);
    drop((again, own, plain));
    eventually("what is given back is not counted", || leases(&["kept", "again"]) == [1, 0]);
    drop(kept);
    eventually("nor is the last one", || leases(&["kept", "again"]) == [0, 0]);
}

/// The declaration says no more than slot and generation.
#[test]
fn declare_when_an_object_is_no_object_or_another_users_then_stale() {
    let mut manager = managed();
    let mut maker = Raw::connect(&manager.socket());
    maker.put_bytes("kept", &[1; 16], KEEP);
    let id = maker.get(&["kept"]).expect("it is there").grants[0];
    kill(&mut manager);
    let mut maker = Raw::connect(&manager.socket());
    let (slot, generation) = (id.slot.get(), id.generation.get());
    let codes = [(slot, generation), (slot, generation + 1), (slot + 1, generation)]
        .map(|(slot, generation)| maker.declare_object(slot, generation));
    assert_eq!(codes, [Ok(()), Err(ErrorCode::Stale), Err(ErrorCode::Stale)]);
}

/// The broker dies somewhere in the seals of a maker that never stops.
#[test]
fn seals_when_the_broker_is_killed_among_them_then_each_group_is_whole_or_not_there() {
    let mut manager = managed();
    for round in 0..4_u8 {
        let path = manager.socket();
        let (sealed, answered) = std::sync::mpsc::channel();
        let maker = std::thread::spawn(move || {
            let mut maker = Raw::connect(&path);
            for number in 1_usize.. {
                let name = |part: u8| format!("{round}/{number:05}/{part}");
                let part = |part: u8| New { offset: u64::from(part) * 16, ..new(&name(part)) };
                let parts: Vec<New> = (0..5).map(part).collect();
                if maker.try_put(&memory(&[round; SIZE]), &flags(KEEP), &parts).is_none() {
                    return;
                }
                sealed.send(number).expect("the test goes on");
            }
        });
        let first = answered.recv_timeout(PATIENCE).expect("one is sealed");
        manager.end(Signal::SIGKILL);
        maker.join().expect("it ends with the broker");
        manager.start(&[]);
        let mut reader = Raw::connect(&manager.socket());
        let all = reader.list(&format!("{round}/"));
        let last = answered.try_iter().last().unwrap_or(first);
        let groups = all.len() / 5;
        assert!(all.len().is_multiple_of(5), "{} names", all.len());
        assert!(groups == last || groups == last + 1, "{groups} groups, {last} were answered");
        let some = all.last().expect("some").text();
        assert_eq!(reader.get(&[&some]).expect("it is there").bytes(0), [round; 16]);
    }
}

#[test]
fn pages_when_objects_are_kept_then_they_are_not_the_brokers() {
    const LARGE: usize = 32 << 20;
    let manager = managed();
    let shared_kib = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", manager.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
        let kib = line.expect("a line").trim().trim_end_matches(" kB").parse::<usize>();
        kib.expect("a number")
    };
    let before = shared_kib();
    let mut maker = Raw::connect(&manager.socket());
    let group = Group { size: LARGE as u64, ..flags(KEEP) };
    maker.put(&memory(&vec![1; LARGE]), &group, &[new("large")]);
    assert!(shared_kib() < before + (LARGE >> 10) / 4, "{before} KiB before");
}

#[test]
fn terminate_when_kept_objects_end_with_the_broker_then_its_log_says_how_many() {
    let mut broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    for (name, flags) in [("kept", KEEP), ("pinned", PIN), ("made", 0)] {
        maker.put_bytes(name, &[1; 16], flags);
    }
    broker.terminate();
    let log = broker.log();
    assert!(log.contains("kept objects end with this broker: 2 groups of "), "{log}");
}

#[test]
fn keep_when_no_service_manager_stores_fds_then_said_once_and_objects_end_with_the_broker() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let (_, ends_with_broker) =
        maker.create_with_flags(&memory(&[1; SIZE]), &flags(KEEP), &[new("a")]).expect("begun");
    assert!(ends_with_broker);
    maker.put_bytes("b", &[1; 16], KEEP);
    maker.put_bytes("c", &[1; 16], 0);
    let says_so = |maker: &mut Raw, name: &str| {
        maker.stat(&[name])[0].record.flags & record_flags::ENDS_WITH_BROKER != 0
    };
    assert!(says_so(&mut maker, "b") && !says_so(&mut maker, "c"), "what is kept alone");
    assert_eq!(maker.touch(&["c"], PIN, 0), Ok(vec![Status::OK]));
    assert!(says_so(&mut maker, "c"));
    let says = "end with this broker";
    eventually("the log says so", || broker.log().contains(says));
    assert_eq!(broker.log().matches(says).count(), 1);

    let manager = managed();
    let mut maker = Raw::connect(&manager.socket());
    let kept = memory(&[1; SIZE]);
    let (group, ends_with_broker) =
        maker.create_with_flags(&kept, &flags(KEEP), &[new("a")]).expect("begun");
    assert!(!ends_with_broker);
    seal_memory(&kept);
    maker.seal(group).expect("sealed");
    assert_eq!(bytes_of(&kept, 0, 4), [1; 4]);
    assert!(!says_so(&mut maker, "a"));
    assert!(!manager.log().contains(says), "{}", manager.log());
}
