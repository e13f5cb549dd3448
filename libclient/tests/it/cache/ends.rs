//! Ended allocations and lost brokers: never a hit, never unmapped under a user, no lease lost.

use super::broker::*;
use crate::support::*;
use fdbroker_client::{Access, Client, ErrorCode, Notice};
use fdbroker_protocol::message::{LeaseItem, RevokedItem};
use fdbroker_protocol::{Kind, Writer};
use std::sync::mpsc::channel;

fn revoke(rig: &Rig, slot: u32, lease: u64) {
    rig.granting.end(slot);
    let item = RevokedItem {
        slot: slot.into(),
        generation: 1.into(),
        lease: lease.into(),
        code: (ErrorCode::Stale as u16).into(),
        reserved: [0; 6],
    };
    let mut writer = Writer::new();
    writer.start(Kind::Revoked, 0).push(&item);
    rig.granting.peer.send_event(writer.finish(1, 0));
}

fn reclaim(granting: &Granting, leases: &[u64]) {
    let mut writer = Writer::new();
    writer.start(Kind::Reclaim, 0);
    for lease in leases {
        writer.push(&LeaseItem { lease: (*lease).into() });
    }
    granting.peer.send_event(writer.finish(leases.len(), 0));
}

#[test]
fn import_when_ended_a_moment_ago_then_stale_and_never_the_old() {
    let rig = rig(unbounded());
    rig.touch(5);
    rig.granting.end(5);
    // No message has told the cache: only the page says so.
    assert!(!rig.has(5));
    assert_eq!(rig.try_import(5).unwrap_err().code, ErrorCode::Stale);
    let stats = rig.cache.stats();
    assert_eq!((stats.stale, stats.entries, stats.evicted), (1, 0, 0));
    rig.granting.until("its lease is back", |log| log.leases.is_empty());
}

#[test]
fn import_when_ended_while_in_use_then_stale_and_the_user_keeps_it() {
    let rig = rig(unbounded());
    let used = rig.import(5);
    rig.granting.end(5);
    assert!(!used.is_current());
    assert_eq!(rig.try_import(5).unwrap_err().code, ErrorCode::Stale);
    assert_bytes(&used, 5);
    assert_eq!((rig.cache.stats().entries, rig.cache.stats().pinned), (1, 1));
    rig.granting.log(|log| assert!(log.released.is_empty(), "given back while in use"));
    drop(used);
    assert_eq!(rig.cache.stats().entries, 0);
    rig.granting.until("its lease is back", |log| log.leases.is_empty());
}

#[test]
fn import_when_the_slot_is_reused_then_the_new_one_and_the_old_stays_with_its_user() {
    let rig = rig(unbounded());
    let old = rig.import(5);
    let mut anew = handle(5).id();
    anew.generation = 2;
    rig.granting.peer.page.set(anew);
    let facts = fdbroker_protocol::Facts::new(fdbroker_client::MemoryKind::Memfd, BYTES as u64);
    let new_handle = fdbroker_protocol::NodeKey::from_bytes([7; 32]).seal(NODE, anew, &facts);
    assert!(rig.cache.hit(&new_handle, Access::Read).is_none());
    let new = rig.cache.import(&new_handle, Access::Read, soon()).unwrap();
    assert_ne!(new.as_ptr(), old.as_ptr());
    assert!(new.is_current() && !old.is_current());
    // An import finds the new allocation while the old one is in use, and afterwards.
    let found = rig.cache.hit(&new_handle, Access::Read).unwrap();
    assert_eq!(found.as_ptr(), new.as_ptr());
    assert!(!rig.has(5));
    assert_bytes(&old, 5);
    drop((old, found));
    assert!(rig.cache.hit(&new_handle, Access::Read).is_some());
    assert_eq!(rig.cache.stats().entries, 1);
    rig.assert_leases_match();
    drop(new);
    assert_eq!(rig.cache.empty(), 1);
    rig.assert_leases_match();
}

#[test]
fn revoked_when_unused_then_given_back_without_a_call() {
    let rig = rig(unbounded());
    rig.touch(5);
    rig.touch(6);
    revoke(&rig, 5, 1);
    rig.granting.until("its lease is back", |log| log.released == [vec![1]]);
    assert_eq!(rig.cached(1..10), [6]);
}

