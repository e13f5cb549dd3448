//! The administrator's queries about jobs, users, caps and times, against a real daemon. Must never
//! depend on time.

use crate::support::admin::{Admin, query, request};
use crate::support::broker::{Broker, Setup, lanes};
use crate::support::memory::{BLOCK_BYTES, all_seals, memfd};
use crate::support::raw::{
    Incoming, Raw, assert_at_end, assert_silent, block_item, open, receive_from,
};
use crate::support::wait::{PATIENCE, eventually};
use fdbroker_protocol::admin::{
    AccountRecord, Act, AllocationRecord, ClientRecord, Filter, Histogram, LeaseRecord,
    LimitChange, LimitsReply, SetLimit,
};
use fdbroker_protocol::message::{RecallItem, SupplyItem};
use fdbroker_protocol::{ErrorCode, Kind, NO_CAP, Resource, Scope, Writer};
use fdbrokerd::limits::{MAX_ADMIN_CONNECTIONS, MAX_ADMIN_WATCHES};
use nix::sys::signal::{Signal, kill};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use zerocopy::FromZeros;

impl Admin {
    /// The kind of the answer; `None` when none comes.
    fn try_ask(&self, kind: Kind) -> Option<Kind> {
        let bytes = request(kind, &query(Filter::None, 0));
        fdbroker_scm::send_timeout(self.socket.as_fd(), &bytes, &[], Some(PATIENCE)).ok()?;
        receive_from(self.socket.as_fd(), PATIENCE).ok().map(|reply| reply.kind())
    }

    fn cap(&self, scope: Scope, resource: Resource) -> u64 {
        let reply = self.ask(Kind::AdminLimits, 0);
        let limits = reply.message().body_as::<LimitsReply>().expect("limits").in_force;
        limits[scope][resource].get()
    }

    fn set(&self, scope: u8, resource: u8, value: u64) -> Incoming {
        let set = SetLimit { scope, resource, dry_run: 0, reserved: [0; 5], value: value.into() };
        self.request(Kind::AdminSetLimit, &set)
    }

    /// The numbers of timed grants and of timed recalls.
    fn timed(&self) -> (u64, u64) {
        let metrics = self.metrics();
        let count = |histogram: Histogram| histogram.buckets.iter().map(|it| it.get()).sum();
        (count(metrics.grant_latency), count(metrics.recall_time))
    }

    /// Asks for the stream of events.
    fn watch(&self) -> Incoming {
        self.request(Kind::AdminWatch, &Act::new_zeroed())
    }
}

/// So many connections, each of which watches.
fn watchers(broker: &Broker) -> Vec<Admin> {
    let watchers: Vec<_> = (0..MAX_ADMIN_WATCHES).map(|_| broker.admin()).collect();
    watchers.iter().for_each(|it| assert_eq!(it.watch().kind(), Kind::AdminEvents));
    watchers
}

/// A broker with these settings.
fn with_settings(settings: &[&str]) -> Broker {
    let arguments: Vec<&str> = settings.iter().flat_map(|it| ["--set", *it]).collect();
    Setup::new().arguments(&arguments).start()
}

#[test]
fn watch_when_as_many_do_as_may_then_refused_until_one_ends() {
    let broker = Broker::start();
    let mut watchers = watchers(&broker);
    let late = broker.admin();
    assert_eq!(late.watch().failure().result(), Err(ErrorCode::Again));
    // A watcher may choose again, and a client that may not watch can ask everything else.
    assert_eq!(watchers[0].watch().kind(), Kind::AdminEvents);
    assert_eq!(late.ask(Kind::AdminStatus, 0).kind(), Kind::AdminStatusReply);
    watchers.pop();
    eventually("room for a watcher", || late.watch().kind() == Kind::AdminEvents);
}

#[test]
fn command_when_every_place_is_taken_then_the_longest_idle_gives_way_and_watchers_stay() {
    let broker = Broker::start();
    let watchers = watchers(&broker);
    let idle: Vec<_> = (MAX_ADMIN_WATCHES..MAX_ADMIN_CONNECTIONS).map(|_| broker.admin()).collect();
    let status = |admin: &Admin| admin.ask(Kind::AdminStatus, 0).kind();
    idle.iter().for_each(|it| assert_eq!(status(it), Kind::AdminStatusReply));
    assert_eq!(status(&broker.admin()), Kind::AdminStatusReply);
    assert_at_end(idle[0].socket.as_fd());
    idle[1..].iter().for_each(|it| assert_silent(it.socket.as_fd()));
    watchers.iter().for_each(|it| assert_silent(it.socket.as_fd()));
}

/// Asks one query without a pause, on one connection after the other, until told to end: like
/// `fdbroker top`, but faster.
fn ask_for_ever(path: &Path, is_over: &AtomicBool) {
    let bytes = &request(Kind::AdminStatus, &query(Filter::None, 0));
    while !is_over.load(Relaxed) {
        let socket = open(path).expect("connect");
        // An error: another connection has its place.
        while !is_over.load(Relaxed)
            && fdbroker_scm::send(socket.as_fd(), bytes, &[]).is_ok()
            && receive_from(socket.as_fd(), PATIENCE).is_ok()
        {}
    }
}

