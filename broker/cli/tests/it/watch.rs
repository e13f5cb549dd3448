//! `fdbroker watch` over the end of its broker: taken over by another, killed and started again,
//! gone for good.

use crate::common::{Running, TestDir, end, fdbroker, one_json_line, wait_for};
use fdbroker_client::Client;
use fdbrokerd::limits::MAX_ADMIN_WATCHES;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A place for brokers, one after the other.
struct Place(TestDir);

impl Place {
    fn new(name: &str) -> Self {
        Place(TestDir::new(&format!("watch-{name}")))
    }

    /// Starts one, and waits until it serves.
    fn broker(&self, more: &[&str]) -> Running {
        let mut command = fdbroker(&["broker", "--ready-fd", "1", "--private"]);
        command.arg(self.0.path()).args(more).env_remove("FDBROKER_ADMIN_SOCKET");
        let mut broker = Running::start(command);
        let mut said = [0; 6];
        let ready = broker.0.stdout.as_mut().expect("piped").read_exact(&mut said);
        if ready.is_ok() && &said == b"READY\n" {
            broker
        } else {
            panic!("it does not serve: {}", end(&broker.end()).1)
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fdbroker(arguments);
        command.env("FDBROKER_ADMIN_SOCKET", self.0.path().join("fdbroker-admin/admin.sock"));
        command
    }

    /// Something happens: a client comes and goes.
    fn probe(&self) {
        let socket: PathBuf = self.0.path().join("fdbroker/broker.sock");
        let _ = Client::builder().name("probe").socket(&socket).connect();
    }

    fn incarnation(&self) -> Value {
        let output = self.command(&["status", "--json"]).output().expect("it starts");
        one_json_line(&output)["incarnation"].clone()
    }
}

/// A watcher whose events are read as they come.
struct Watch {
    running: Running,
    events: Receiver<Value>,
}

impl Watch {
    fn start(place: &Place) -> Self {
        Watch::start_with(place, &[])
    }

    fn start_with(place: &Place, more: &[&str]) -> Self {
        let mut running = Running::start(place.command(&[&["watch", "--json"], more].concat()));
        let lines = BufReader::new(running.0.stdout.take().expect("piped")).lines();
        let (tell, events) = channel();
        std::thread::spawn(move || {
            for line in lines {
                let event = serde_json::from_str(&line.expect("readable")).expect("JSON");
                if tell.send(event).is_err() {
                    return;
                }
            }
        });
        Watch { running, events }
    }

    /// The next event of this kind; things happen until it comes.
    fn wait_for(&self, place: &Place, kind: &str) -> Value {
        wait_for(kind, || {
            place.probe();
            self.events.try_iter().find(|event| event["event"] == kind)
        })
    }
}

#[test]
fn watch_when_taken_over_and_killed_then_it_goes_on_and_says_what_may_be_missing() {
    let place = Place::new("over");
    let first = place.broker(&[]);
    let watch = Watch::start(&place);
    watch.wait_for(&place, "connected");
    let before = place.incarnation();

    let second = place.broker(&["--takeover"]);
    assert_eq!(end(&first.end()).0, Some(0), "the first one ends in order");
    let event = watch.wait_for(&place, "reconnected");
    assert_eq!((&event["continued"], &event["broker_pid"]), (&true.into(), &second.pid().into()));
    assert_eq!(event["incarnation"], before);
    assert!(event["gap_seconds"].as_f64().is_some_and(|gap| gap >= 0.0), "{event}");
    // Of this century: seconds since 1970 and nothing else.
    let time = event["time_seconds"].as_f64().expect("a number");
    assert!((1e9..1e10).contains(&time), "{event}");
    watch.wait_for(&place, "connected");

    second.signal("KILL");
    second.end();
    let third = place.broker(&[]);
    let event = watch.wait_for(&place, "reconnected");
    assert_eq!((&event["continued"], &event["broker_pid"]), (&false.into(), &third.pid().into()));
    assert_ne!(event["incarnation"], before);
    watch.wait_for(&place, "connected");

    watch.running.signal("INT");
    assert_eq!(end(&watch.running.end()).0, Some(0));
}

/// Its stderr until `text` is in it.
fn read_until(running: &mut Running, text: &str) -> String {
    let mut said = String::new();
    let mut lines = BufReader::new(running.0.stderr.take().expect("piped"));
    while !said.contains(text) {
        let count = lines.read_line(&mut said).expect("readable");
        assert!(count > 0, "it ended without `{text}`: {said}");
    }
    running.0.stderr = Some(lines.into_inner());
    said
}

/// One for people, which is known to watch.
fn watch_of_people(place: &Place) -> Running {
    let mut watch = Running::start(place.command(&["watch"]));
    let mut lines = BufReader::new(watch.0.stdout.take().expect("piped"));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut line = String::new();
            lines.read_line(&mut line).expect("readable");
            line
        });
        while !first.is_finished() {
            place.probe();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(first.join().expect("no panic").contains("probe"));
    });
    watch.0.stdout = Some(lines.into_inner());
    watch
}