#[test]
fn revoked_when_in_use_then_readable_until_the_last_release_gives_it_back() {
    let (sender, notices) = channel();
    let builder = Client::builder().reconnect(false).on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    let rig = rig_of(builder, unbounded());
    let (one, two) = (rig.import(5), rig.import(5));
    revoke(&rig, 5, 1);
    // The application hears of it after the cache.
    assert!(matches!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Revoked { lease: 1, .. }));
    assert!(!one.is_current());
    drop(one);
    assert_bytes(&two, 5);
    rig.granting.log(|log| assert!(log.released.is_empty(), "given back while in use"));
    drop(two);
    rig.granting.until("its lease is back", |log| log.released == [vec![1]]);
    assert_eq!(rig.cache.stats().entries, 0);
}

#[test]
fn import_when_the_broker_comes_back_then_all_is_a_miss_until_declared_and_then_hits() {
    let (sender, notices) = channel();
    let builder = Client::builder().on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    let Rig { cache, client, granting, mut broker } = rig_of(builder, unbounded());
    let import = |slot| cache.import(&handle(slot), Access::Read, soon());
    let (used, refused) = (import(1).unwrap(), import(3).unwrap());
    (4..6).chain(2..3).for_each(|slot| drop(import(slot).unwrap()));
    broker.stop();
    granting.hang_up();
    assert_eq!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Disconnected);
    assert!(!used.is_current() && cache.hit(&handle(2), Access::Read).is_none());
    assert_eq!(import(2).unwrap_err().code, ErrorCode::NotConnected);
    assert_eq!(cache.stats().entries, 5, "nothing is closed for that");
    broker.start();
    let granting = Granting::silent(broker.accept(Terms::default()));
    // The new broker's page shows all slots alive with the same generations, but nothing is
    // declared yet.
    let hits = (1..6).filter(|slot| cache.hit(&handle(*slot), Access::Read).is_some());
    assert_eq!(hits.count(), 0);
    assert!(!used.is_current() && !client.is_current(used.id()));
    assert_eq!(import(1).unwrap_err().code, ErrorCode::NotConnected);
    (3..5).for_each(|slot| granting.refuse(slot, ErrorCode::NoQuota));
    granting.log_mut(|log| log.next_lease = 100);
    let granting = granting.serve();
    let mut revoked = [(); 2].map(|()| match notices.recv_timeout(PATIENCE).unwrap() {
        Notice::Revoked { id, lease, code: ErrorCode::NoQuota, .. } => (id.slot, lease),
        other => panic!("{other:?}"),
    });
    revoked.sort_unstable();
    assert_eq!(revoked, [(3, 2), (4, 3)], "by the numbers known so far");
    assert!(matches!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Reconnected { .. }));
    granting.log(|log| {
        let all = log.declared.concat();
        let slots: Vec<_> = all.iter().map(|(id, is_open)| (id.slot, *is_open)).collect();
        assert_eq!(slots, [(1, false), (3, false), (4, false), (5, false), (2, false)]);
    });
    let is_hit = |slot| cache.hit(&handle(slot), Access::Read).is_some();
    assert_eq!((1..6).map(is_hit).collect::<Vec<_>>(), [true, true, false, false, true]);
    assert!(used.is_current() && !refused.is_current());
    assert_bytes(&refused, 3);
    assert_eq!(cache.stats().entries, 4, "what was refused and not in use is closed");
    // The broker asks for it, and gets it, under its new number.
    let number =
        |slot| granting.log(|log| *log.leases.iter().find(|(_, id)| id.slot == slot).unwrap().0);
    let (one, five) = (number(1), number(5));
    // The former broker's number of slot 2 was 5.
    reclaim(&granting, &[one, five, 5]);
    granting.until("its lease is back", |log| log.released == [vec![five]]);
    drop((used, refused));
    assert!(is_hit(1) && is_hit(2) && !is_hit(5));
    granting.log(|log| assert!(log.acquires.is_empty() && log.mapped.is_empty()));
    drop((cache, client));
}
