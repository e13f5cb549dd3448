//! The simulated worlds: the configuration of the core, the number of clients, and their manners.
//! Must only hold numbers.

use crate::rng::Rng;
use fdbroker_core::{Caps, Config, SubordinateRange, SubordinateUids, limits};
use fdbroker_protocol::NO_CAP;

/// A world to simulate.
#[derive(Clone, Debug)]
pub struct Setup {
    pub config: Config,
    /// Clients that are connected most of the time.
    pub clients: u32,
    /// Users. Each user on each listener is an isolation domain.
    pub uids: u32,
    pub listeners: u32,
    /// Pods of a uid at a listener; 0: they are not told apart.
    pub pods: u64,
    /// Jobs of each domain; some clients have none.
    pub jobs: u32,
    /// Most items in one message of a well-behaved client.
    pub batch: u64,
    /// Pages of 4 KiB in a client's address range: so few that addresses are used again.
    pub pages: u64,
    /// Most allocations a client wants to own.
    pub owned: usize,
    /// Steps from one full check to the next.
    pub check_every: u64,
    /// Steps from one rest, in which everything must settle, to the next.
    pub rest_every: u64,
    /// Of a thousand clients, how many misbehave.
    pub rogues: u64,
    /// Planned restarts in a thousand acts of clients.
    pub restarts: u64,
    /// Changes of the caps in a thousand acts of clients.
    pub cap_changes: u64,
    /// Acts of the administrator in a thousand acts of clients.
    pub acts: u64,
    /// Of a thousand clients, how many do one thing only.
    pub specialists: u64,
    /// Crashes of the broker in a thousand acts of clients.
    pub crashes: u64,
    /// Of a thousand deposits, how many are of a file that others deposit, too.
    pub files: u64,
}

/// Makes a setup from the usual one.
type Change = fn(&mut Setup, &mut Rng);

/// Every setup by name, in the order in which they run.
const ALL: &[(&str, Change)] = &[
    ("tiny", tiny),
    ("one", one),
    ("mid", mid),
    ("none", |_, _| ()),
    ("bytes", bytes),
    ("files", files),
    ("shares", shares),
    ("jobs", jobs),
    ("slots", slots),
    ("retire", retire),
    ("table", table),
    ("refused", refused),
    ("random", random),
    ("caps", caps_that_change),
    ("ones", ones),
    ("domains", domains),
    ("pods", pods),
    ("only", |setup, _| setup.specialists = 1_000),
    ("heaps", heaps),
    ("large", large),
];

/// The names of all setups, in the order in which they run.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// A table with so many places besides connections and reserve.
fn table_for(clients: u64, places: u64) -> u64 {
    clients * limits::FDS_PER_CONNECTION + limits::TABLE_RESERVE + places
}

fn base() -> Setup {
    let config = Config {
        node: Caps::NONE,
        domain: Caps::NONE,
        job: Caps::NONE,
        client: Caps::NONE,
        table_fds: table_for(12, 4096),
        max_clients: 12,
        max_domains: 8,
        max_parked_per_client: 4,
        max_refused_per_domain: 16,
        max_slots: 256,
        first_generation: 1,
        base_credits: 1,
        max_credits: 8,
        recall_timeout_us: 4_000,
        keep_ttl_us: 50_000,
        object_ttl_us: 50_000,
        grace_us: 20_000,
        share_factor: u64::MAX,
        subordinate_uids: Default::default(),
    };
    Setup {
        config,
        clients: 6,
        uids: 2,
        listeners: 1,
        pods: 0,
        jobs: 0,
        batch: 8,
        pages: 64,
        owned: 12,
        check_every: 1,
        rest_every: 1_500,
        rogues: 350,
        restarts: 4,
        cap_changes: 3,
        acts: 4,
        specialists: 0,
        crashes: 2,
        files: 0,
    }
}

/// Ranges of a few files, deposited by all users, under a cap that makes the broker close and
/// recall them.
fn files(setup: &mut Setup, _: &mut Rng) {
    setup.config.node.held_fds = 24;
    (setup.files, setup.crashes) = (700, 0);
}

/// The setup of that name; `rng` draws what it leaves to chance.
pub fn named(name: &str, rng: &mut Rng) -> Option<Setup> {
    let (_, change) = ALL.iter().find(|(known, _)| *known == name)?;
    let mut setup = base();
    change(&mut setup, rng);
    Some(setup)
}

/// A node of 8 to 12 fds.
fn tiny(setup: &mut Setup, rng: &mut Rng) {
    setup.config.node.fds = rng.between(8, 12);
    setup.config.max_credits = 2;
    setup.clients = 4;
    setup.batch = 4;
}

