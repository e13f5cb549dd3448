//! The administrator's queries about jobs, users, caps and times, against a real daemon. Must never
//! depend on time.

use crate::common::{
    Broker, Client, PATIENCE, Socket, acquire_bytes, lease_bytes, memfd_item, register_bytes,
    sealed_memfd,
};
use fdbroker_protocol::admin::{
    AccountRecord, Act, AllocationRecord, ClientRecord, Filter, LeaseRecord, LimitChange, Limits,
    Metrics, NodeStatus, Page, Query, SetLimit,
};
use fdbroker_protocol::message::{RecallItem, SupplyItem};
use fdbroker_protocol::{ErrorCode, Kind, NO_CAP, Resource, Scope, Writer};
use fdbrokerd::limits::{MAX_ADMIN_CONNECTIONS, MAX_ADMIN_WATCHES};
use nix::sys::signal::Signal;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

struct Admin(Socket);

fn question(kind: Kind, filter: Filter, value: u64) -> Vec<u8> {
    let query = Query {
        cursor: 0.into(),
        filter: (filter as u32).into(),
        value: value.into(),
        reserved: 0.into(),
    };
    let mut writer = Writer::new();
    writer.start(kind, 4).push(&query);
    writer.finish(0, 0).to_vec()
}

impl Admin {
    fn of(broker: &Broker) -> Self {
        Admin(Socket::connect(&broker.admin_dir().join("admin.sock")))
    }

    fn ask(&self, kind: Kind, filter: Filter, value: u64) -> crate::common::Reply {
        self.0.send(&question(kind, filter, value), &[]);
        self.0.recv()
    }

    /// The kind of the answer; `None` when none comes.
    fn try_ask(&self, kind: Kind) -> Option<Kind> {
        self.0.send(&question(kind, Filter::None, 0), &[]);
        self.0.try_recv(PATIENCE).ok().map(|reply| reply.kind())
    }

    fn page<R>(&self, kind: Kind, filter: Filter, value: u64) -> Vec<R>
    where
        R: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        let reply = self.ask(kind, filter, value);
        let message = reply.message();
        let (page, records) = message.head_and_items::<Page, R>().expect("a page");
        assert_eq!(page.done.get(), 1);
        records.to_vec()
    }

    fn cap(&self, scope: Scope, resource: Resource) -> u64 {
        let reply = self.ask(Kind::AdminLimits, Filter::None, 0);
        let limits = *reply.message().body_as::<Limits>().expect("limits");
        limits[scope][resource].get()
    }

    fn set(&self, scope: u8, resource: u8, value: u64) -> crate::common::Reply {
        let mut writer = Writer::new();
        let set = SetLimit { scope, resource, dry_run: 0, reserved: [0; 5], value: value.into() };
        writer.start(Kind::AdminSetLimit, 5).push(&set);
        self.0.send(writer.finish(0, 0), &[]);
        self.0.recv()
    }

    /// The numbers of timed grants and of timed recalls.
    fn timed(&self) -> (u64, u64) {
        let reply = self.ask(Kind::AdminMetrics, Filter::None, 0);
        let metrics = *reply.message().body_as::<Metrics>().expect("metrics");
        let count = |histogram: fdbroker_protocol::admin::Histogram| {
            histogram.buckets.iter().map(|bucket| bucket.get()).sum()
        };
        (count(metrics.grant_latency), count(metrics.recall_time))
    }
}

impl Admin {
    /// Asks for the stream of events.
    fn watch(&self) -> crate::common::Reply {
        let act = Act {
            cursor: 0.into(),
            filter: 0.into(),
            value: 0.into(),
            flags: 0.into(),
            reserved: 0.into(),
        };
        let mut writer = Writer::new();
        writer.start(Kind::AdminWatch, 6).push(&act);
        self.0.send(writer.finish(0, 0), &[]);
        self.0.recv()
    }
}

#[test]
fn watch_when_as_many_do_as_may_then_refused_until_one_ends() {
    let broker = Broker::start(&[]);
    let mut watchers: Vec<_> = (0..MAX_ADMIN_WATCHES).map(|_| Admin::of(&broker)).collect();
    watchers.iter().for_each(|it| assert_eq!(it.watch().kind(), Kind::AdminEvents));
    let late = Admin::of(&broker);
    assert_eq!(late.watch().failed().result(), Err(ErrorCode::Again));
    // A watcher may choose again, and a client that may not watch can ask everything else.
    assert_eq!(watchers[0].watch().kind(), Kind::AdminEvents);
    assert_eq!(late.ask(Kind::AdminStatus, Filter::None, 0).kind(), Kind::AdminStatusReply);
    watchers.pop();
    crate::common::eventually("room for a watcher", || late.watch().kind() == Kind::AdminEvents);
}

