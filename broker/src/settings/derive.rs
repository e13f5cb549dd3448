//! Caps and limits: what is set, and for the rest sound defaults from the fd table (RLIMIT_NOFILE),
//! each with its reason. Must never give out more places than the table has.

use crate::limits::{MAX_TABLE_FDS, MIN_CORE_FDS, own_fds};
use crate::settings::args::Args;
use crate::settings::config::{ConfigError, ConfigFile, LimitsSection};
use crate::settings::outside::{Environment, Host};
use crate::settings::sockets::Mode;
use crate::settings::sources::{Lines, NONE, Sources, first};
use fdbroker_core::{Config, SubordinateRange, SubordinateUids, limits};
use fdbroker_protocol::{Caps, NO_CAP, Resource, Scope};
use std::num::NonZeroU64;

/// The fd table: its size, the places that are not the daemon's own, and of these the places that
/// the core may plan with.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub fds: u64,
    free_fds: u64,
}

/// A connection takes four places in the core's plan, and one more when it has ended and its peer
/// has not read all.
const FDS_PER_CONNECTION: u64 = fdbroker_core::limits::FDS_PER_CONNECTION + 1;

/// See [`Config::share_factor`]: one user of a service gets at most 8/9 of the node, another one
/// 8/9 of what is left then.
const SHARE_FACTOR: u64 = 8;

/// Most fds of kept objects, where the table is large: 128 carriers of 128 fds of host memory
/// ([`crate::limits::kept_carriers`]).
const MAX_KEPT_FDS: u64 = 16_384;

/// Memory of the broker for one user's names and metadata: 300,000 names of 30 bytes.
const DOMAIN_METADATA_BYTES: u64 = 64 << 20;

/// Names of users in subuid(5) that no person has: the kubelet's, and podman's for `--userns=auto`.
const POOLS: [&str; 2] = ["kubelet", "containers"];

/// What flags, environment and file set.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub args: &'a Args,
    pub environment: &'a Environment,
    /// From `--set`.
    pub set: &'a ConfigFile,
    pub file: &'a ConfigFile,
}

impl Given<'_> {
    /// A key of `[limits]`.
    pub fn limit<T: Copy>(&self, field: impl Fn(&LimitsSection) -> Option<T>) -> Sources<T> {
        Sources::of(field(&self.set.limits), field(&self.file.limits))
    }

    /// A key of `[caps.SCOPE]`.
    fn cap(&self, scope: Scope, resource: Resource) -> Sources<u64> {
        Sources::of(self.set.caps[scope][resource], self.file.caps[scope][resource])
    }
}

/// The size of the fd table.
pub(crate) fn resolve_table(
    given: Given<'_>,
    host: &Host,
    listeners: (usize, usize),
    lines: &mut Lines,
) -> Result<Table, ConfigError> {
    let wanted = Sources {
        flag: given.args.table_fds,
        environment: given.environment.parse("FDBROKER_TABLE_FDS", "a number of fds")?,
        ..given.limit(|limits| limits.table_fds)
    };
    let (wanted, origin) = first(wanted, MAX_TABLE_FDS);
    let fds = wanted.min(host.hard_fds).min(MAX_TABLE_FDS);
    let origin = match fds < wanted {
        true if fds == host.hard_fds => "hard RLIMIT_NOFILE",
        true => "largest possible",
        false => origin,
    };
    lines.push("limits.table_fds", &fds, origin);
    let own = own_fds(host.open_fds, listeners, fds);
    let needed = own + MIN_CORE_FDS * FDS_PER_CONNECTION / (FDS_PER_CONNECTION - 1);
    if fds < needed {
        let problem = format!(
            "{fds} fds are too few: {needed} are the least to serve with, and {own} of these are the broker's own"
        );
        let remedy = format!(
            "allow at least {needed}, by `ulimit -Hn`, LimitNOFILE= of the unit, or this key"
        );
        return Err(ConfigError::value("limits.table_fds", problem, remedy));
    }
    Ok(Table { fds, free_fds: fds - own })
}