/// One place in the broker: one held fd, one credit and one recall take it in turns.
fn one(setup: &mut Setup, _: &mut Rng) {
    setup.config.node.held_fds = 1;
    setup.config.base_credits = 0;
    setup.config.max_credits = 1;
    setup.clients = 4;
    setup.batch = 3;
}

fn mid(setup: &mut Setup, _: &mut Rng) {
    setup.config.node = Caps { fds: 64, held_fds: 24, open_leases: 40, ..Caps::NONE };
    setup.config.domain = Caps { fds: 48, held_fds: 20, ..Caps::NONE };
    setup.config.client = Caps { fds: 24, open_leases: 16, ..Caps::NONE };
    setup.clients = 8;
    setup.batch = 12;
}

fn bytes(setup: &mut Setup, _: &mut Rng) {
    setup.config.node.held_bytes = 40 * 4096;
    setup.config.domain.held_bytes = 30 * 4096;
    setup.config.client.held_bytes = 16 * 4096;
}

fn shares(setup: &mut Setup, _: &mut Rng) {
    setup.config.share_factor = 8;
    setup.config.node = Caps { fds: 40, ..Caps::NONE };
    setup.config.domain = Caps {
        fds: 18,
        held_fds: 9,
        open_leases: 9,
        mapped_leases: 9,
        allocations: 24,
        ..Caps::NONE
    };
    setup.config.client = Caps {
        fds: 9,
        held_fds: 5,
        open_leases: 4,
        mapped_leases: 4,
        allocations: 8,
        ..Caps::NONE
    };
    setup.uids = 3;
    setup.listeners = 2;
    setup.clients = 9;
    setup.config.subordinate_uids = first_two_are_one_user();
}

/// The second uid is the first one's.
fn first_two_are_one_user() -> SubordinateUids {
    SubordinateUids::new(vec![SubordinateRange { first: 1001, count: 1, user: Some(1000) }])
}

/// Caps of jobs that are reached more often than those of clients, domains and the node.
fn jobs(setup: &mut Setup, _: &mut Rng) {
    setup.config.node = Caps { fds: 48, open_leases: 24, ..Caps::NONE };
    setup.config.domain = Caps { fds: 36, open_leases: 18, held_fds: 14, ..Caps::NONE };
    setup.config.job = Caps {
        fds: 12,
        held_fds: 6,
        held_bytes: 20 * 4096,
        open_leases: 5,
        mapped_leases: 6,
        allocations: 14,
        ..Caps::NONE
    };
    setup.uids = 2;
    setup.jobs = 2;
    setup.clients = 9;
}

fn slots(setup: &mut Setup, _: &mut Rng) {
    setup.config.max_slots = 6;
    setup.config.node.held_fds = 5;
    setup.config.max_credits = 3;
    setup.clients = 4;
}

/// Each slot is retired after three allocations.
fn retire(setup: &mut Setup, _: &mut Rng) {
    setup.config.max_slots = 64;
    setup.config.first_generation = u32::MAX - 4;
    setup.config.node.held_fds = 20;
    setup.rest_every = 500;
}

fn table(setup: &mut Setup, _: &mut Rng) {
    setup.config.share_factor = 8;
    setup.config.table_fds = table_for(5, 10);
    setup.clients = 5;
    setup.config.max_clients = 6;
    setup.uids = 3;
    setup.config.subordinate_uids = first_two_are_one_user();
}

/// Little room for clients, domains, parked requests and refused fds.
fn refused(setup: &mut Setup, _: &mut Rng) {
    setup.config.max_clients = 4;
    setup.config.max_domains = 2;
    setup.config.max_parked_per_client = 1;
    setup.config.max_refused_per_domain = 2;
    setup.config.node.held_fds = 10;
    setup.uids = 3;
    setup.clients = 6;
    setup.rogues = 600;
}