#[test]
fn command_when_every_place_is_taken_then_the_longest_idle_gives_way_and_watchers_stay() {
    let broker = Broker::start(&[]);
    let watchers: Vec<_> = (0..MAX_ADMIN_WATCHES).map(|_| Admin::of(&broker)).collect();
    watchers.iter().for_each(|it| assert_eq!(it.watch().kind(), Kind::AdminEvents));
    let idle: Vec<_> =
        (MAX_ADMIN_WATCHES..MAX_ADMIN_CONNECTIONS).map(|_| Admin::of(&broker)).collect();
    let status = |admin: &Admin| admin.ask(Kind::AdminStatus, Filter::None, 0).kind();
    idle.iter().for_each(|it| assert_eq!(status(it), Kind::AdminStatusReply));
    assert_eq!(status(&Admin::of(&broker)), Kind::AdminStatusReply);
    idle[0].0.expect_end();
    idle[1..].iter().for_each(|it| it.0.expect_silence());
    watchers.iter().for_each(|it| it.0.expect_silence());
}

/// Asks one query without a pause, on one connection after the other, until told to end: like
/// `fdbroker top`, but faster.
fn ask_for_ever(path: &Path, is_over: &AtomicBool) {
    let bytes = &question(Kind::AdminStatus, Filter::None, 0);
    while !is_over.load(Relaxed) {
        let socket = Socket::connect(path);
        // An error: another connection has its place.
        while !is_over.load(Relaxed)
            && fdbroker_scm::send(socket.0.as_fd(), bytes, &[]).is_ok()
            && socket.try_recv(PATIENCE).is_ok()
        {}
    }
}

#[test]
fn command_when_others_ask_without_a_pause_beside_all_watchers_then_it_is_answered() {
    let broker = Broker::start(&[]);
    let watchers: Vec<_> = (0..MAX_ADMIN_WATCHES).map(|_| Admin::of(&broker)).collect();
    watchers.iter().for_each(|it| assert_eq!(it.watch().kind(), Kind::AdminEvents));
    let (path, is_over) = (broker.admin_dir().join("admin.sock"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // More connections than there are places.
        for _ in 0..MAX_ADMIN_CONNECTIONS {
            scope.spawn(|| ask_for_ever(&path, &is_over));
        }
        let answers: Vec<_> =
            (0..3).map(|_| Admin::of(&broker).try_ask(Kind::AdminStatus)).collect();
        is_over.store(true, Relaxed);
        assert_eq!(answers, [Some(Kind::AdminStatusReply); 3]);
    });
    watchers.iter().for_each(|it| it.0.expect_silence());
}

#[test]
fn command_when_others_do_not_read_their_answers_then_it_is_answered() {
    let broker = Broker::start(&[]);
    let deaf: Vec<_> = (0..MAX_ADMIN_CONNECTIONS).map(|_| Admin::of(&broker)).collect();
    let bytes = &question(Kind::AdminMetrics, Filter::None, 0);
    for admin in &deaf {
        // Sends until the broker reads no more, because nobody reads its answers.
        let limit = Some(Duration::from_millis(100));
        while fdbroker_scm::send_timeout(admin.0.0.as_fd(), bytes, &[], limit).is_ok() {}
    }
    assert_eq!(Admin::of(&broker).try_ask(Kind::AdminStatus), Some(Kind::AdminStatusReply));
}

#[test]
fn set_limit_when_max_clients_bounds_it_then_the_cap_shown_is_the_cap_in_force() {
    let set = ["limits.max_clients=3", "caps.node.connections=9"];
    let mut broker = Broker::start(&["--set", set[0], "--set", set[1]]);
    let admin = Admin::of(&broker);
    let (node, connections) = (Scope::Node, Resource::Connections);
    assert_eq!(admin.cap(node, connections), 3);
    for (asked, in_force) in [(2, 2), (4, 3), (NO_CAP, 3), (1, 1)] {
        let former = admin.cap(node, connections);
        let reply = admin.set(node as u8, connections as u8, asked);
        let change = *reply.message().body_as::<LimitChange>().expect("a change");
        assert_eq!((change.former.get(), change.value.get()), (former, in_force));
        assert_eq!(admin.cap(node, connections), in_force);
    }

    broker.signal(Signal::SIGHUP);
    crate::common::eventually("the configured cap", || admin.cap(node, connections) == 3);
    broker.end();
    let log = broker.stderr();
    assert!(log.contains("limit node.connections 3 -> 3, set by"), "{log}");
    assert!(log.contains("; limits.max_clients bounds it"), "{log}");
}

