//! How long acquires wait: noted when they are read and when they are answered. Must never remember a request that nobody
//! waits for.

use crate::clients::connection::index;
use crate::clients::metrics::Asked;
use crate::server::parts::Server;
use fdbroker_core::{ClientId, RequestId};

impl Server {
    /// What was read has been handed to the core: if it is not answered, it waits.
    pub(crate) fn keep_asked(&mut self) {
        let Some((client, asked)) = self.asked.take() else { return };
        let most = self.settings.core.max_parked_per_client as usize;
        if let Some(connection) = self.connections.get_mut(index(client))
            && connection.asked.len() < most
        {
            connection.asked.push(asked);
        }
    }

    /// A request has been answered, with fds or without.
    pub(crate) fn note_answered(&mut self, client: ClientId, request: RequestId, fds: usize) {
        let Some(asked) = self.take_asked(client, request) else { return };
        if fds > 0 {
            let now = crate::clock::now();
            self.metrics.grant_latency.observe(now.0.saturating_sub(asked.at.0));
        }
    }

    fn take_asked(&mut self, client: ClientId, request: RequestId) -> Option<Asked> {
        if let Some((whose, asked)) = self.asked
            && (whose, asked.request) == (client, request)
        {
            self.asked = None;
            return Some(asked);
        }
        let waiting = &mut self.connections.get_mut(index(client))?.asked;
        let at = waiting.iter().position(|asked| asked.request == request)?;
        Some(waiting.swap_remove(at))
    }
}
