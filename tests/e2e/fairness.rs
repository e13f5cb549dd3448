//! Caps that several share: jobs, domains that take turns, leases that one keeps idle and another
//! needs, caps that are lowered while they are used up.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::assert_bytes;
use crate::support::owner::Owner;
use crate::support::raw::Raw;
use crate::support::wait::{eventually, patience};
use fdbroker_client::{
    Access, CacheSettings, Client, Error, Grant, Handle, ImportCache, Progress, Share,
};
use fdbroker_protocol::{ErrorCode, Resource, Scope};
use nix::sys::signal::{Signal, kill};
use std::path::PathBuf;

/// NO_QUOTA that names this cap and this process as the one that holds most.
#[track_caller]
fn assert_cap(error: &Error, resource: Resource, scope: Scope, cap: u64) {
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let status = error.status.expect("from the broker");
    let named = (status.resource, status.scope, status.cap(), status.pid);
    assert_eq!(named, (resource as u8, scope as u8, Some(cap), std::process::id()), "{error}");
}

/// All processes of a test are in one cgroup, and so in one job.
#[test]
fn acquire_when_the_job_is_at_its_cap_then_no_quota_names_it_and_release_cures_it() {
    let broker = Setup::new().config("[caps.job]\nopen_leases = 2").start();
    let owner = Owner::of(&broker, "owner", 1);
    let clients = [broker.client("one"), broker.client("two"), broker.client("three")];
    let mut grants: Vec<Grant> = clients[..2]
        .iter()
        .map(|client| client.acquire(&owner.handle(0), patience()).expect("below the cap"))
        .collect();
    let error = Raw::connect(&broker.socket()).refusal(&owner.handle(0));
    assert_cap(&error, Resource::OpenLeases, Scope::Job, 2);
    grants.pop();
    let grant = clients[2].acquire(&owner.handle(0), patience()).expect("the second of two");
    drop(assert_bytes(grant, 0));
}

/// The first is where clients look by default.
const LISTENERS: [&str; 2] = ["fdbroker", "second"];

/// A client that came by one of two listeners: of the same user, and of another domain.
fn socket_by(broker: &Broker, listener: &str) -> PathBuf {
    broker.dir().join(listener).join("broker.sock")
}

fn client_by(broker: &Broker, listener: &str, name: &str) -> Client {
    Client::builder().socket(socket_by(broker, listener)).name(name).connect().expect("connect")
}

/// One block that everybody may have.
fn shared_block(broker: &Broker) -> (Owner, Handle) {
    let owner = Owner::with(broker, "owner", 1, |deposit| deposit.share(Share::Any));
    let handle = owner.handle(0);
    (owner, handle)
}

fn parked(broker: &Broker) -> u64 {
    broker.status().uses.parked_requests.now.get()
}

#[test]
fn acquire_when_two_domains_wait_then_they_are_served_in_turn() {
    const EACH: usize = 5;
    let broker = Setup::new().listeners(&LISTENERS).config("[caps.node]\nopen_leases = 1").start();
    let (_owner, handle) = shared_block(&broker);
    let clients = LISTENERS.map(|listener| client_by(&broker, listener, listener));
    let holder = clients[0].acquire(&handle, patience()).expect("the only one");
    let mut waiting = Vec::new();
    for (domain, client) in clients.iter().enumerate() {
        for _ in 0..EACH {
            let request = client.acquire_start(&[handle], patience()).expect("connected");
            waiting.push((domain, request));
            eventually("it waits", || parked(&broker) as usize == waiting.len());
        }
    }
    drop(holder);
    // There is one lease: who has it gives it back before the next is served.
    let mut served = Vec::new();
    while !waiting.is_empty() {
        for (domain, request) in std::mem::take(&mut waiting) {
            match request.test() {
                Progress::UnderWay(request) => waiting.push((domain, request)),
                Progress::Done(mut outcomes) => {
                    drop(outcomes.remove(0).expect("in its turn"));
                    served.push(domain);
                }
            }
        }
    }
    let in_turn: Vec<usize> = (0..2 * EACH).map(|n| n % 2).collect();
    assert!(served == in_turn || served == [&in_turn[1..], &[0]].concat(), "{served:?}");
}

#[test]
fn acquire_when_another_domain_waits_at_its_own_cap_then_not_delayed() {
    let broker =
        Setup::new().listeners(&LISTENERS).config("[caps.domain]\nopen_leases = 1").start();
    let (_owner, handle) = shared_block(&broker);
    let clients = LISTENERS.map(|listener| client_by(&broker, listener, listener));
    let _holder = clients[0].acquire(&handle, patience()).expect("the first of one");
    let waiting: Vec<_> = (0..60)
        .map(|_| clients[0].acquire_start(&[handle], patience()).expect("connected"))
        .collect();
    eventually("all wait", || parked(&broker) as usize == waiting.len());
    for _ in 0..100 {
        drop(assert_bytes(
            clients[1].acquire(&handle, patience()).expect("its domain has room"),
            0,
        ));
    }
    assert_eq!(parked(&broker) as usize, waiting.len());
    let error = Raw::connect(&socket_by(&broker, LISTENERS[0])).refusal(&handle);
    assert_cap(&error, Resource::OpenLeases, Scope::Domain, 1);
    waiting.into_iter().for_each(drop);
}