#[test]
fn watch_when_the_broker_is_gone_for_good_then_exit_3_with_cause_and_remedy() {
    let place = Place::new("gone");
    let first = place.broker(&[]);
    let mut watch = watch_of_people(&place);
    let second = place.broker(&["--takeover"]);
    first.end();
    let said = read_until(&mut watch, "is not shown\n");
    assert!(said.contains("has ended; waiting up to 10 s"), "{said}");
    let back =
        format!("watching broker {}, which continues the ledger of the one before", second.pid());
    assert!(said.contains(&back), "{said}");
    second.signal("TERM");
    second.end();
    let (code, stderr) = end(&watch.end());
    assert_eq!(code, Some(3), "{stderr}");
    for text in ["no other has started within 10 s", "No such file", "start it again"] {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}

#[test]
fn watch_when_the_broker_was_stopped_and_its_service_manager_listens_then_it_is_not_started() {
    let place = Place::new("stopped");
    let broker = place.broker(&[]);
    let watch = watch_of_people(&place);
    broker.signal("KILL");
    broker.end();
    // As systemd does for a service that is stopped: whoever connects has it started.
    let path = place.0.path().join("fdbroker-admin/admin.sock");
    std::fs::remove_file(&path).expect("its socket");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let manager = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    bind(manager.as_raw_fd(), &UnixAddr::new(&path).expect("short")).expect("free");
    listen(&manager, Backlog::new(8).expect("small")).expect("listens");
    let (code, stderr) = end(&watch.end());
    assert_eq!(code, Some(3), "{stderr}");
    for text in ["no other has started", "start it again"] {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
    assert_eq!(accept(&manager).map(drop), Err(Errno::EAGAIN), "it was asked for");
}

#[test]
fn watch_when_interrupted_while_it_waits_for_a_broker_then_it_ends_with_0() {
    let place = Place::new("interrupted");
    let broker = place.broker(&[]);
    let mut watch = watch_of_people(&place);
    broker.signal("KILL");
    broker.end();
    read_until(&mut watch, "waiting up to");
    watch.signal("INT");
    let output = watch.end();
    assert_eq!(output.status.code(), Some(0), "{}", end(&output).1);
}

#[test]
fn watch_when_as_many_do_as_may_then_it_says_so_and_commands_are_answered() {
    let place = Place::new("many");
    let broker = place.broker(&[]);
    let watches: Vec<Watch> = (0..MAX_ADMIN_WATCHES).map(|_| Watch::start(&place)).collect();
    for watch in &watches {
        watch.wait_for(&place, "connected");
    }
    let late = place.command(&["watch"]).output().expect("it starts");
    let (code, stderr) = end(&late);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no room for another watcher"), "{stderr}");
    let list = place.command(&["ls"]).output().expect("it starts");
    assert_eq!(end(&list), (Some(0), String::new()));
    let top = place.command(&["top", "--once"]).output().expect("it starts");
    let frame = String::from_utf8_lossy(&top.stdout);
    assert!(frame.contains("no room for another watcher"), "{frame}");
    drop((watches, broker));
}

#[test]
fn watch_when_drained_then_whoever_is_turned_away_is_told_and_counted() {
    let place = Place::new("drained");
    let broker = place.broker(&[]);
    let watch = Watch::start(&place);
    watch.wait_for(&place, "connected");
    let drained = place.command(&["drain", "--wait", "0"]).output().expect("it starts");
    assert_ne!(end(&drained).0, Some(2), "it is asked as it should be");
    let mut demo = place.command(&["demo", "--ranks", "2", "--buffers", "2"]);
    demo.env("FDBROKER_SOCKET", place.0.path().join("fdbroker/broker.sock"));
    let demo = demo.output().expect("it starts");
    assert_ne!(demo.status.code(), Some(0));
    let refusal = watch.wait_for(&place, "refusal");
    assert!(refusal.to_string().contains("SHUTTING_DOWN"), "{refusal}");
    let status = one_json_line(&place.command(&["status", "--json"]).output().expect("it starts"));
    assert!(status["refusals"].as_u64().is_some_and(|count| count > 0), "{status}");
    drop((watch, broker));
}

#[test]
fn watch_when_a_connection_is_refused_then_told_with_its_process_and_counted() {
    // The daemon refuses at the first cap, the core at the second.
    for cap in ["limits.max_clients=1", "caps.node.connections=1"] {
        let place = Place::new("full");
        let broker = place.broker(&["--set", cap]);
        let watch = Watch::start(&place);
        watch.wait_for(&place, "connected");
        let socket = place.0.path().join("fdbroker/broker.sock");
        let connect = || Client::builder().name("only").socket(&socket).connect();
        // The probes must be gone.
        let only = wait_for("a place", || connect().ok());
        let refusals = || {
            let status = place.command(&["status", "--json"]).output().expect("it starts");
            one_json_line(&status)["refusals"].as_u64().expect("a number")
        };
        let before = refusals();
        assert!(connect().is_err());
        assert!(refusals() > before, "{cap}");
        let refusal = watch.wait_for(&place, "refusal");
        assert_eq!(
            (&refusal["pid"], &refusal["client"]),
            (&std::process::id().into(), &Value::Null)
        );
        assert_eq!(refusal["uid"], nix::unistd::getuid().as_raw());
        assert_eq!(
            (&refusal["error"], &refusal["resource"], &refusal["cap"]),
            (&"NO_QUOTA".into(), &"connections".into(), &1.into())
        );
        drop((only, watch, broker));
    }
}

/// The events that a broker has kept.
fn past(place: &Place, more: &[&str]) -> Vec<Value> {
    let arguments = [&["watch", "--since", "all", "--no-follow", "--json"], more].concat();
    let output = place.command(&arguments).output().expect("it starts");
    assert_eq!(end(&output).0, Some(0), "{}", end(&output).1);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a kind")).collect()
}

#[test]
fn watch_since_when_nobody_watched_then_the_past_is_told_and_a_takeover_keeps_it() {
    let place = Place::new("since");
    let first = place.broker(&["--set", "caps.node.connections=1"]);
    assert_eq!(kinds(&past(&place, &[])), ["started"]);
    let socket = place.0.path().join("fdbroker/broker.sock");
    let connect = || Client::builder().name("only").socket(&socket).connect();
    let only = connect().expect("the first");
    assert!(connect().is_err(), "one is the cap");
    drop(only);
    let told = || {
        let events = past(&place, &[]);
        (kinds(&events) == ["started", "connected", "refusal", "gone"]).then_some(events)
    };
    let events = wait_for("the end of the client", told);
    assert_eq!(events[2]["resource"], "connections");
    let of_another = past(&place, &["--filter", "uid:4294967294"]);
    assert_eq!(kinds(&of_another), ["started"], "and of the node");
    // Events are microseconds old, at least.
    let recent = ["watch", "--since", "0s", "--no-follow"];
    let recent = place.command(&recent).output().expect("it starts");
    assert_eq!((end(&recent).0, recent.stdout.len()), (Some(0), 0));

    let second = place.broker(&["--takeover"]);
    assert_eq!(end(&first.end()).0, Some(0), "the first one ends in order");
    let after = past(&place, &[]);
    assert_eq!(after[..4], events);
    assert_eq!(kinds(&after[4..]), ["started"]);

    // A crash loses them, and that is said.
    second.signal("KILL");
    second.end();
    let third = place.broker(&[]);
    assert_eq!(kinds(&past(&place, &[])), ["started"]);
    drop(third);
}

#[test]
fn watch_since_when_it_follows_then_the_past_comes_before_what_happens() {
    let place = Place::new("follow");
    let broker = place.broker(&[]);
    place.probe();
    wait_for("the probe's end", || kinds(&past(&place, &[])).contains(&"gone").then_some(()));
    let watch = Watch::start_with(&place, &["--since", "10m"]);
    let events = wait_for("the past", || {
        place.probe();
        let events: Vec<Value> = watch.events.try_iter().collect();
        (!events.is_empty()).then_some(events)
    });
    assert_eq!(kinds(&events)[..3], ["started", "connected", "gone"]);
    watch.wait_for(&place, "connected");
    let text = ["watch", "--since", "all", "--no-follow"];
    let output = place.command(&text).output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let first = text.lines().next().expect("one at least");
    assert!(first.starts_with("20") && first.ends_with("Z  started"), "a date: {first}");
    for wrong in [&["watch", "--no-follow"][..], &["watch", "--since", "ten"]] {
        let output = place.command(wrong).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    drop((watch, broker));
}