/// The core's configuration.
pub(crate) fn resolve_core(
    given: Given<'_>,
    host: &Host,
    mode: Mode,
    table: Table,
    lines: &mut Lines,
) -> Result<Config, ConfigError> {
    // A client takes 5 places: a third of the table at most goes to connections.
    let clients = u32::try_from((table.free_fds / 16).clamp(8, 4096)).expect("at most 4096");
    let max_clients = lines.pick("limits.max_clients", given.limit(|it| it.max_clients), clients);
    let possible = u32::try_from(table.free_fds / FDS_PER_CONNECTION).unwrap_or(u32::MAX);
    let most_connections = max_clients.min(possible);
    // Above max_clients only because clients that are gone can have left something.
    let domains = max_clients.saturating_add(64);
    let max_domains = lines.pick("limits.max_domains", given.limit(|it| it.max_domains), domains);
    // One per thread of a big rank.
    let parked = given.limit(|it| it.max_parked_per_client);
    let max_parked_per_client = lines.pick("limits.max_parked_per_client", parked, 64);
    // A refused fd is a mistake or an attack: enough for mistakes.
    let refused = given.limit(|it| it.max_refused_per_domain);
    let max_refused_per_domain = lines.pick("limits.max_refused_per_domain", refused, 64);
    // 4 MiB of generation page, allocated at the start.
    let max_slots = lines.pick("limits.max_slots", given.limit(|it| it.max_slots), 1 << 20);

    let environment_fds: Option<NonZeroU64> =
        given.environment.parse("FDBROKER_MAX_FDS", "a number of fds, at least 1")?;
    let node_fds = Sources {
        flag: given.args.max_fds,
        environment: environment_fds.map(NonZeroU64::get),
        ..given.cap(Scope::Node, Resource::Fds)
    };
    let node_fds_value = first(node_fds, table.fds).0;
    // One in a thousand per client: a lone register takes one round trip, and a thousand clients
    // still fit.
    let base = u32::try_from((node_fds_value / 1024).clamp(1, 16)).expect("at most 16");
    let base_credits = lines.pick("limits.base_credits", given.limit(|it| it.base_credits), base);
    // To look at a message of so many fds takes some 40 us, as long as its round trip; nobody else
    // is served meanwhile.
    let max_credits = lines.pick("limits.max_credits", given.limit(|it| it.max_credits), 16);
    // An export under load takes milliseconds; an owner in a debugger takes for ever.
    let recall = given.limit(|it| it.recall_timeout_ms);
    let recall_timeout_ms = lines.pick("limits.recall_timeout_ms", recall, 2000);

    // No more than the carriers take: shares of users are parts of the cap, so a cap above that
    // would leave it all to one user.
    let kept_fds = MAX_KEPT_FDS.min(crate::limits::kept_fds(table.fds) as u64);
    let max_clients = most_connections;
    let memory = host.memory_bytes;
    let whole = Whole { mode, node_fds: table.fds, kept_fds, memory, max_slots, max_clients };
    let node = resolve_caps(Scope::Node, Some(node_fds), given, whole.node(), lines)?;
    let whole = Whole { node_fds: node.fds, ..whole };
    let domain = resolve_caps(Scope::Domain, None, given, whole.domain(), lines)?;
    let client = resolve_caps(Scope::Client, None, given, whole.client(), lines)?;
    let job = resolve_caps(Scope::Job, None, given, Caps::NONE, lines)?;
    let node = Caps { parked_items: limits::PARKED_ITEMS_PER_NODE, ..node };
    let domain = match mode {
        Mode::Private => domain,
        Mode::Service => Caps { parked_items: limits::PARKED_ITEMS_PER_DOMAIN, ..domain },
    };
    // Long enough for a job's next step to start, short against a forgotten buffer.
    let keep = given.limit(|it| it.keep_ttl_ms);
    let keep_ttl_ms = lines.pick("limits.keep_ttl_ms", keep, 60_000);
    // Weights that are read on one day are there on the next; what is forgotten is charged to its
    // user for a day.
    let object = given.limit(|it| it.object_ttl_ms);
    let object_ttl_ms = lines.pick("limits.object_ttl_ms", object, 86_400_000);
    // The library tries again after a second at most, and a rank in a debugger may take longer than
    // any time.
    let grace = given.limit(|it| it.grace_ms);
    let grace_ms = lines.pick("limits.grace_ms", grace, 10_000);
    let pools = Sources::of(given.set.subuid_pools.clone(), given.file.subuid_pools.clone());
    let (pools, pools_origin) = first(pools, POOLS.map(String::from).into());
    lines.push("subuid_pools", &format!("{pools:?}"), pools_origin);
    let ranges = host.subordinate_uids.iter().map(|(name, range)| match pools.contains(name) {
        true => SubordinateRange { user: None, ..*range },
        false => *range,
    });
    Ok(Config {
        node,
        domain,
        job,
        client,
        table_fds: table.free_fds - u64::from(most_connections),
        // So that the cap on connections is what the door lets in.
        max_clients: most_connections,
        max_domains,
        max_parked_per_client,
        max_refused_per_domain,
        max_slots,
        first_generation: 1,
        base_credits,
        max_credits,
        recall_timeout_us: recall_timeout_ms.saturating_mul(1000),
        keep_ttl_us: keep_ttl_ms.saturating_mul(1000),
        object_ttl_us: object_ttl_ms.saturating_mul(1000),
        grace_us: grace_ms.saturating_mul(1000),
        share_factor: match mode {
            Mode::Private => NO_CAP,
            Mode::Service => SHARE_FACTOR,
        },
        subordinate_uids: SubordinateUids::new(ranges.collect()),
    })
}

