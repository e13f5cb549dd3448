//! Watchers: told of everything that happens to names with their prefix, in order; one that does
//! not read loses events, is told how many, and holds nobody up.

use super::maker::{EVICTABLE, KEEP, REPLACE, refused, zeros};
use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, New, News, flags, seal_memory};
use crate::support::peer::Peer;
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::object::ObjectEvent::{Aborted, Deleted, Lost, Replaced, Sealed};
use fdbroker_protocol::{ErrorCode, Status};

#[test]
fn watch_when_names_with_the_prefix_change_then_each_change_is_told_in_order() {
    let broker = Broker::start();
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("m/", 0), Status::OK);
    let mut client = Raw::connect(&broker.socket());
    client.put_bytes("other", b"x", 0);
    let first = client.put_group(&[("m/a", b"x"), ("m/b", b"x")], 0).expect("made");
    let second = client.put_bytes("m/a", b"y", REPLACE);
    let (group, _memfd) = client.begin(&[("m/c", b"x")], 0).expect("begun");
    assert!(client.abort(group).is_ok());
    assert!(client.delete(&["m/a", "m/b", "other"]).iter().all(Status::is_ok));
    let events = watcher.events_until(Deleted, "m/b");
    assert!(events.iter().all(|(_, _, name)| name.starts_with("m/")), "{events:?}");
    let of = |name: &str| -> Vec<_> {
        events.iter().filter(|it| it.2 == name).map(|it| (it.0, it.1)).collect()
    };
    assert_eq!(of("m/b"), [(Sealed, first), (Deleted, first)]);
    assert_eq!(of("m/c"), [(Aborted, 0)]);
    let of_a = of("m/a");
    assert_eq!(of_a, [(Sealed, first), (Replaced, second), (Deleted, second)]);
}

#[test]
fn watch_when_the_time_is_over_or_the_maker_is_killed_then_told() {
    let broker = Broker::start();
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("", 0), Status::OK);
    let mut maker = Peer::start("maker");
    maker.ask(&format!("connect {}", broker.socket().display()));
    maker.ask("put sealed text 0").parse::<u64>().expect("a version");
    assert_eq!(maker.ask("begin half text 0"), "OK");
    maker.kill();
    let events = watcher.events_until(Deleted, "sealed");
    assert!(events.iter().any(|it| it.0 == Sealed && it.2 == "sealed"));
    let is_aborted = |events: &[News]| events.iter().any(|it| it.0 == Aborted && it.2 == "half");
    if !is_aborted(&events) {
        watcher.events_until(Aborted, "half");
    }
    drop(watcher);
    broker.assert_nothing_left();
}

#[test]
fn watch_when_the_watcher_does_not_read_then_it_is_told_how_many_were_lost_and_others_are_served() {
    let broker = Broker::start();
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("", 0), Status::OK);
    let mut reader = Raw::connect(&broker.socket());
    assert_eq!(reader.watch("", 0), Status::OK);
    let mut client = Raw::connect(&broker.socket());
    let names: Vec<String> = (0..50).map(|at| format!("{at:02}{}", "n".repeat(200))).collect();
    let group: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    let (mut made, mut seen) = (0_u64, 0_u64);
    // Far more than sockets hold. The other watcher reads, and gets all of it.
    for _ in 0..200 {
        client.put_group(&group, 0).expect("a client is served whoever watches");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(client.delete(&names).iter().all(Status::is_ok));
        made += 2 * names.len() as u64;
        while seen < made {
            let events = reader.next_news();
            assert!(events.iter().all(|it| it.0 != Lost), "it reads");
            seen += events.len() as u64;
        }
    }
    let (mut got, mut lost) = (0_u64, 0_u64);
    while got + lost < made {
        for (event, version, name) in watcher.next_news() {
            match event {
                Lost => {
                    assert_eq!(name, "");
                    lost += version;
                }
                _ => got += 1,
            }
        }
    }
    assert!(lost > 0, "it has not read, and so lost some");
    assert_eq!(got + lost, made, "what was lost is counted");
    assert_eq!(watcher.stat(&["x"]).len(), 1, "it is served further");
}

#[test]
fn watch_when_kept_for_a_short_time_then_it_ends_with_that_time_and_use_counts_anew() {
    let setup = Setup::new().config("[limits]\nobject_ttl_ms = 600000");
    let broker = setup.start();
    let mut watcher = Raw::connect(&broker.socket());
    assert_eq!(watcher.watch("", 0), Status::OK);
    let mut maker = Raw::connect(&broker.socket());
    let memfd = zeros(1);
    let new = [New::named("short", 1)];
    let group = maker
        .create(&memfd, &Group { size: 1, ttl_ms: 100, ..flags(KEEP | EVICTABLE) }, &new)
        .expect("begun");
    seal_memory(&memfd);
    maker.seal(group).expect("sealed");
    drop(memfd);
    watcher.events_until(Deleted, "short");
    assert_eq!(refused(watcher.get(&["short"])), ErrorCode::NotFound);
    eventually("nothing is kept", || broker.status().uses.kept_bytes.now.get() == 0);
    maker.put_bytes("long", b"x", KEEP);
    let left = maker.stat(&["long"])[0].record.ttl_left_ms.get();
    assert!((60_001..=600_000).contains(&left), "{left}: as long as the broker allows objects");
    assert_eq!(maker.touch(&["long"], KEEP, 5_000_000), Ok(vec![Status::OK]));
    assert!(maker.stat(&["long"])[0].record.ttl_left_ms.get() <= 600_000, "and no longer");
    assert!(maker.delete(&["long"])[0].is_ok());
    drop((maker, watcher));
    broker.assert_nothing_left();
}