fn random(setup: &mut Setup, rng: &mut Rng) {
    let cap = |rng: &mut Rng, low: u64, high: u64| {
        if rng.chance(500) { u64::MAX } else { low + rng.skewed(0, high) }
    };
    let caps = |rng: &mut Rng| Caps {
        fds: cap(rng, 8, 64),
        held_fds: cap(rng, 2, 32),
        held_bytes: cap(rng, 8 * 4096, 64 * 4096),
        open_leases: cap(rng, 1, 32),
        mapped_leases: cap(rng, 1, 32),
        allocations: cap(rng, 2, 64),
        connections: cap(rng, 1, 8),
        kept_allocations: cap(rng, 0, 6),
        ..Caps::NONE
    };
    setup.config.node = caps(rng);
    setup.config.domain = caps(rng);
    setup.config.client = Caps { connections: NO_CAP, ..caps(rng) };
    setup.config.job = caps(rng);
    setup.jobs = rng.below(3) as u32;
    setup.config.table_fds = table_for(rng.between(3, 12), rng.between(8, 64));
    setup.config.base_credits = rng.below(3) as u32;
    setup.config.max_credits = setup.config.base_credits.max(1) + rng.skewed(0, 40) as u32;
    setup.config.max_parked_per_client = rng.between(1, 6) as u32;
    setup.config.max_slots = rng.between(4, 100) as u32;
    setup.config.recall_timeout_us = rng.between(200, 10_000);
    setup.clients = rng.between(2, 10) as u32;
    setup.uids = rng.between(1, 3) as u32;
    setup.listeners = rng.between(1, 2) as u32;
    setup.batch = 1 + rng.skewed(0, 252);
    setup.pages = rng.between(8, 128);
    setup.owned = rng.between(1, 30) as usize;
    setup.rogues = rng.below(900);
}

/// Caps on everything, changed now and then.
fn caps_that_change(setup: &mut Setup, rng: &mut Rng) {
    shares(setup, rng);
    setup.config.node = Caps {
        fds: 50,
        held_fds: 20,
        held_bytes: 60 * 4096,
        open_leases: 24,
        mapped_leases: 24,
        allocations: 60,
        ..Caps::NONE
    };
    setup.config.job = Caps { fds: 16, open_leases: 8, ..Caps::NONE };
    setup.jobs = 2;
    setup.cap_changes = 8;
}

/// One of everything: each cap is reached at once.
fn ones(setup: &mut Setup, _: &mut Rng) {
    let one = Caps {
        fds: 3,
        held_fds: 1,
        open_leases: 1,
        mapped_leases: 1,
        allocations: 1,
        kept_allocations: 1,
        ..Caps::NONE
    };
    setup.config.client = one;
    setup.config.job = Caps { fds: 4, held_fds: 2, allocations: 2, ..one };
    setup.config.domain = Caps { fds: 5, held_fds: 2, allocations: 3, ..one };
    setup.config.node = Caps { fds: 6, held_fds: 3, allocations: 4, open_leases: 2, ..one };
    setup.config.max_parked_per_client = 1;
    setup.config.max_credits = 1;
    setup.jobs = 2;
    setup.batch = 2;
}

/// More users than clients, and few leases for all of them.
fn domains(setup: &mut Setup, _: &mut Rng) {
    setup.config.share_factor = 8;
    setup.config.node = Caps { fds: 40, open_leases: 8, ..Caps::NONE };
    setup.config.domain = Caps { open_leases: 4, ..Caps::NONE };
    setup.config.max_domains = 40;
    setup.config.max_clients = 20;
    setup.config.table_fds = table_for(20, 200);
    setup.uids = 10;
    setup.listeners = 3;
    setup.clients = 16;
}

/// Each client comes in one of 5,000 pods, of which most only have left something.
fn pods(setup: &mut Setup, rng: &mut Rng) {
    domains(setup, rng);
    setup.config.max_domains = 5_000;
    setup.pods = 5_000;
}

/// A hundred thousand allocations, and clients that leave many thousands behind when they die.
fn heaps(setup: &mut Setup, _: &mut Rng) {
    setup.config.table_fds = table_for(12, 200_000);
    setup.config.max_slots = 120_000;
    setup.config.max_credits = 253;
    setup.clients = 5;
    setup.uids = 1;
    setup.batch = 253;
    setup.pages = 1 << 20;
    setup.owned = 30_000;
    setup.check_every = 2_048;
    setup.rest_every = 6_000;
    setup.restarts = 0;
}

fn large(setup: &mut Setup, _: &mut Rng) {
    setup.config.node = Caps { fds: 6_000, held_fds: 1_500, ..Caps::NONE };
    setup.config.client = Caps { open_leases: 400, ..Caps::NONE };
    setup.config.max_clients = 220;
    setup.config.max_domains = 16;
    setup.config.table_fds = table_for(220, 3_000);
    setup.config.max_slots = 20_000;
    setup.config.max_credits = 253;
    setup.config.recall_timeout_us = 20_000;
    setup.clients = 200;
    setup.uids = 8;
    setup.batch = 253;
    setup.pages = 4_096;
    setup.owned = 400;
    setup.check_every = 64;
    // The model knows what is above a cap only after a full check.
    setup.cap_changes = 0;
    setup.rest_every = 40_000;
    setup.rogues = 150;
}
