//! The order of eviction on traces of use: how many recalls the core needs beside an exact LRU that
//! sees the same requests. Must never let the core know the model, nor the model the core.

use crate::judge::ensure;
use crate::model::Check;
use crate::rig::{LONG_US, Rig, arrived, deposit};
use crate::rng::Rng;
use fdbroker_core::{
    Body, Caps, CapsOfScopes, ClientId, Config, Core, DomainKey, Effect, Effects, Events, Granted,
    Input, Now, Peer, RequestId, Supply, Wanted,
};
use fdbroker_protocol::{AllocationId, MAX_BATCH};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const OWNERS: u32 = 64;
const EACH: u64 = 160;
const ALL: usize = (OWNERS as u64 * EACH) as usize;
/// A tenth of all allocations can be held.
const CAP: usize = ALL / 10;
/// Items before recalls are counted, and items for which they are.
const WARM: usize = 20_000;
const COUNTED: usize = 150_000;
/// Recalls of the core for 1000 of the exact LRU, at most.
const PER_MILLE: u64 = 1_020;

/// One trace for each skew of use and each size of request; the popular ones are spread over all
/// owners.
pub fn order_when_use_is_skewed_then_2_percent_more_recalls_than_exact_lru_at_most(
    _: &mut Rig,
) -> Check {
    for skew in [0.8, 1.0, 1.2] {
        for batch in [1, MAX_BATCH] {
            compare(skew, batch)?;
        }
    }
    Ok(())
}

fn compare(skew: f64, batch: usize) -> Check {
    let mut zipf = Zipf::new(skew);
    let (mut node, mut exact) = (Node::new()?, Exact::new());
    let mut before = (0, 0);
    let mut items = 0;
    let mut scanned = 0;
    while items < WARM + COUNTED {
        // In the middle somebody looks at everything once.
        let wanted = if items > WARM + COUNTED / 2 && scanned < ALL {
            (scanned..ALL.min(scanned + batch)).collect()
        } else {
            zipf.request(batch)
        };
        scanned += if items > WARM + COUNTED / 2 { wanted.len() } else { 0 };
        if items < WARM {
            before = (node.recalls(), exact.recalls);
        }
        items += wanted.len();
        node.request(&wanted)?;
        exact.request(&wanted);
    }
    let (core, exact) = (node.recalls() - before.0, exact.recalls - before.1);
    println!("sim: Zipf {skew}, {batch} in a request: {core} recalls, exact LRU {exact}");
    ensure!(
        core * 1000 <= exact * PER_MILLE,
        "Zipf {skew}, {batch} in a request: {core} recalls, and {exact} are enough"
    );
    Ok(())
}

/// Draws allocations by Zipf's law.
struct Zipf {
    /// Sums of the weights.
    sums: Vec<f64>,
    /// Allocations, the most popular first.
    ranks: Vec<usize>,
    rng: Rng,
}

impl Zipf {
    fn new(skew: f64) -> Self {
        let mut rng = Rng::new(29);
        let mut ranks: Vec<usize> = (0..ALL).collect();
        for at in (1..ALL).rev() {
            ranks.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let mut sum = 0.0;
        let sums = (1..=ALL).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        Zipf { sums: sums.collect(), ranks, rng }
    }

    /// So many different ones.
    fn request(&mut self, count: usize) -> Vec<usize> {
        let mut wanted = Vec::new();
        let mut seen = BTreeSet::new();
        while wanted.len() < count {
            let drawn = self.rng.next() as f64 / 2f64.powi(64) * self.sums[ALL - 1];
            let one = self.ranks[self.sums.partition_point(|sum| *sum < drawn).min(ALL - 1)];
            if seen.insert(one) {
                wanted.push(one);
            }
        }
        wanted
    }
}

/// The exact LRU.
struct Exact {
    used: Vec<u64>,
    order: BTreeSet<(u64, usize)>,
    clock: u64,
    recalls: u64,
}

impl Exact {
    /// With the last ones held.
    fn new() -> Self {
        let (used, order) = (vec![0; ALL], BTreeSet::new());
        let mut exact = Exact { used, order, clock: 0, recalls: 0 };
        (ALL - CAP..ALL).for_each(|one| exact.touch(one));
        exact
    }

    fn touch(&mut self, one: usize) {
        self.clock += 1;
        self.order.remove(&(self.used[one], one));
        self.order.insert((self.clock, one));
        self.used[one] = self.clock;
    }

