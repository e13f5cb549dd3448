//! Users that look at what is their own: what their sockets show and refuse, by the bare protocol.
//! Two listeners make two domains of one uid, so that this needs no root; tests/view has real
//! users. Must never depend on time.

use crate::support::admin::{Admin, query, request};
use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, all_seals, memfd};
use crate::support::raw::{Raw, assert_at_end, assert_silent, block_item, receive_from};
use crate::support::wait::{PATIENCE, eventually};
use fdbroker_protocol::admin::{
    AccountRecord, Act, EventKind, EventRecord, Filter, LeaseRecord, LimitsReply, NodeStatus,
    OTHER_OWNER, Page, SetLimit, TombstoneRecord, act_flags,
};
use fdbroker_protocol::message::RegisterItem;
use fdbroker_protocol::{ErrorCode, Handle, Kind, Resource, Scope, Share};
use fdbrokerd::limits::{MAX_VIEWERS_PER_USER, MAX_WATCHES_PER_USER, VIEWER_SLOTS_SCANNED};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// A broker with two listeners, each in a directory of its own.
struct Node(Broker);

impl Node {
    fn start(flags: &[&str]) -> Node {
        Node(Setup::new().listeners(&["a", "b"]).arguments(flags).start())
    }

    fn client(&self, domain: &str) -> Raw {
        Raw::connect(&self.0.dir().join(domain).join("broker.sock"))
    }

    fn viewer(&self, domain: &str) -> Admin {
        Admin::connect(&self.0.dir().join(domain).join("view.sock"))
    }

    fn administrator(&self) -> Admin {
        self.0.admin()
    }
}

fn act(flags: u32) -> Act {
    let (cursor, flags) = (u32::MAX.into(), flags.into());
    Act { cursor, filter: 0.into(), value: 0.into(), flags, reserved: 0.into() }
}

fn slots(viewer: &Admin) -> Vec<u32> {
    viewer.allocations().iter().map(|it| it.slot.get()).collect()
}

/// How many clients, domains, jobs and tombstones there are.
fn counts(viewer: &Admin) -> [usize; 4] {
    let domains = viewer.all::<AccountRecord>(Kind::AdminDomains);
    [viewer.clients().len(), domains.len(), viewer.jobs().len(), viewer.tombstones().len()]
}

/// The events of before.
fn past(viewer: &Admin) -> Vec<EventRecord> {
    let reply = viewer.request(Kind::AdminWatch, &act(act_flags::SINCE));
    assert_eq!(reply.kind(), Kind::AdminEvents);
    viewer.receive().message().items::<EventRecord>().unwrap().to_vec()
}

/// Registers memory that everybody may have who knows its handle.
fn register_for_any(client: &mut Raw) -> Handle {
    let item = RegisterItem { share: Share::Any as u8, ..block_item() };
    let registered = client.register(&[item], &[memfd(c"any", BLOCK_BYTES, all_seals()).as_fd()]);
    assert!(registered[0].status.get().is_ok(), "{}", registered[0].status.get());
    registered[0].handle.get()
}

fn unregister(client: &mut Raw, handle: &Handle) {
    assert!(client.unregister(&[handle.id()])[0].is_ok());
}

#[test]
fn view_when_two_domains_then_each_sees_its_own_records_and_the_administrator_all() {
    let node = Node::start(&[]);
    let (mut one, mut other) = (node.client("a"), node.client("b"));
    one.register_blocks(3);
    let handles = other.register_blocks(5);
    let ended = other.register_blocks(1);
    unregister(&mut other, &ended[0]);
    other.acquire_once(&handles[..2], 1000).grants();

    let (a, b, all) = (node.viewer("a"), node.viewer("b"), node.administrator());
    assert_eq!((slots(&a).len(), slots(&b).len(), slots(&all).len()), (3, 5, 8));
    assert!(slots(&a).iter().all(|slot| !slots(&b).contains(slot)));
    assert_eq!((a.leases().len(), b.leases().len(), all.leases().len()), (0, 2, 2));
    let [a_counts, b_counts, all_counts] = [&a, &b, &all].map(counts);
    assert_eq!((a_counts[0], b_counts[0], all_counts[0]), (1, 1, 2));
    assert_eq!((a_counts[1], b_counts[1], all_counts[1]), (1, 1, 2));
    assert_eq!((a_counts[3], b_counts[3], all_counts[3]), (0, 1, 1));
    for index in 0..4 {
        assert_eq!(a_counts[index] + b_counts[index], all_counts[index]);
    }
}

