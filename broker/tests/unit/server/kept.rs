//! What is kept over the end of a broker that gives nothing to its successor, as a killed one does:
//! what the service manager has of it, here a real socket and real fds, is all that the next broker
//! knows. Here objects; in the folder allocations.

use super::*;
use crate::handover::packing::Way;
use crate::kept::log::Log;
use crate::kernel::stat;
use crate::limits::{
    DEVICE_FDS_PER_CARRIER, HOST_FDS_PER_CARRIER, KEPT_LOG_AREA_BYTES, MESSAGES_PER_CHORE,
};
use crate::manager::inherited::names;
use crate::node::names::RECORDS_NAME;
use crate::node::records::Records;
use fdbroker_core::{
    Arrived, Body, ClientId, Deposit, DomainKey, GroupId, Inherits, Lane, Now, PodKey, RequestId,
};
use fdbroker_protocol::object::ObjectState;
use fdbroker_protocol::{AllocationId, Facts};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

mod allocations;
mod support;

use support::*;

#[test]
fn kept_when_the_broker_is_killed_then_the_same_memory_names_and_versions_and_no_other() {
    let mut kept = Kept::new();
    let first = kept.put(&["a", "b"], KEEP);
    let second = kept.put(&["c"], KEEP);
    kept.put(&["not/kept"], How { keep: false, ..KEEP });
    kept.delete("b");
    let (unsealed, _) = kept.create(&["unsealed".to_owned()], KEEP);
    let versions = ["a", "c"].map(|name| kept.version(name));
    kept.store.hear();
    assert_eq!(kept.store.messages, 0, "the service manager hears of none of it");

    for _ in 0..2 {
        kept = kept.kill();
        let expected = [("a", versions[0], first), ("c", versions[1], second)];
        let expected = expected.map(|(name, version, inode)| (name.to_owned(), (version, inode)));
        assert_eq!(kept.names(), BTreeMap::from(expected));
        let core = &kept.bench.server.core;
        let (_, view) = core.names_for(kept.client, false, b"a", b"").unwrap().next().unwrap();
        let view = view.unwrap();
        let object = view.record;
        assert_eq!((&*object.metadata, object.offset, object.size_bytes), (&[7; 5][..], 64, 8));
        let (length, data) = core.driver_data(view.allocation).unwrap();
        assert_eq!((*length, &data[..3]), (3, &[5; 3][..]));
        assert!(core.group_to_keep(kept.client, unsealed).is_none());
        kept.until_carried(2);
    }
    kept.delete("a");
    kept.delete("c");
    kept.until_carried(0);
    assert!(kept.kill().names().is_empty());
}

#[test]
fn kept_when_pods_are_told_apart_and_the_broker_is_killed_then_each_pod_has_its_own() {
    let [one, other] = [PodKey([1 << 40, 7]), PodKey([8, 1 << 50])];
    let mut kept = Kept::in_pod(one);
    kept.put(&["a"], KEEP);
    let ids = [kept.keep(memfd().as_fd(), MemoryKind::Memfd)];
    let of_one = kept.names();
    kept.comes_from(other);
    kept.put(&["a", "b"], KEEP);
    let of_other = kept.names();
    kept.until_told();
    for _ in 0..2 {
        kept = kept.kill();
        assert_eq!(kept.names(), of_other);
        kept.comes_from(one);
        assert_eq!(kept.names(), of_one);
        assert_eq!(kept.ids(), ids);
        kept.comes_from(PodKey([9, 9]));
        assert!(kept.names().is_empty());
        kept.comes_from(other);
    }
}

