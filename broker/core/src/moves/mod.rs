//! What changes two owners or more, so that their sums stay right. Must never know of a request.

pub(crate) mod charging;
pub(crate) mod closing;
pub(crate) mod ending;
pub(crate) mod evicting;
pub(crate) mod keeping;
pub(crate) mod leasing;
pub(crate) mod lines;
pub(crate) mod noting;
pub(crate) mod objects;
pub(crate) mod pinning;
pub(crate) mod recalling;
pub(crate) mod reclaiming;
pub(crate) mod waiting;

use crate::api::{Asker, Effect, Effects, Now, RequestId, StatusReply};
use crate::books::Blocked;
use crate::books::allowances::Allowances;
use fdbroker_protocol::Status;

/// What a step has at hand.
pub(crate) struct Step<'a> {
    pub now: Now,
    /// What the daemon is to do.
    pub fx: &'a mut Effects,
    pub allowances: Allowances,
    /// Allocations that the request at hand wants: out of the order of eviction, so that none makes
    /// room for another.
    pub aside: Vec<u32>,
    /// Accounts in the way of the request at hand, beside the first one.
    pub also_blocked: Vec<Blocked>,
}

impl<'a> Step<'a> {
    /// A step begins.
    pub fn new(now: Now, fx: &'a mut Effects) -> Self {
        let allowances = Allowances::of_a_step();
        Step { now, fx, allowances, aside: Vec::new(), also_blocked: Vec::new() }
    }

    /// Answers a request that has failed as a whole.
    pub fn fail(&mut self, Asker { client, request }: Asker, status: Status) {
        self.fx.list.push(Effect::Failed { client, request, status });
    }

    /// Answers with the statuses since `begin`. Those of a one-way message nobody reads.
    pub fn answer(&mut self, by: Asker, reply: StatusReply, begin: usize) {
        let (Asker { client, request }, range) = (by, begin..self.fx.statuses.len());
        match request {
            RequestId::ONE_WAY => self.fx.statuses.truncate(begin),
            _ => self.fx.list.push(Effect::Statuses { client, request, reply, range }),
        }
    }
}