#[test]
fn view_when_the_other_domain_is_busy_then_the_status_is_the_same_as_without_it() {
    let node = Node::start(&[]);
    let mut one = node.client("a");
    one.register_blocks(2);
    let a = node.viewer("a");
    let before = a.status();
    assert_eq!(before.scope.get(), Scope::Domain as u32);
    let mut other = node.client("b");
    let handles = other.register_blocks(7);
    other.acquire_once(&handles[..1], 1000).grants();
    let after = NodeStatus { uptime_ms: before.uptime_ms, ..a.status() };
    assert_eq!(after, before);
    assert_eq!(after.uses.allocations.now.get(), 2);
    assert_eq!(after.uses.connections.now.get(), 1);
    assert_eq!(after.counters, Default::default());
    let all = node.administrator().status();
    assert_eq!((all.scope.get(), all.uses.allocations.now.get()), (Scope::Node as u32, 9));
}

#[test]
fn view_when_it_names_what_is_of_another_domain_then_the_answer_is_that_of_what_never_was() {
    let node = Node::start(&[]);
    let (mut one, mut other) = (node.client("a"), node.client("b"));
    one.register_blocks(1);
    let handle = other.register_blocks(1)[0];
    other.acquire_once(&[handle], 1000).grants();
    let value = |slot: u32, generation: u32| u64::from(slot) | u64::from(generation) << 32;
    let id = handle.id();
    let job = node.administrator().clients();
    let job = job.iter().map(|it| it.job.get()).find(|job| *job != 0).unwrap_or(77);
    let a = node.viewer("a");
    for kind in [
        Kind::AdminAllocations,
        Kind::AdminLeases,
        Kind::AdminClients,
        Kind::AdminJobs,
        Kind::AdminDomains,
        Kind::AdminObjects,
        Kind::AdminTombstones,
    ] {
        let answer = |filter, value| a.request(kind, &query(filter, value)).bytes;
        let never = answer(Filter::Allocation, value(id.slot, id.generation + 99));
        assert_eq!(answer(Filter::Allocation, value(id.slot, id.generation)), never, "{kind}");
        let unknown = answer(Filter::Job, job ^ 1);
        if matches!(kind, Kind::AdminJobs | Kind::AdminTombstones) {
            // Of a job that both domains have it is told its own part.
            assert_eq!(answer(Filter::Uid, 4_000_000_000), unknown, "{kind}");
        }
        assert_eq!(answer(Filter::Pid, 4_000_000_001), answer(Filter::Pid, 4_000_000_002));
    }
}

#[test]
fn view_when_a_request_acts_then_refused_and_the_connection_goes_on() {
    let gid = nix::unistd::getegid().as_raw();
    let node = Node::start(&["--set", &format!("monitor_group=\"{gid}\"")]);
    let mut one = node.client("a");
    one.register_blocks(1);
    let limits = |viewer: &Admin| {
        let reply = viewer.request(Kind::AdminLimits, &query(Filter::None, 0));
        reply.message().body_as::<LimitsReply>().unwrap().in_force
    };
    let caps = limits(&node.administrator());
    // Both have the group: by the first socket it sees all, and by that of another listener its
    // own.
    for (domain, scope) in [("a", Scope::Node), ("b", Scope::Domain)] {
        let viewer = node.viewer(domain);
        assert_eq!(viewer.status().scope.get(), scope as u32);
        for flags in [0, act_flags::DRY_RUN, act_flags::UNDO] {
            for kind in [Kind::AdminEvict, Kind::AdminRevoke, Kind::AdminDrain] {
                let refused =
                    viewer.request(kind, &Act { cursor: 0.into(), ..act(flags) }).failure();
                assert_eq!(refused.result(), Err(ErrorCode::NotPermitted), "{kind} {flags}");
            }
        }
        for dry_run in [0, 1] {
            let (scope, resource) = (Scope::Node as u8, Resource::Fds as u8);
            let reserved = [0; 5];
            let set = SetLimit { scope, resource, dry_run, reserved, value: 7.into() };
            let refused = viewer.request(Kind::AdminSetLimit, &set).failure();
            assert_eq!(refused.result(), Err(ErrorCode::NotPermitted));
        }
        for kind in [Kind::AdminTakeover, Kind::AdminTakeoverStep] {
            let refused = viewer.request(kind, &query(Filter::None, 12)).failure();
            assert_eq!(refused.result(), Err(ErrorCode::NotPermitted), "{kind}");
        }
        let metrics = viewer.request(Kind::AdminMetrics, &query(Filter::None, 0));
        assert_eq!(metrics.kind() == Kind::AdminMetricsReply, scope == Scope::Node);
        // A client's requests are none here.
        for kind in [Kind::Hello, Kind::Acquire, Kind::ObjectList, Kind::AdminEvents] {
            let refused = viewer.request(kind, &query(Filter::None, 0)).failure();
            assert_eq!(refused.result(), Err(ErrorCode::NotSupported), "{kind}");
        }
        assert_eq!(viewer.allocations().len(), if scope == Scope::Node { 1 } else { 0 });
        assert_eq!(limits(&viewer), caps);
    }
    assert_eq!(node.administrator().status().draining.get(), 0);
    assert_eq!(node.administrator().allocations().len(), 1);
}

