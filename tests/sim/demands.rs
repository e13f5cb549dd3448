//! Demands from outside: leases that a client is asked to give back, and caps that the
//! administrator changes. Must only draw them and hand them in: the judges look at the outcome.

use crate::action::Action;
use crate::model::{Check, set_caps};
use crate::tally::Fault;
use crate::world::{Todo, World};
use fdbroker_core::LeaseId;
use fdbroker_protocol::{MAX_BATCH, Resource, Scope};

impl World {
    /// The client is asked for leases: most clients give most of them back, some give none.
    pub fn give_back_later(&mut self, client: u32, leases: &[LeaseId]) {
        self.stats.reclaims += leases.len() as u64;
        let Some(agent) = self.agents.get_mut(&client) else { return };
        if self.rng.chance(agent.manners.hoard.max(150)) {
            self.stats.faults(Fault::ReclaimIgnored, leases.len());
            return;
        }
        agent.asked_back.extend(leases);
        let order = agent.order;
        let wait = self.rng.skewed(10, 5_000);
        self.schedule(wait, Todo::GiveBack { client, order });
    }

    /// The client gives back what it was asked for.
    pub fn give_back(&mut self, client: u32) -> Check {
        let Some(agent) = self.agents.get_mut(&client) else { return Ok(()) };
        let mut leases = std::mem::take(&mut agent.asked_back);
        leases.truncate(MAX_BATCH);
        // The client is using the others.
        leases.retain(|_| !self.rng.chance(200));
        if leases.is_empty() {
            return Ok(());
        }
        self.feed(Action::Release { client, request: None, leases })
    }

    /// The administrator changes caps: lowers some, and sets some back to where they began.
    pub fn change_caps(&mut self) -> Check {
        self.stats.fault(Fault::CapsChanged);
        let mut caps = self.first_caps;
        for &scope in Scope::ALL {
            for resource in Resource::capped() {
                let cap = &mut caps[scope][resource];
                if *cap != u64::MAX && self.rng.chance(400) {
                    *cap = self.rng.below(*cap + 1);
                }
            }
        }
        set_caps(&mut self.setup.config, &caps);
        self.feed(Action::SetCaps { caps: Box::new(caps) })
    }
}
