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

use crate::api::{Effects, Now};
use crate::books::Blocked;
use crate::books::allowances::Allowances;

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
}