#[test]
fn view_when_memory_is_shared_with_another_domain_then_neither_side_is_named() {
    let node = Node::start(&[]);
    let (mut owner, mut holder) = (node.client("a"), node.client("b"));
    let handle = register_for_any(&mut owner);
    holder.acquire_once(&[handle], 1000).grants();
    let (a, b) = (node.viewer("a"), node.viewer("b"));

    let seen = a.leases();
    assert_eq!(seen.len(), 1);
    let lease = seen[0];
    let named = (lease.pid.get(), lease.uid.get(), lease.client.get(), lease.job.get());
    assert_eq!(named, (0, u32::MAX, u32::MAX, 0));
    assert_eq!(&lease.name, b"another user\0\0\0\0");
    assert_eq!(lease.owner_pid.get(), std::process::id());
    // The holder's pid chooses nothing: it would be known by that.
    let uid = nix::unistd::getuid().as_raw();
    assert_eq!(a.chosen::<LeaseRecord>(Kind::AdminLeases, Filter::Uid, uid.into()).len(), 0);

    let seen = b.leases();
    assert_eq!((seen.len(), seen[0].owner_pid.get()), (1, OTHER_OWNER));
    assert_eq!(seen[0].pid.get(), std::process::id());
    assert_eq!(slots(&b), [0; 0], "it is the owner's");
    let all = node.administrator().leases();
    assert_eq!(
        (all[0].pid.get(), all[0].owner_pid.get()),
        (lease.owner_pid.get(), lease.owner_pid.get())
    );
}

#[test]
fn view_when_others_have_much_then_an_answer_looks_at_few_of_their_records() {
    let node = Node::start(&[]);
    let mut one = node.client("a");
    let mut ended = 0;
    while ended <= VIEWER_SLOTS_SCANNED {
        for handle in one.register_blocks(8) {
            unregister(&mut one, &handle);
            ended += 1;
        }
    }
    let page = |viewer: &Admin| {
        let reply = viewer.request(Kind::AdminTombstones, &query(Filter::Pid, 4_000_000_001));
        let (page, _) = reply.message().head_and_items::<Page, TombstoneRecord>().unwrap();
        (page.next_cursor.get(), page.done.get())
    };
    assert_eq!(page(&node.viewer("b")), (VIEWER_SLOTS_SCANNED, 0));
    assert_eq!(page(&node.administrator()), (0, 1));
}