#[test]
fn acquire_when_an_idle_cache_of_another_has_all_leases_then_it_is_asked_and_gives_them_back() {
    let caps = "[caps.node]\nmapped_leases = 4\nopen_leases = 2";
    let broker = Setup::new().config(caps).start();
    let owner = Owner::of(&broker, "owner", 12);
    let (idle, busy) = (broker.client("idle"), broker.client("busy"));
    let cache = ImportCache::new(&idle, CacheSettings::default());
    for n in 0..6 {
        let import = cache.import(&owner.handle(n), Access::Read, patience());
        drop(import.expect("below the caps, or what was idle went"));
    }
    let mut grants = Vec::new();
    for n in 6..8 {
        grants.push(busy.acquire(&owner.handle(n), patience()).expect("room was made"));
    }
    for (grant, n) in grants.into_iter().zip(6..) {
        drop(assert_bytes(grant, n));
    }
    // What it gave back it imports again.
    let import = cache.import(&owner.handle(0), Access::Read, patience());
    drop(import.expect("room"));
}

#[test]
fn acquire_when_the_cache_of_another_has_leases_in_use_then_no_quota_names_it_until_they_are_not() {
    let caps = "[caps.node]\nmapped_leases = 0\nopen_leases = 2";
    let broker = Setup::new().config(caps).start();
    let owner = Owner::of(&broker, "owner", 3);
    let (user, other) = (broker.client("user"), broker.client("other"));
    let cache = ImportCache::new(&user, CacheSettings::default());
    // No lease may count as mapped: these count as open for as long as they are cached.
    let in_use: Vec<_> = (0..2)
        .map(|n| cache.import(&owner.handle(n), Access::Read, patience()).expect("room"))
        .collect();
    let error = Raw::connect(&broker.socket()).refusal(&owner.handle(2));
    assert_cap(&error, Resource::OpenLeases, Scope::Node, 2);
    drop(in_use);
    drop(assert_bytes(other.acquire(&owner.handle(2), patience()).expect("asked for again"), 2));
}

/// Has the daemon read these lines as its configuration; until it has said so.
fn reload(broker: &Broker, config: &str, said: &str) {
    let before = broker.log().matches("SIGHUP: ").count();
    std::fs::write(broker.dir().join("config.toml"), config).expect("write the config");
    kill(broker.pid(), Signal::SIGHUP).expect("SIGHUP");
    eventually("it has read it", || broker.log().matches("SIGHUP: ").count() > before);
    let log = broker.log();
    let line = log.lines().rfind(|line| line.contains("SIGHUP: ")).unwrap_or_default();
    assert!(line.contains(said), "{line}");
}

#[test]
fn reload_when_caps_are_lowered_then_what_can_go_goes_and_the_rest_as_it_is_given_back() {
    let broker = Setup::new().config("[caps.node]\nfds = 64\n[limits]\nbase_credits = 0").start();
    let owner = Owner::of(&broker, "owner", 10);
    let client = broker.client("holder");
    let mut grants: Vec<Grant> =
        (0..9).map(|n| client.acquire(&owner.handle(n), patience()).expect("room")).collect();
    let lowered = "[caps.node]\nfds = 8\n[limits]\nbase_credits = 0";
    reload(&broker, lowered, "changed: caps.node.fds 64 -> 8");
    eventually("what can go has gone", || broker.status().gauges.stored_fds.get() == 0);
    assert_eq!(broker.status().uses.open_leases.now.get(), 9);
    let error = Raw::connect(&broker.socket()).refusal(&owner.handle(9));
    assert_cap(&error, Resource::Fds, Scope::Node, 8);
    let said = "3 declared by 2 clients for their own memory (own fds) leave 5 for open ones";
    assert!(error.to_string().contains(said), "{error}");
    grants.truncate(1);
    drop(assert_bytes(client.acquire(&owner.handle(9), patience()).expect("below it again"), 9));
    eventually("below its cap", || broker.status().uses.fds.now.get() <= 8);
}

#[test]
fn reload_when_a_key_cannot_change_or_the_file_is_broken_then_the_log_says_so_and_caps_stay() {
    let broker = Setup::new().config("[caps.node]\nfds = 64\n[limits]\nmax_clients = 20").start();
    let config = "[caps.node]\nfds = 63\n[limits]\nmax_clients = 21";
    reload(&broker, config, "a restart is needed for: limits.max_clients 20 -> 21");
    assert_eq!(broker.status().uses.fds.cap.get(), 63);
    reload(&broker, "[caps.node]\nfds = 62\nfsd = 1\n", "nothing is changed: ");
    reload(&broker, "[caps.node]\nfds = \"many\"\n", "nothing is changed: ");
    assert_eq!(broker.status().uses.fds.cap.get(), 63);
    let config = "[caps.node]\nfds = 63\n[limits]\nmax_clients = 20";
    reload(&broker, config, "the configuration is as it was");
    broker.client("still served");
}