    fn request(&mut self, wanted: &[usize]) {
        let (held, missing): (Vec<usize>, Vec<usize>) =
            wanted.iter().partition(|one| self.used[**one] > 0);
        held.into_iter().for_each(|one| self.touch(one));
        for one in missing {
            if self.order.len() == CAP {
                let (_, oldest) = self.order.pop_first().expect("the cap is above 0");
                self.used[oldest] = 0;
            }
            self.touch(one);
            self.recalls += 1;
        }
    }
}

/// A core whose owners answer at once.
struct Node {
    core: Core,
    now: Now,
    ids: Vec<AllocationId>,
    by_id: BTreeMap<AllocationId, usize>,
    wanted: Vec<Wanted>,
}

const CONSUMER: ClientId = ClientId(OWNERS);
const REQUEST: RequestId = RequestId(7);

impl Node {
    fn new() -> Check<Self> {
        let config = config();
        let core = Core::new(config.clone()).map_err(|error| error.to_string())?;
        let (ids, by_id, wanted) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut node = Node { core, now: Now(0), ids, by_id, wanted };
        for client in (0..=OWNERS).map(ClientId) {
            let domain = DomainKey::new(0, 1000);
            let peer = Peer { domain, job: None, pid: 1 + client.0, gid: 100, groups: &[] };
            node.step(Input::Connect { client, peer })?;
            node.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, REQUEST))?;
        }
        for number in 0..ALL as u64 {
            let client = ClientId((number / EACH) as u32);
            let deposits = &[arrived(deposit(number))];
            let (request, credits_wanted, deadline) = (REQUEST, 0, Now(u64::MAX));
            node.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request))?;
        }
        ensure!(node.ids.len() == ALL, "{} are registered", node.ids.len());
        node.by_id = node.ids.iter().enumerate().map(|(number, id)| (*id, number)).collect();
        let mut caps = CapsOfScopes {
            node: config.node,
            domain: config.domain,
            job: config.job,
            client: config.client,
        };
        caps.domain.held_fds = CAP as u64 + u64::from(config.base_credits) * u64::from(OWNERS + 1);
        node.step(Input::SetCaps { caps: &caps })?;
        Ok(node)
    }

    fn recalls(&self) -> u64 {
        self.core.totals().counters[fdbroker_protocol::Counter::Recalls]
    }

    /// Asks until everything was granted; gives it back at once.
    fn request(&mut self, wanted: &[usize]) -> Check {
        self.wanted = wanted.iter().map(|one| Ok(self.ids[*one])).collect();
        for _ in 0..=wanted.len() {
            if self.wanted.is_empty() {
                return Ok(());
            }
            let wanted = std::mem::take(&mut self.wanted);
            let deadline = Now(self.now.0 + LONG_US);
            let (client, request) = (CONSUMER, REQUEST);
            self.step(Body::Acquire { wanted: &wanted, deadline }.by(client, request))?;
        }
        Err(format!("{} are never granted", self.wanted.len()))
    }

    /// One input, and all that follows from it.
    fn step(&mut self, input: Input<'_>) -> Check {
        self.now.0 += 1;
        let mut fx = Effects::default();
        self.core.step(self.now, input, &mut fx);
        let mut due = VecDeque::from([fx]);
        loop {
            while let Some(fx) = due.pop_front() {
                for effect in &fx.list {
                    self.follow(effect, &fx, &mut due)?;
                }
            }
            if self.core.poll_timeout().is_none_or(|at| at > self.now) {
                return Ok(());
            }
            let mut fx = Effects::default();
            self.core.poll(self.now, &mut fx);
            due.push_back(fx);
        }
    }

    fn follow(&mut self, effect: &Effect, fx: &Effects, due: &mut VecDeque<Effects>) -> Check {
        let mut next = Effects::default();
        match effect {
            Effect::CloseHeld { ticket, .. } | Effect::CloseArrived { ticket, .. } => {
                self.core.step(self.now, Input::Closed { ticket: *ticket }, &mut next);
            }
            Effect::Events { client } => {
                while let Some(Events::Recall(recalls)) = self.core.take_events(*client) {
                    let supplies: Vec<Supply> = (0..)
                        .zip(&recalls)
                        .map(|(index, recall)| Supply {
                            id: recall.id,
                            fd: Ok(index),
                            refused_fd: None,
                            file: None,
                            facts: recall.facts,
                        })
                        .collect();
                    let supplies = &supplies[..];
                    self.core.step(
                        self.now,
                        Body::Supply { supplies }.by(*client, RequestId::ONE_WAY),
                        &mut next,
                    );
                }
            }
            Effect::Granted { range, .. } => {
                let items = &fx.granted[range.clone()];
                let (granted, left): (Vec<&Granted>, Vec<&Granted>) =
                    items.iter().partition(|item| item.status.is_ok());
                self.wanted = left.iter().map(|item| item.wanted).collect();
                let leases: Vec<_> = granted.iter().map(|item| item.lease).collect();
                let release = Body::Release { leases: &leases };
                self.core.step(self.now, release.by(CONSUMER, RequestId::ONE_WAY), &mut next);
            }
            Effect::Registered { range, .. } => {
                self.ids.extend(fx.registered[range.clone()].iter().map(|one| one.id));
            }
            Effect::Failed { status, .. } => return Err(format!("refused: {status}")),
            _ => {}
        }
        due.push_back(next);
        Ok(())
    }
}

fn config() -> Config {
    Config {
        node: Caps::NONE,
        domain: Caps::NONE,
        job: Caps::NONE,
        client: Caps::NONE,
        table_fds: 4 * ALL as u64,
        max_clients: OWNERS + 1,
        max_domains: 2,
        max_parked_per_client: 4,
        max_refused_per_domain: 8,
        max_slots: ALL as u32,
        first_generation: 1,
        base_credits: 1,
        max_credits: 2,
        recall_timeout_us: LONG_US,
        keep_ttl_us: LONG_US,
        object_ttl_us: LONG_US,
        grace_us: LONG_US,
        share_factor: u64::MAX,
        subordinate_uids: Default::default(),
    }
}