#[test]
fn command_when_others_ask_without_a_pause_beside_all_watchers_then_it_is_answered() {
    let broker = Broker::start();
    let watchers = watchers(&broker);
    let (path, is_over) = (broker.admin_socket(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // More connections than there are places.
        for _ in 0..MAX_ADMIN_CONNECTIONS {
            scope.spawn(|| ask_for_ever(&path, &is_over));
        }
        let answers: Vec<_> = (0..3).map(|_| broker.admin().try_ask(Kind::AdminStatus)).collect();
        is_over.store(true, Relaxed);
        assert_eq!(answers, [Some(Kind::AdminStatusReply); 3]);
    });
    watchers.iter().for_each(|it| assert_silent(it.socket.as_fd()));
}

#[test]
fn command_when_others_do_not_read_their_answers_then_it_is_answered() {
    let broker = Broker::start();
    let deaf: Vec<_> = (0..MAX_ADMIN_CONNECTIONS).map(|_| broker.admin()).collect();
    let bytes = &request(Kind::AdminMetrics, &query(Filter::None, 0));
    for admin in &deaf {
        // Sends until the broker reads no more, because nobody reads its answers.
        let limit = Some(Duration::from_millis(100));
        while fdbroker_scm::send_timeout(admin.socket.as_fd(), bytes, &[], limit).is_ok() {}
    }
    assert_eq!(broker.admin().try_ask(Kind::AdminStatus), Some(Kind::AdminStatusReply));
}

#[test]
fn set_limit_when_max_clients_bounds_it_then_the_cap_shown_is_the_cap_in_force() {
    let mut broker = with_settings(&["limits.max_clients=3", "caps.node.connections=9"]);
    let admin = broker.admin();
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
    eventually("the configured cap", || admin.cap(node, connections) == 3);
    broker.terminate();
    let log = broker.log();
    assert!(log.contains("limit node.connections 3 -> 3, set by"), "{log}");
    assert!(log.contains("; limits.max_clients bounds it"), "{log}");
}

#[test]
fn set_limit_when_allowed_then_in_force_at_once_and_as_configured_after_a_reload() {
    let mut broker = with_settings(&["caps.job.open_leases=7"]);
    let mut client = Raw::connect(&broker.socket());
    let handles = client.register_blocks(3);
    let admin = broker.admin();
    let (job, leases) = (Scope::Job, Resource::OpenLeases);
    assert_eq!(admin.cap(job, leases), 7);

    let reply = admin.set(job as u8, leases as u8, 2);
    let change = *reply.message().body_as::<LimitChange>().expect("a change");
    assert_eq!((change.former.get(), change.value.get()), (7, 2));
    assert_eq!(admin.cap(job, leases), 2);
    let grants = client.acquire_once(&handles, 0).grants();
    assert_eq!(grants.iter().filter(|grant| grant.status.get().is_ok()).count(), 2);
    let refused = client.acquire_once(&handles[..1], 0).grants()[0].status;
    assert_eq!((refused.resource, refused.scope), (leases as u8, job as u8));

    for (scope, resource) in
        [(0, leases as u8), (job as u8, Resource::OwnFds as u8), (job as u8, 0)]
    {
        let status = admin.set(scope, resource, 1).failure();
        assert_eq!(status.result(), Err(ErrorCode::NotSupported));
    }

    broker.signal(Signal::SIGHUP);
    eventually("the configured cap", || admin.cap(job, leases) == 7);
    broker.terminate();
    let log = broker.log();
    let (pid, uid) = (std::process::id(), nix::unistd::geteuid());
    let line = format!("limit job.open_leases 7 -> 2, set by pid {pid} (uid {uid})");
    assert!(log.contains(&line) && log.contains("set at run time"), "{log}");
}

#[test]
fn reload_when_the_file_is_read_slowly_then_clients_are_served_meanwhile_and_the_last_one_counts() {
    let broker = Broker::start();
    let config = broker.dir().join("config.toml");
    let admin = broker.admin();
    let (job, leases) = (Scope::Job, Resource::OpenLeases);
    let reload = |cap: u64| {
        std::fs::write(&config, format!("[caps.job]\nopen_leases = {cap}")).unwrap();
        broker.signal(Signal::SIGHUP);
    };
    reload(6);
    eventually("a lane that has read it", || admin.cap(job, leases) == 6);
    // As on a disk that does not answer.
    let lanes = lanes(broker.pid());
    lanes.iter().for_each(|lane| kill(*lane, Signal::SIGSTOP).unwrap());
    reload(7);
    assert_eq!(admin.cap(job, leases), 6);
    reload(9);
    assert_eq!(admin.cap(job, leases), 6);
    lanes.iter().for_each(|lane| kill(*lane, Signal::SIGCONT).unwrap());
    eventually("what the file has now", || admin.cap(job, leases) == 9);
}