#[test]
fn kept_when_a_slot_is_recorded_as_another_domains_then_that_alone_is_given_up() {
    let mut kept = Kept::new();
    let ids = [0, 1].map(|_| kept.keep(memfd().as_fd(), MemoryKind::Memfd));
    kept.put(&["a"], KEEP);
    kept.put(&["b"], KEEP);
    kept.until_told();
    let server = &kept.bench.server;
    let all = server.core.names_for(kept.client, false, b"", b"").unwrap();
    let of_a = all.filter_map(|(_, view)| view).find(|it| *it.record.name == *b"a").unwrap();
    let path = server.settings.admin_directory().join(RECORDS_NAME);
    let records = Records::open(&path, u32::MAX).unwrap().unwrap();
    for id in [of_a.allocation, ids[0]] {
        let (_, record) = server.core.record(ids[1].slot).expect("it is live");
        let domain = DomainKey { uid: record.domain.uid + 1, ..record.domain };
        records.live(id, &fdbroker_core::Record { domain, ..record });
    }
    let kept = kept.kill();
    assert_eq!(kept.names().into_keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(kept.ids(), ids[1..]);
}

#[test]
fn version_when_made_deleted_and_made_again_over_kills_then_none_is_given_twice() {
    let mut kept = Kept::new();
    let mut last = 0;
    for round in 0..6 {
        let keep = round % 2 == 0;
        kept.put(&["a"], How { keep, ..KEEP });
        let version = kept.version("a");
        assert!(version > last, "{version} after {last}");
        last = version;
        kept.delete("a");
        if round % 3 == 0 {
            kept.put(&["a"], KEEP);
            last = kept.version("a");
        }
        kept = kept.kill();
        if round % 3 == 0 {
            assert_eq!(kept.version("a"), last);
            kept.delete("a");
        }
    }
}

#[test]
fn version_when_the_table_is_damaged_then_nothing_comes_back_and_versions_go_on() {
    let mut kept = Kept::new();
    kept.put(&["a"], KEEP);
    let before = kept.version("a");
    let log = std::fs::File::from(kept.store.log().try_clone().unwrap());
    // Whichever of its areas is in use.
    for at in [4096 + 20, 4096 + 20 + u64::from(KEPT_LOG_AREA_BYTES)] {
        let mut byte = [0];
        log.read_exact_at(&mut byte, at).unwrap();
        log.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    let mut kept = kept.kill();
    assert!(kept.names().is_empty());
    kept.until_carried(0);
    kept.put(&["a"], KEEP);
    assert!(kept.version("a") > before);
    let version = kept.version("a");
    let logs = kept.store.stored.iter().filter(|(name, _)| name == names::KEPT_LOG).count();
    assert_eq!(logs, 1, "another table has taken its place");
    assert_eq!(kept.kill().version("a"), version);
}

#[test]
fn names_when_there_are_10_000_in_100_groups_then_all_are_there_after_a_kill() {
    let mut kept = Kept::new();
    let name = |group: usize, object: usize| format!("weights/{group}/layer.{object}");
    for group in 0..100 {
        let names: Vec<String> = (0..100).map(|object| name(group, object)).collect();
        let (group, _) = kept.create(&names, KEEP);
        kept.seal(group);
    }
    let before = kept.names();
    assert_eq!(before.len(), 10_000);
    let mut kept = kept.kill();
    assert_eq!(kept.names(), before);
    for group in 0..100 {
        for object in 0..if group % 2 == 0 { 100 } else { 50 } {
            kept.delete(&name(group, object));
        }
    }
    kept.until_carried(50);
    let before = kept.names();
    assert_eq!(before.len(), 2_500);
    let kept = kept.kill();
    assert_eq!(kept.names(), before);
}

/// Each state in which a seal, a replacement and a delete can be cut: the log as it was before each
/// commit.
#[test]
fn kept_when_killed_between_fd_record_and_answer_then_the_state_of_before_and_no_fd_is_left() {
    let mut kept = Kept::new();
    let inode = kept.put(&["a", "b"], KEEP);
    let before = kept.names();
    let (group, _) = kept.create(&["a".to_owned()], How { replace: true, ..KEEP });
    // Its fd is carried, and then comes the kill.
    let Bench { server, .. } = &mut kept.bench;
    assert_eq!(begin_seal(server, kept.client, group), Ok(()));
    assert_eq!(server.kept.carried(), 2);
    let mut kept = kept.kill();
    assert_eq!(kept.names(), before);
    kept.until_carried(1);
    // The same for an end that the table has heard of, whose fd is in its carrier still.
    kept.delete("a");
    kept.delete("b");
    let mut kept = kept.kill();
    assert!(kept.names().is_empty());
    kept.until_carried(0);
    assert_ne!(kept.put(&["a"], KEEP), inode);
}

#[test]
fn seal_when_refused_then_what_was_carried_for_it_is_dropped() {
    let mut kept = Kept::new();
    kept.put(&["a"], KEEP);
    let (group, _) = kept.create(&["b".to_owned()], KEEP);
    let status = Err(ErrorCode::SealedBusy.into());
    kept.bench.server.seal_objects(kept.client, RequestId(2), group, status);
    kept.until_carried(1);
    // Another one comes to its name meanwhile.
    let (other, _) = kept.create(&["c".to_owned()], KEEP);
    let (late, _) = kept.create(&["c".to_owned()], How { replace: true, ..KEEP });
    kept.seal(late);
    kept.seal(other);
    kept.until_carried(2);
}

#[test]
fn delete_when_no_carrier_is_empty_then_what_is_dead_is_dropped_all_the_same() {
    // Room for four carriers: one of the host's, two of devices, and the one for both.
    let mut kept = Kept::with_entries(128 + 8);
    let device = How { kind: MemoryKind::CudaVmm, ..KEEP };
    let (of_host, of_devices) = (HOST_FDS_PER_CARRIER, 2 * DEVICE_FDS_PER_CARRIER);
    for (prefix, count, how) in [("host", of_host, KEEP), ("device", of_devices, device)] {
        for index in 0..count {
            kept.bench.rest();
            kept.put(&[&format!("{prefix} {index}")], how);
        }
    }
    // What lives before it goes into the last empty one.
    kept.delete(&format!("host {}", MESSAGES_PER_CHORE - 1));
    kept.until_carried(of_host + of_devices - 1);
    // What lives before it finds no room elsewhere.
    kept.delete(&format!("device {}", DEVICE_FDS_PER_CARRIER - 1));
    kept.until_carried(of_host + of_devices - 2);
    let before = kept.names();
    assert_eq!(before.len(), of_host + of_devices - 2);
    assert_eq!(kept.kill().names(), before);
}

#[test]
fn seal_when_no_carrier_is_left_then_no_quota_and_once_one_is_free_it_is_done() {
    // Room for three carriers, of which one is kept for what is written again.
    let mut kept = Kept::with_entries(128 + 6);
    let most = 2 * DEVICE_FDS_PER_CARRIER;
    let device = How { kind: MemoryKind::CudaVmm, ..KEEP };
    for index in 0..most {
        kept.bench.rest();
        kept.put(&[&format!("{index}")], device);
    }
    let (group, _) = kept.create(&["more".to_owned()], device);
    let server = &mut kept.bench.server;
    let refused = begin_seal(server, kept.client, group).unwrap_err();
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    assert_eq!(Resource::from_number(refused.resource), Some(Resource::KeptFds));
    kept.seal(group);
    assert_eq!(kept.names().len(), most);
    kept.delete("3");
    kept.until_carried(most - 1);
    kept.seal(group);
    let mut kept = kept.kill();
    assert_eq!(kept.names().len(), most);
    assert!(kept.names().contains_key("more") && !kept.names().contains_key("3"));
    kept.until_carried(most);
}

#[test]
fn seal_when_there_is_much_metadata_then_the_table_has_room_and_gives_memory_back_when_it_has_gone()
{
    let mut kept = Kept::new();
    let large = How { metadata: 4096, ..KEEP };
    let name = |group: usize, object: usize| format!("{group}/{object}");
    for group in 0..20 {
        let names: Vec<String> = (0..200).map(|object| name(group, object)).collect();
        let (group, _) = kept.create(&names, large);
        kept.seal(group);
    }
    kept.bench.rest();
    let (before, memory) = (kept.names(), kept.memory());
    assert_eq!(before.len(), 4_000);
    assert!((16_000_000..20_000_000).contains(&memory), "{memory}");
    let mut kept = kept.kill();
    assert_eq!(kept.names(), before);
    for group in 1..20 {
        (0..200).for_each(|object| kept.delete(&name(group, object)));
    }
    kept.bench.rest();
    assert_eq!(kept.names().len(), 200);
    let memory = kept.memory();
    assert!(memory < 4 << 20, "{memory}");
    assert_eq!(kept.kill().names().len(), 200);
}

#[test]
fn seal_when_the_table_is_full_then_no_quota_and_deletes_make_room_again() {
    // A small table, as a broker before this one may have left it.
    let mut kept = Kept::new();
    let small = Log::create(8 << 20).unwrap().as_fd().try_clone_to_owned().unwrap();
    kept.store.stored.retain(|(name, _)| name != names::KEPT_LOG);
    kept.store.stored.push((names::KEPT_LOG.to_owned(), small));
    let mut kept = kept.kill();
    let large = How { metadata: 4096, ..KEEP };
    let mut names: Vec<Vec<String>> = Vec::new();
    let refused = loop {
        let group: Vec<String> =
            (0..200).map(|object| format!("{}/{object}", names.len())).collect();
        // A message has 32 KiB, but this one goes to the core.
        let (number, _) = kept.create(&group, large);
        let server = &mut kept.bench.server;
        let begun = begin_seal(server, kept.client, number);
        server.kept.end_keep();
        if let Err(status) = begun {
            break status;
        }
        kept.seal(number);
        names.push(group);
    };
    assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
    assert_eq!(Resource::from_number(refused.resource), Some(Resource::MetadataBytes));
    assert_eq!(kept.names().len(), 200 * names.len());
    // As often as makes the log overflow many times.
    for _ in 0..20 {
        let group = names.pop().unwrap();
        group.iter().for_each(|name| kept.delete(name));
        let (number, _) = kept.create(&group, large);
        kept.seal(number);
        names.push(group);
    }
    let before = kept.names();
    assert_eq!(before.len(), 200 * names.len());
    kept.bench.rest();
    let kept = kept.kill();
    assert_eq!(kept.names(), before);
}

#[test]
fn compaction_when_things_change_meanwhile_then_nothing_is_lost_at_any_time() {
    let mut kept = Kept::new();
    let how = How { metadata: 2000, replace: true, ..KEEP };
    let mut step = 0;
    // Each round leaves dead records, so that chores copy the living ones while others come and go.
    for round in 0..40_usize {
        for object in 0..20 {
            let names: Vec<String> = (0..10).map(|name| format!("{object}/{name}")).collect();
            let (group, _) = kept.create(&names, how);
            kept.seal(group);
            kept.delete(&format!("{object}/{}", round % 10));
            kept.bench.turn();
            step += 1;
            if step % 97 == 0 {
                let before = kept.names();
                kept = kept.kill();
                assert_eq!(kept.names(), before, "step {step}");
            }
        }
    }
    kept.bench.rest();
    let written = kept.bench.server.kept.written();
    assert!(written < 4 << 20, "{written} bytes are written");
    kept.until_carried(20);
}

#[test]
fn carriers_when_fds_come_and_go_then_those_that_live_stay_and_nothing_else() {
    let mut kept = Kept::new();
    for kind in [MemoryKind::Memfd, MemoryKind::CudaVmm] {
        let how = How { kind, ..KEEP };
        for index in 0..3 * HOST_FDS_PER_CARRIER {
            kept.put(&[&format!("{kind:?}/{index}")], how);
            if index % 3 != 0 {
                kept.delete(&format!("{kind:?}/{}", index / 2 * 2));
            }
            kept.bench.turn();
        }
    }
    let before = kept.names();
    kept.until_carried(before.len());
    let mut kept = kept.kill();
    assert_eq!(kept.names(), before);
    kept.until_carried(before.len());
}

#[test]
fn kept_when_the_restart_is_planned_then_once_and_still_there_after_a_kill() {
    let mut kept = Kept::new();
    kept.put(&["a"], KEEP);
    kept.put(&["b"], How { keep: false, ..KEEP });
    let before = kept.names();
    let parcel = kept.bench.server.pack(Way::Store).unwrap();
    kept.bench.server.leave_places();
    let mut kept = kept.kill_with(|mut inherited| {
        (inherited.ledger, inherited.carriers) = (Some(parcel.ledger), parcel.carriers);
        inherited
    });
    assert_eq!(kept.names(), before);
    kept.until_carried(1);
    kept.put(&["c"], KEEP);
    let kept = kept.kill();
    assert_eq!(kept.names().into_keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn kept_when_the_table_of_a_planned_restart_is_lost_then_it_is_made_anew() {
    let mut kept = Kept::new();
    kept.put(&["a"], KEEP);
    let before = kept.names();
    let parcel = kept.bench.server.pack(Way::Store).unwrap();
    kept.bench.server.leave_places();
    kept.store.hear();
    kept.store.stored.retain(|(name, _)| name == names::KEPT_LOG);
    kept.store.stored[0].1 = Log::create(4096).unwrap().as_fd().try_clone_to_owned().unwrap();
    let kept = kept.kill_with(|mut inherited| {
        (inherited.ledger, inherited.carriers) = (Some(parcel.ledger), parcel.carriers);
        inherited
    });
    assert_eq!(kept.names(), before);
    assert_eq!(kept.kill().names(), before);
}

/// The names that a store has without anything of no use, where nothing is kept but objects.
fn assert_of_use(store: &Store, doubles: &[&str]) {
    let mut names: Vec<&str> = store.stored.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "none is there twice: {names:?}");
    let is_end = |name: &str| name.starts_with('o') && name.ends_with(['0', '1']);
    assert!(names.iter().all(|name| *name == names::KEPT_LOG || is_end(name)), "{names:?}");
    assert!(doubles.iter().all(|double| !names.contains(double)), "{names:?}");
}

#[test]
fn store_when_carriers_cannot_be_read_or_names_are_unknown_or_double_then_they_leave_and_nothing_kept_is_lost()
 {
    let mut kept = Kept::new();
    kept.put(&["a"], KEEP);
    kept.put(&["b"], KEEP);
    let before = kept.names();
    let mut carriers: Vec<String> = Vec::new();
    for round in 0..3 {
        let mut add = |name: &str, fd: OwnedFd| kept.store.stored.push((name.to_owned(), fd));
        // A pair that is none, and an end alone.
        let number = 1000 + round;
        add(&format!("o{number}.0"), memfd());
        add(&format!("o{number}.1"), memfd());
        add(&format!("o{}.1", number + 500), memfd());
        add("k77.3", memfd());
        add("stored", memfd());
        add("of a newer broker", memfd());
        kept.store.hear();
        // A later file under each name of use; systemd hands it out first.
        let is_carrier = |name: &str| name.starts_with('o') && name != names::KEPT_LOG;
        let in_use: Vec<String> = kept.store.stored.iter().map(|(name, _)| name.clone()).collect();
        carriers = in_use.into_iter().filter(|name| is_carrier(name)).collect();
        let doubles = carriers.iter().map(|name| (name.clone(), memfd()));
        let doubles: Vec<_> = doubles.chain([(names::KEPT_LOG.to_owned(), memfd())]).collect();
        kept.store.stored.splice(0..0, doubles);
        kept = kept.kill();
        assert_eq!(kept.names(), before, "round {round}");
        kept.until_told();
        assert_of_use(&kept.store, &carriers.iter().map(String::as_str).collect::<Vec<_>>());
        kept.until_carried(2);
    }
    assert!(!carriers.is_empty());
    assert_eq!(kept.kill().names(), before);
}

#[test]
fn store_when_its_log_is_no_memfd_then_it_is_closed_by_a_lane_and_another_takes_its_place() {
    let mut kept = Kept::new();
    kept.put(&["a"], KEEP);
    let (socket, _other) = fdbroker_scm::seqpacket_pair().unwrap();
    kept.store.stored.retain(|(name, _)| name != names::KEPT_LOG);
    kept.store.stored.push((names::KEPT_LOG.to_owned(), socket));
    let mut kept = kept.kill();
    assert!(kept.names().is_empty());
    kept.until_carried(0);
    kept.until_told();
    assert_of_use(&kept.store, &[]);
    kept.put(&["a"], KEEP);
    assert_eq!(kept.kill().names().len(), 1);
}

#[test]
fn keep_when_there_is_no_store_then_it_ends_with_the_broker() {
    let mut bench = Bench::new(&[]);
    let peers = bench.client();
    assert!(!bench.server.kept.is_there());
    let (_, its) = Manager::pair();
    let store = Store { its, stored: Vec::new(), entries: 0, messages: 0 };
    let client = newest_client(&bench);
    let mut kept = Kept { bench, store, entries: 0, is_stuck: false, client, peers, pods: None };
    kept.put(&["a"], KEEP);
    assert_eq!(kept.names().len(), 1);
    let Kept { bench: Bench { server, dir, .. }, .. } = kept;
    drop(server);
    let mut bench =
        Bench::in_directory(dir, &[], KernelFeatures::ALL, calls(), Inherited::default());
    let _peers = bench.client();
    let core = &bench.server.core;
    assert_eq!(
        core.names_for(newest_client(&bench), false, b"", b"").unwrap().flat_map(|it| it.1).count(),
        0
    );
}