/// What the default caps are derived from.
#[derive(Clone, Copy)]
struct Whole {
    mode: Mode,
    node_fds: u64,
    kept_fds: u64,
    memory: Option<u64>,
    max_slots: u32,
    max_clients: u32,
}

impl Whole {
    /// The node: fds as far as the table goes; leases as far as memory goes (64 bytes each, 512
    /// MiB).
    fn node(&self) -> Caps {
        Caps {
            fds: self.node_fds,
            mapped_leases: u64::from(self.max_slots) * 8,
            allocations: self.max_slots.into(),
            connections: self.max_clients.into(),
            // Of devices' memory, half of what the carriers of what is kept take.
            kept_allocations: 1024,
            // Each is charged some 200 bytes of metadata, whose cap is mostly the lower one.
            object_names: 1 << 21,
            // It is memory of the broker: a million names of 60 bytes.
            metadata_bytes: 256 << 20,
            kept_fds: self.kept_fds,
            // Of memory that has outlived who pays for it half is left for programs, as tmpfs
            // leaves it. A private broker takes it along.
            kept_bytes: match (self.mode, self.memory) {
                (Mode::Service, Some(memory)) => memory / 2,
                (Mode::Private, _) | (_, None) => NO_CAP,
            },
            ..Caps::NONE
        }
    }

    /// A domain: 7/8 of the node, so that another user always finds room; less of the broker's own
    /// memory. A private broker has one user.
    fn domain(&self) -> Caps {
        match self.mode {
            Mode::Private => Caps::NONE,
            Mode::Service => Caps {
                metadata_bytes: DOMAIN_METADATA_BYTES,
                ..map_bounded(self.node(), |cap| cap - cap / 8)
            },
        }
    }

    /// A client: half of the node.
    fn client(&self) -> Caps {
        match self.mode {
            Mode::Private => Caps::NONE,
            Mode::Service => map_bounded(self.node(), |cap| cap - cap / 2),
        }
    }
}

fn map_bounded(caps: Caps, f: impl Fn(u64) -> u64) -> Caps {
    caps.map(|cap| if *cap == NO_CAP { NO_CAP } else { f(*cap) })
}

/// The caps of one scope. `fds`: where else that cap may come from.
fn resolve_caps(
    scope: Scope,
    fds: Option<Sources<u64>>,
    given: Given<'_>,
    default: Caps,
    lines: &mut Lines,
) -> Result<Caps, ConfigError> {
    let mut caps = Caps::NONE;
    for resource in Resource::ALL.iter().copied().filter(|it| it.is_capped_in(scope)) {
        let sources = fds.filter(|_| resource == Resource::Fds);
        let sources = sources.unwrap_or_else(|| given.cap(scope, resource));
        let (mut value, mut origin) = first(sources, default[resource]);
        // The core has no more client numbers than the default says, and the carriers no more
        // places.
        let bound = match (scope, resource) {
            (Scope::Node, Resource::Connections) => Some("limits.max_clients"),
            (Scope::Node, Resource::KeptFds) => Some("limits.table_fds"),
            _ => None,
        };
        if let Some(bound) = bound.filter(|_| value > default[resource]) {
            (value, origin) = (default[resource], bound);
        }
        let key = cap_key(scope, resource);
        match value {
            0 if SHARING.contains(&resource) => {
                let problem = "0 lets nobody share anything";
                return Err(ConfigError::value(key, problem, "give it at least 1, or \"none\""));
            }
            NO_CAP => lines.push(&key, &NONE, origin),
            value => lines.push(&key, &value, origin),
        }
        caps[resource] = value;
    }
    Ok(caps)
}

/// The resources that every sharing of memory takes.
const SHARING: [Resource; 5] = [
    Resource::Fds,
    Resource::HeldFds,
    Resource::OpenLeases,
    Resource::Allocations,
    Resource::Connections,
];

/// The key of a cap in the configuration.
pub(crate) fn cap_key(scope: Scope, resource: Resource) -> String {
    format!("caps.{scope}.{resource}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_when_it_is_a_service_then_half_of_the_memory_is_the_cap_of_what_is_kept_there() {
        let whole = |mode, memory| Whole {
            mode,
            node_fds: 4096,
            kept_fds: 64,
            memory,
            max_slots: 1024,
            max_clients: 16,
        };
        let service = whole(Mode::Service, Some(64 << 30));
        let (node, domain) = (service.node(), service.domain());
        assert_eq!((node.kept_bytes, domain.kept_bytes), (32 << 30, 28 << 30));
        assert_eq!((node.kept_gpu_bytes, node.permanent_bytes), (NO_CAP, NO_CAP));
        for without in [whole(Mode::Private, Some(64 << 30)), whole(Mode::Service, None)] {
            assert_eq!(without.node().kept_bytes, NO_CAP);
        }
    }
}