#[test]
fn reload_when_the_file_is_none_that_ends_then_refused_at_once_and_the_next_one_counts() {
    let broker = Broker::start();
    let config = broker.dir().join("config.toml");
    let admin = broker.admin();
    std::fs::remove_file(&config).unwrap();
    nix::unistd::mkfifo(&config, nix::sys::stat::Mode::S_IRWXU).unwrap();
    broker.signal(Signal::SIGHUP);
    eventually("a refusal", || broker.log().contains("it is no regular file"));
    std::fs::remove_file(&config).unwrap();
    std::fs::write(&config, "[caps.job]\nopen_leases = 9").unwrap();
    broker.signal(Signal::SIGHUP);
    eventually("what the file has now", || admin.cap(Scope::Job, Resource::OpenLeases) == 9);
}

#[test]
fn metrics_when_granted_at_once_after_a_wait_and_after_a_recall_then_each_is_timed_once() {
    let broker = with_settings(&[
        "caps.node.held_fds=4",
        "limits.base_credits=1",
        "caps.client.open_leases=1",
    ]);
    let mut owner = Raw::connect(&broker.socket());
    let mut consumer = Raw::connect(&broker.socket());
    owner.want_credits(1);
    let fd = memfd(c"oldest", BLOCK_BYTES, all_seals());
    let mut handles = vec![owner.register(&[block_item()], &[fd.as_fd()])[0].handle.get()];
    handles.extend((0..3).flat_map(|_| owner.register_blocks(1)));
    let admin = broker.admin();
    assert_eq!(admin.timed(), (0, 0));

    let newest = handles[3];
    let lease = consumer.acquire_once(&[newest], 0).grants()[0].lease.get();
    assert_eq!(admin.timed(), (1, 0));

    // The cap is full: the first request is refused at once, the second parked until the lease
    // comes back.
    assert!(!consumer.acquire_once(&[newest], 0).grants()[0].status.get().is_ok());
    assert_eq!(admin.timed(), (1, 0));
    consumer.start_acquire(&[newest], 10_000);
    consumer.release_one_way(&[lease]);
    let lease = consumer.receive().unwrap().grants()[0].lease.get();
    assert_eq!(admin.timed(), (2, 0));
    consumer.release_one_way(&[lease]);

    // The broker evicts the oldest.
    consumer.start_acquire(&handles[..1], 10_000);
    let recall = owner.receive_event().unwrap();
    let wanted = recall.message().items::<RecallItem>().expect("a recall")[0];
    let (facts, slot, generation) = (wanted.facts, wanted.slot, wanted.generation);
    let supply = SupplyItem { facts, slot, generation, code: 0.into(), reserved: 0 };
    let mut writer = Writer::new();
    writer.start(Kind::Supply, 0).push(&supply);
    fdbroker_scm::send(owner.events(), writer.finish(1, 1), &[fd.as_fd()]).unwrap();
    assert!(consumer.receive().unwrap().grants()[0].status.get().is_ok());
    assert_eq!(admin.timed(), (3, 1));
}

#[test]
fn jobs_when_a_client_is_of_one_then_named_charged_and_filtered_by() {
    let broker = with_settings(&["caps.job.open_leases=7"]);
    let mut client = Raw::connect(&broker.socket());
    let handles = client.register_blocks(5);
    let _grants = client.acquire_once(&handles[..3], 0);
    let admin = broker.admin();

    // This test runs in one cgroup, whichever it is.
    let jobs: Vec<AccountRecord> = admin.chosen(Kind::AdminJobs, Filter::None, 0);
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

    let domains: Vec<AccountRecord> = admin.chosen(Kind::AdminDomains, Filter::None, 0);
    assert_eq!((domains.len(), domains[0].key.get(), domains[0].name[0]), (1, 0, 0));
    assert_eq!((domains[0].uid, domains[0].uses.allocations.now.get()), (job.uid, 5));

    let key = job.key.get();
    let clients: Vec<ClientRecord> = admin.chosen(Kind::AdminClients, Filter::Job, key);
    assert_eq!((clients.len(), clients[0].job, clients[0].job_name), (1, job.key, job.name));
    let leases: Vec<LeaseRecord> = admin.chosen(Kind::AdminLeases, Filter::Job, key);
    assert_eq!((leases.len(), leases[0].job, leases[0].job_name), (3, job.key, job.name));
    let allocations: Vec<AllocationRecord> = admin.chosen(Kind::AdminAllocations, Filter::Job, key);
    assert_eq!((allocations.len(), allocations[0].job), (5, job.key));
    assert_eq!(allocations[0].job_name, job.name);

    for kind in [Kind::AdminJobs, Kind::AdminDomains] {
        let of_none: Vec<AccountRecord> = admin.chosen(kind, Filter::Job, key ^ 1);
        assert!(of_none.is_empty());
    }
    let of_none: Vec<ClientRecord> = admin.chosen(Kind::AdminClients, Filter::Job, key ^ 1);
    assert!(of_none.is_empty());
    let of_uid: Vec<AccountRecord> =
        admin.chosen(Kind::AdminJobs, Filter::Uid, job.uid.get().into());
    assert_eq!(of_uid, jobs);

    let status = admin.status();
    assert_eq!((status.gauges.jobs.get(), status.uses.kept_allocations.now.get()), (1, 0));
}