#[test]
fn view_when_it_watches_then_events_of_its_own_domain_and_of_the_node_alone() {
    let node = Node::start(&[]);
    let mut one = node.client("a");
    let handle = one.register_blocks(1)[0];
    let watching = node.viewer("b");
    assert_eq!(watching.request(Kind::AdminWatch, &act(0)).kind(), Kind::AdminEvents);
    one.acquire_once(&[handle], 1000).grants();
    let mut other = node.client("b");
    other.register_blocks(1);
    let kinds = |events: &[EventRecord]| -> Vec<EventKind> {
        events.iter().map(|it| EventKind::from_number(it.kind.get()).unwrap()).collect()
    };
    let expected = [EventKind::Connected, EventKind::Deposit];
    let mut told = Vec::new();
    while told.len() < expected.len() {
        let reply = watching.receive();
        told.extend(kinds(reply.message().items::<EventRecord>().unwrap()));
    }
    assert_eq!(told, expected);
    let seen = past(&node.viewer("b"));
    let of_others = seen.iter().filter(|it| it.uid.get() != u32::MAX && it.listener.get() != 1);
    assert_eq!(of_others.count(), 0);
    assert_eq!(kinds(&seen), [EventKind::Started, EventKind::Connected, EventKind::Deposit]);
    assert!(past(&node.administrator()).len() > seen.len());
}

#[test]
fn view_when_a_user_has_all_places_then_more_are_told_again_and_idle_ones_give_way() {
    let node = Node::start(&[]);
    let watchers: Vec<_> = (0..MAX_WATCHES_PER_USER).map(|_| node.viewer("a")).collect();
    for watcher in &watchers {
        assert_eq!(watcher.request(Kind::AdminWatch, &act(0)).kind(), Kind::AdminEvents);
    }
    for watcher in &watchers {
        let again = watcher.request(Kind::AdminWatch, &act(act_flags::SINCE));
        assert_eq!(again.failure().result(), Err(ErrorCode::Again));
    }
    let late = node.viewer("a");
    assert_eq!(late.request(Kind::AdminWatch, &act(0)).failure().result(), Err(ErrorCode::Again));
    let rest = MAX_VIEWERS_PER_USER - MAX_WATCHES_PER_USER - 1;
    let others: Vec<_> = (0..rest).map(|_| node.viewer("b")).collect();
    others.iter().for_each(|other| assert_ne!(other.status().pid.get(), 0));
    // The other listener's are the same user's.
    let refused = node.viewer("b");
    assert_eq!(refused.receive().failure().result(), Err(ErrorCode::Again));
    assert_at_end(refused.socket.as_fd());
    assert_eq!(node.administrator().status().scope.get(), Scope::Node as u32);
    eventually("an idle one gives way", || {
        let next = node.viewer("a").socket;
        let asked = request(Kind::AdminStatus, &query(Filter::None, 0));
        fdbroker_scm::send(next.as_fd(), &asked, &[]).is_ok()
            && receive_from(next.as_fd(), PATIENCE)
                .is_ok_and(|it| it.kind() == Kind::AdminStatusReply)
    });
    watchers.iter().for_each(|watcher| assert_silent(watcher.socket.as_fd()));
}

#[test]
fn view_when_a_message_has_fds_or_is_broken_then_its_connection_ends_and_others_go_on() {
    let node = Node::start(&["--without-kernel-features", "pass_rights"]);
    // A pipe ends for its reader when nobody has the other end any more: only root sees the fds of
    // this daemon.
    let (left, fd) = std::io::pipe().unwrap();
    let bad = node.viewer("a");
    let mut bytes = request(Kind::AdminStatus, &query(Filter::None, 0));
    // The header's count of fds.
    bytes[6] = 1;
    fdbroker_scm::send(bad.socket.as_fd(), &bytes, &[fd.as_fd()]).unwrap();
    assert_at_end(bad.socket.as_fd());
    let unread = node.viewer("a");
    fdbroker_scm::send(unread.socket.as_fd(), &bytes, &[fd.as_fd()]).unwrap();
    drop((unread, fd));
    let broken = node.viewer("a");
    fdbroker_scm::send(broken.socket.as_fd(), &[1, 2, 3], &[]).unwrap();
    assert_eq!(broken.receive().failure().result(), Err(ErrorCode::Protocol));
    assert_at_end(broken.socket.as_fd());
    assert_eq!(node.viewer("a").status().scope.get(), Scope::Domain as u32);
    let mut end = [PollFd::new(left.as_fd(), PollFlags::POLLIN)];
    let patience = PollTimeout::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut end, patience), Ok(1), "an fd is left of them");
}

#[test]
fn view_when_the_broker_is_private_then_there_is_no_such_socket() {
    let broker = Broker::start();
    let names: Vec<_> = std::fs::read_dir(broker.socket().parent().unwrap()).unwrap().collect();
    assert_eq!(names.len(), 1);
}
