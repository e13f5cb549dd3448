//! What the daemon's log and its counts say afterwards: refusals, silent owners, evictions, closes
//! that hang. Lines are few, however often it happens, and a pid is told to its own domain alone.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::fuse::HungFile;
use crate::support::fuse_server::why_not;
use crate::support::memory::Blocks;
use crate::support::owner::Owner;
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Client, ErrorCode, Handle, Share};
use fdbroker_protocol::admin::Journal;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// Each is a domain, whoever comes by it. The first is the one that owners use.
const LISTENERS: [&str; 2] = ["fdbroker", "second"];

/// More than lines of one topic in two minutes.
const MANY: usize = 30;

/// Most lines of one topic: a minute may end during the test.
const MOST_LINES: usize = 16;

fn journal(broker: &Broker) -> Journal {
    broker.admin().metrics().journal
}

fn lines_with(broker: &Broker, words: &str) -> Vec<String> {
    broker.log().lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
}

/// An owner in this process that does not answer recalls until the other value is dropped; two
/// blocks of it for everybody, the first evicted.
fn silent_owner(broker: &Broker, blocks: &Blocks) -> (Client, Sender<()>, Handle) {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let answer = move |_: &_| {
        let _ = wait.lock().expect("one thread waits").recv();
        Err(ErrorCode::NotSupported)
    };
    let client = broker.builder("owner").own_fds(2).on_recall(answer).connect();
    let client = client.expect("connect");
    let deposits = [0, 1].map(|index| blocks.deposit(index).share(Share::Any));
    let export = |index: usize| Ok(blocks.export(index));
    let registered = client.register_with(&deposits, export, patience()).expect("connected");
    let handle = registered[0].as_ref().expect("registered").handle;
    (client, release, handle)
}

#[test]
fn refusals_when_many_then_a_few_lines_name_cap_asker_and_holder_and_all_are_counted_by_cap() {
    let broker = Setup::new().config("[caps.client]\nallocations = 1").start();
    let blocks = Blocks::new(2);
    let builder = broker.builder("asker").own_fds(2).on_recall(|_| Err(ErrorCode::NotSupported));
    let client = builder.connect().expect("connect");
    let register = |index: usize| {
        let export = |_: usize| Ok(blocks.export(index));
        let deposits = [blocks.deposit(index)];
        client.register_with(&deposits, export, patience()).expect("connected").remove(0)
    };
    let _first = register(0).expect("within the cap");
    for _ in 0..MANY {
        assert_eq!(register(1).expect_err("one too many").code, ErrorCode::NoQuota);
    }
    let pid = std::process::id();
    let said = format!("pid {pid} (uid {}) is refused: NO_QUOTA", nix::unistd::getuid());
    eventually("the log is written", || !lines_with(&broker, &said).is_empty());
    let journal = journal(&broker);
    assert_eq!(journal.refusals.client.allocations.get(), MANY as u64);
    let left_out = usize::try_from(journal.lines_left_out.refusals.get()).expect("few");
    eventually("each is a line or left out", || {
        lines_with(&broker, &said).len() + left_out == MANY
    });
    let lines = lines_with(&broker, &said);
    assert!(lines.len() <= MOST_LINES, "{lines:?}");
    let holder = format!("the client cap allocations = 1 is full, most of it held by pid {pid}");
    assert!(lines[0].contains(&holder), "{lines:?}");
}

#[test]
fn owner_when_silent_then_its_domain_alone_is_told_its_pid_and_the_log_names_it() {
    let lines = "[caps.node]\nheld_fds = 1\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 50";
    let broker = Setup::new().config(lines).listeners(&LISTENERS).start();
    let connect = |name: &str| {
        let socket = broker.dir().join(name).join("broker.sock");
        Client::builder().name("consumer").socket(socket).connect().expect("connect")
    };
    let blocks = Arc::new(Blocks::new(2));
    let (owner, release, handle) = silent_owner(&broker, &blocks);
    let pid_told_to = |client: &Client| {
        let error = client.acquire(&handle, patience()).expect_err("a grant");
        assert_eq!(error.code, ErrorCode::OwnerSilent, "{error}");
        let pid = error.status.expect("from the broker").pid;
        assert_eq!(error.to_string().contains("the owner is pid"), pid != 0, "{error}");
        pid
    };
    let [own, other] = LISTENERS.map(connect);
    // At the time-out, and while it is silent.
    assert_eq!(pid_told_to(&other), 0);
    assert_eq!(pid_told_to(&own), std::process::id());
    assert_eq!(pid_told_to(&other), 0);
    let said = format!("pid {} (uid ", std::process::id());
    eventually("the log is written", || {
        let lines = lines_with(&broker, "has not answered a recall in time");
        lines.first().is_some_and(|line| line.contains(&said))
    });
    eventually("the eviction is said", || !lines_with(&broker, "it can be recalled").is_empty());
    drop((release, owner, own, other));
}

#[test]
fn evictions_when_many_then_a_line_a_minute_and_the_others_are_counted() {
    let lines = "[caps.node]\nheld_fds = 1\n[limits]\nbase_credits = 0";
    let broker = Setup::new().config(lines).start();
    let _owner = Owner::of(&broker, "owner", MANY);
    let evictions = broker.status().counters.evictions.get();
    assert!(evictions >= 2, "{evictions}");
    let left_out = journal(&broker).lines_left_out.evictions.get();
    eventually("each is a line or left out", || {
        lines_with(&broker, "it can be recalled").len() as u64 + left_out == evictions
    });
    let said = lines_with(&broker, "it can be recalled");
    assert!((1..=2).contains(&said.len()), "a minute may end meanwhile: {said:?}");
}

#[test]
fn close_when_it_hangs_then_said_once_and_counted() {
    const NAME: &str = "close_when_it_hangs_then_said_once_and_counted";
    if let Some(reason) = why_not() {
        return not_run(NAME, reason);
    }
    let broker = Broker::start();
    let mut hung = HungFile::new(broker.dir(), &broker.socket());
    assert_eq!(journal(&broker).hangs.get(), 0);
    assert!(hung.deposit().contains("UNSUPPORTED_FD"));
    eventually("the log tells of it", || {
        !lines_with(&broker, "the close of an fd that was refused of uid ").is_empty()
    });
    assert_eq!(journal(&broker).hangs.get(), 1);
    hung.server.kill();
}