#[test]
fn set_limit_when_allowed_then_in_force_at_once_and_as_configured_after_a_reload() {
    let mut broker = Broker::start(&["--set", "caps.job.open_leases=7"]);
    let mut client = Client::connect(&broker.socket());
    let handles = client.register_memfds(3);
    let prefixes: Vec<_> = handles.iter().map(|handle| handle.prefix).collect();
    let admin = Admin::of(&broker);
    let (job, leases) = (Scope::Job, Resource::OpenLeases);
    assert_eq!(admin.cap(job, leases), 7);

    let reply = admin.set(job as u8, leases as u8, 2);
    let change = *reply.message().body_as::<LimitChange>().expect("a change");
    assert_eq!((change.former.get(), change.value.get()), (7, 2));
    assert_eq!(admin.cap(job, leases), 2);
    let grants = client.acquire(&prefixes, 0).grants();
    assert_eq!(grants.iter().filter(|grant| grant.status.is_ok()).count(), 2);
    let refused = client.acquire(&prefixes[..1], 0).grants()[0].status;
    assert_eq!((refused.resource, refused.scope), (leases as u8, job as u8));

    for (scope, resource) in
        [(0, leases as u8), (job as u8, Resource::OwnFds as u8), (job as u8, 0)]
    {
        let status = admin.set(scope, resource, 1).failed();
        assert_eq!(status.result(), Err(ErrorCode::NotSupported));
    }

    broker.signal(Signal::SIGHUP);
    crate::common::eventually("the configured cap", || admin.cap(job, leases) == 7);
    broker.end();
    let log = broker.stderr();
    let (pid, uid) = (std::process::id(), nix::unistd::geteuid());
    let line = format!("limit job.open_leases 7 -> 2, set by pid {pid} (uid {uid})");
    assert!(log.contains(&line) && log.contains("set at run time"), "{log}");
}

#[test]
fn reload_when_the_file_is_read_slowly_then_clients_are_served_meanwhile_and_the_last_one_counts() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "").unwrap();
    let broker = Broker::start(&["--config", config.to_str().unwrap()]);
    let admin = Admin::of(&broker);
    let (job, leases) = (Scope::Job, Resource::OpenLeases);
    assert_eq!(admin.cap(job, leases), NO_CAP);

    std::fs::remove_file(&config).unwrap();
    nix::unistd::mkfifo(&config, nix::sys::stat::Mode::S_IRWXU).unwrap();
    broker.signal(Signal::SIGHUP);
    // Open as soon as the broker has opened it.
    let mut slow = std::fs::OpenOptions::new().write(true).open(&config).unwrap();
    Client::connect(&broker.socket()).register_memfds(1);
    std::fs::remove_file(&config).unwrap();
    std::fs::write(&config, "[caps.job]\nopen_leases = 9").unwrap();
    broker.signal(Signal::SIGHUP);
    assert_eq!(admin.cap(job, leases), NO_CAP);

    std::io::Write::write_all(&mut slow, b"[caps.job]\nopen_leases = 7").unwrap();
    drop(slow);
    crate::common::eventually("what the file has now", || admin.cap(job, leases) == 9);
}

