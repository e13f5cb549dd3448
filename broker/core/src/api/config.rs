//! How the core is set up. Must never correct a number without showing what is in force.

use crate::api::ids::NONE;
use crate::api::subordinate::SubordinateUids;
use crate::limits::{FDS_PER_CONNECTION, MOST_METADATA_BYTES, TABLE_RESERVE};
use fdbroker_protocol::page::LAST_GENERATION;
use fdbroker_protocol::{ByScope, Caps, MAX_BATCH};

/// The caps of every scope.
pub type CapsOfScopes = ByScope<Caps>;

/// How the core is set up. Every number is checked by [`Config::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Caps of the node.
    pub node: Caps,
    /// Caps of each domain.
    pub domain: Caps,
    /// Caps of each job of a domain.
    pub job: Caps,
    /// Caps of each client.
    pub client: Caps,
    /// Fds in the broker's table that the core may plan with: RLIMIT_NOFILE less what the daemon
    /// itself keeps open.
    pub table_fds: u64,
    /// Most clients.
    pub max_clients: u32,
    /// Most domains.
    pub max_domains: u32,
    /// Most requests of one client parked at once.
    pub max_parked_per_client: u32,
    /// Refused fds of one domain whose close has not returned; at this number the domain's deposits
    /// are refused unread.
    pub max_refused_per_domain: u32,
    /// Most allocation slots: those of the generation page.
    pub max_slots: u32,
    /// Lowest generation ever given out here, at least 1: above all that a former broker gave.
    pub first_generation: u32,
    /// Deposit credits a client keeps when it wants no more.
    pub base_credits: u32,
    /// Most deposit credits of one client, at most 253.
    pub max_credits: u32,
    /// Of what cannot be taken back, a domain gets more only while it holds less than so many times
    /// what is still free. [`NO_CAP`](fdbroker_protocol::NO_CAP): as much as there is.
    pub share_factor: u64,
    /// Uids that share as one domain, at most [`DOMAINS_PER_USER`](crate::limits::DOMAINS_PER_USER)
    /// of each user at once.
    pub subordinate_uids: SubordinateUids,
    /// Time an owner has to answer a recall, in microseconds.
    pub recall_timeout_us: u64,
    /// Time a kept allocation lives without its owner, in microseconds.
    pub keep_ttl_us: u64,
    /// Longest time that a kept group of objects lives after its last use, in microseconds.
    pub object_ttl_us: u64,
    /// Time that owners have to name their allocations again after a crash, in microseconds.
    pub grace_us: u64,
}

/// A number that cannot work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl Config {
    /// Lowers each cap that another number of the configuration bounds to that number, so that the
    /// caps shown ([`Core::caps`](crate::Core::caps)) are the caps in force.
    pub fn bound_caps(&mut self) {
        self.node = self.bounded(self.caps()).node;
    }

    /// The caps that a broker begins with.
    pub(crate) fn caps(&self) -> CapsOfScopes {
        let Config { node, domain, job, client, .. } = *self;
        CapsOfScopes { node, domain, job, client }
    }

    /// These caps, bounded in the same way.
    pub(crate) fn bounded(&self, mut caps: CapsOfScopes) -> CapsOfScopes {
        caps.node.connections = caps.node.connections.min(self.max_clients.into());
        caps.node.metadata_bytes = caps.node.metadata_bytes.min(MOST_METADATA_BYTES);
        caps
    }

    /// Says which number cannot work.
    ///
    /// # Errors
    /// The first such number, with the reason and what would work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let least_table = TABLE_RESERVE + FDS_PER_CONNECTION + 1;
        let rules = [
            (
                self.table_fds >= least_table,
                format!(
                    "table_fds = {} leaves no room for one client and one fd; it must be at least {least_table}: raise RLIMIT_NOFILE",
                    self.table_fds
                ),
            ),
            (self.max_clients > 0, "max_clients must be at least 1".to_owned()),
            (self.max_domains > 0, "max_domains must be at least 1".to_owned()),
            (self.max_slots > 0, "max_slots must be at least 1".to_owned()),
            (
                self.max_slots < NONE - 1,
                format!("max_slots = {} is above the 32-bit slots of a handle", self.max_slots),
            ),
            (
                (1..=LAST_GENERATION).contains(&self.first_generation),
                "first_generation must be at least 1 and below u32::MAX: 0 and u32::MAX mean other things on the page"
                    .to_owned(),
            ),
            (
                self.base_credits <= self.max_credits,
                format!(
                    "base_credits = {} is above max_credits = {}",
                    self.base_credits, self.max_credits
                ),
            ),
            (
                self.max_credits as usize <= MAX_BATCH && self.max_credits > 0,
                format!(
                    "max_credits = {} must be from 1 to {MAX_BATCH}, the most fds of one message",
                    self.max_credits
                ),
            ),
            (self.recall_timeout_us > 0, "recall_timeout must be more than 0".to_owned()),
            (
                self.keep_ttl_us > 0,
                "keep_ttl_ms = 0 would end kept memory at once; it must be at least 1".to_owned(),
            ),
            (
                self.object_ttl_us > 0,
                "object_ttl_ms = 0 would end kept objects at once; it must be at least 1".to_owned(),
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, why)) => Err(ConfigError(why)),
            None => Ok(()),
        }
    }
}
