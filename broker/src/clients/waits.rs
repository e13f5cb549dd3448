//! Times that clients wait for grants and the broker for supplies, and the longest wake. Must never
//! remember a request that nobody waits for, nor read the clock for a grant.

use crate::clients::connection::index;
use crate::clients::connections::Connections;
use crate::clients::metrics::{Asked, Metrics};
use crate::clock;
use fdbroker_core::{ClientId, Now, RequestId};

pub struct Waits {
    /// The start of the first broker whose clients were handed on to this one.
    started: Now,
    metrics: Metrics,
    /// The acquire that is with the core.
    at_hand: Option<(ClientId, Asked)>,
    /// Of this process: no successor goes on with it.
    longest_wake_us: u64,
}

impl Waits {
    pub fn new(started: Now) -> Self {
        Waits { started, metrics: Metrics::default(), at_hand: None, longest_wake_us: 0 }
    }

    /// What was counted so far.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Since when this is counted.
    pub fn started(&self) -> Now {
        self.started
    }

    /// Goes on with the counts of another broker, or begins anew.
    pub fn restore(&mut self, started: Now, metrics: Metrics) {
        (self.started, self.metrics) = (started, metrics);
    }

    /// A wake that began at `since` is over.
    pub fn note_wake(&mut self, since: Now) {
        let us = clock::now().0.saturating_sub(since.0);
        self.longest_wake_us = self.longest_wake_us.max(us);
    }

    /// The longest wake so far.
    pub fn longest_wake_us(&self) -> u64 {
        self.longest_wake_us
    }

    /// An acquire has been read then.
    pub fn begin(&mut self, client: ClientId, request: RequestId, at: Now) {
        self.at_hand = Some((client, Asked { request, at }));
    }

    /// The acquire at hand has been with the core: if it is not answered, it is parked. `most`:
    /// parked requests that a client may have.
    pub fn park(&mut self, connections: &mut Connections, most: usize) {
        let Some((client, asked)) = self.at_hand.take() else { return };
        let parked = &mut connections[index(client)].asked;
        if parked.len() < most {
            parked.push(asked);
        }
    }

    /// A request has been answered then, with fds or without.
    pub fn end(
        &mut self,
        client: ClientId,
        request: RequestId,
        fds: usize,
        at: Now,
        connections: &mut Connections,
    ) {
        if let Some(asked) = self.take(client, request, connections)
            && fds > 0
        {
            self.metrics.grant_latency.observe(at.0.saturating_sub(asked.at.0));
        }
    }

    /// A recall was answered after this time.
    pub fn note_recall(&mut self, us: u64) {
        self.metrics.recall_time.observe(us);
    }

    fn take(
        &mut self,
        client: ClientId,
        request: RequestId,
        connections: &mut Connections,
    ) -> Option<Asked> {
        if let Some((whose, asked)) = self.at_hand
            && (whose, asked.request) == (client, request)
        {
            self.at_hand = None;
            return Some(asked);
        }
        let parked = &mut connections[index(client)].asked;
        let at = parked.iter().position(|asked| asked.request == request)?;
        Some(parked.swap_remove(at))
    }
}