#[test]
fn metrics_when_granted_at_once_after_a_wait_and_after_a_recall_then_each_is_timed_once() {
    let flags = ["caps.node.held_fds=4", "limits.base_credits=1", "caps.client.open_leases=1"];
    let flags: Vec<&str> = flags.iter().flat_map(|flag| ["--set", *flag]).collect();
    let broker = Broker::start(&flags);
    let mut owner = Client::connect(&broker.socket());
    let mut consumer = Client::connect(&broker.socket());
    let mut handles = Vec::new();
    for number in 0..4u64 {
        while owner.credits == 0 {
            let id = owner.id();
            let reply = owner.call(&register_bytes(id, &[], 1, 0), &[]);
            owner.credits = reply.registered().0.deposit_credits.get();
        }
        let mut item = memfd_item(4096);
        item.facts.owner_allocation_id = (100 + number).into();
        let fd = sealed_memfd(4096);
        let id = owner.id();
        let reply = owner.call(&register_bytes(id, &[item], 1, 1), &[fd.as_fd()]);
        let (head, registered) = reply.registered();
        owner.credits = head.deposit_credits.get();
        handles.push(registered[0].handle);
    }
    let admin = Admin::of(&broker);
    assert_eq!(admin.timed(), (0, 0));

    let newest = handles[3].prefix;
    let lease = consumer.acquire(&[newest], 0).grants()[0].lease.get();
    assert_eq!(admin.timed(), (1, 0));

    // The cap is full: the first request is refused at once, the second parked until the lease
    // comes back.
    assert!(!consumer.acquire(&[newest], 0).grants()[0].status.is_ok());
    assert_eq!(admin.timed(), (1, 0));
    let id = consumer.id();
    consumer.main.send(&acquire_bytes(id, &[newest], 10_000), &[]);
    consumer.main.send(&lease_bytes(Kind::Release, 0, &[lease]), &[]);
    let lease = consumer.main.recv().grants()[0].lease.get();
    assert_eq!(admin.timed(), (2, 0));
    consumer.main.send(&lease_bytes(Kind::Release, 0, &[lease]), &[]);

    // The broker evicts the oldest.
    let id = consumer.id();
    consumer.main.send(&acquire_bytes(id, &[handles[0].prefix], 10_000), &[]);
    let recall = owner.event.recv();
    let wanted = recall.message().items::<RecallItem>().expect("a recall")[0];
    let supply = SupplyItem {
        facts: wanted.facts,
        slot: wanted.slot,
        generation: wanted.generation,
        code: 0.into(),
        reserved: 0,
    };
    let mut writer = Writer::new();
    writer.start(Kind::Supply, 0).push(&supply);
    owner.event.send(writer.finish(1, 1), &[sealed_memfd(4096).as_fd()]);
    assert!(consumer.main.recv().grants()[0].status.is_ok());
    assert_eq!(admin.timed(), (3, 1));
}

#[test]
fn jobs_when_a_client_is_of_one_then_named_charged_and_filtered_by() {
    let broker = Broker::start(&["--set", "caps.job.open_leases=7"]);
    let mut client = Client::connect(&broker.socket());
    let handles = client.register_memfds(5);
    let prefixes: Vec<_> = handles[..3].iter().map(|handle| handle.prefix).collect();
    let _grants = client.acquire(&prefixes, 0);
    let admin = Admin::of(&broker);

    // This test runs in one cgroup, whichever it is.
    let jobs: Vec<AccountRecord> = admin.page(Kind::AdminJobs, Filter::None, 0);
    let [job] = jobs[..] else { panic!("{} jobs", jobs.len()) };
    assert_ne!(job.key.get(), 0);
    assert_eq!(job.uid.get(), nix::unistd::geteuid().as_raw());
    assert_eq!(
        (
            job.uses.connections.now.get(),
            job.uses.allocations.now.get(),
            job.uses.allocations.peak.get()
        ),
        (1, 5, 5)
    );
    assert_eq!((job.uses.open_leases.now.get(), job.uses.open_leases.cap.get()), (3, 7));

    let domains: Vec<AccountRecord> = admin.page(Kind::AdminDomains, Filter::None, 0);
    assert_eq!((domains.len(), domains[0].key.get(), domains[0].name[0]), (1, 0, 0));
    assert_eq!((domains[0].uid, domains[0].uses.allocations.now.get()), (job.uid, 5));

    let key = job.key.get();
    let clients: Vec<ClientRecord> = admin.page(Kind::AdminClients, Filter::Job, key);
    assert_eq!((clients.len(), clients[0].job, clients[0].job_name), (1, job.key, job.name));
    let leases: Vec<LeaseRecord> = admin.page(Kind::AdminLeases, Filter::Job, key);
    assert_eq!((leases.len(), leases[0].job, leases[0].job_name), (3, job.key, job.name));
    let allocations: Vec<AllocationRecord> = admin.page(Kind::AdminAllocations, Filter::Job, key);
    assert_eq!((allocations.len(), allocations[0].job), (5, job.key));
    assert_eq!(allocations[0].job_name, job.name);

    for kind in [Kind::AdminJobs, Kind::AdminDomains] {
        let of_none: Vec<AccountRecord> = admin.page(kind, Filter::Job, key ^ 1);
        assert!(of_none.is_empty());
    }
    let of_none: Vec<ClientRecord> = admin.page(Kind::AdminClients, Filter::Job, key ^ 1);
    assert!(of_none.is_empty());
    let of_uid: Vec<AccountRecord> = admin.page(Kind::AdminJobs, Filter::Uid, job.uid.get().into());
    assert_eq!(of_uid, jobs);

    let reply = admin.ask(Kind::AdminStatus, Filter::None, 0);
    let status = *reply.message().body_as::<NodeStatus>().expect("a status");
    assert_eq!((status.gauges.jobs.get(), status.uses.kept_allocations.now.get()), (1, 0));
}
