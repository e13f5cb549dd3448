//! Seals of groups that outlive this broker: their fds are carried before the core seals, and what it says is written before anybody
//! is answered. Must never seal a group whose fd lies in no carrier, nor give a version that a broker after this one gives again.

use crate::server::parts::Server;
use fdbroker_core::{ClientId, GroupId, Input, RequestId};
use fdbroker_protocol::Status;

impl Server {
    /// Has the core seal a group; `checked`: what was found of its memory.
    pub(crate) fn seal_objects(
        &mut self,
        client: ClientId,
        request: RequestId,
        group: GroupId,
        checked: Result<(), Status>,
    ) {
        let begun =
            checked.and_then(|()| self.kept.begin_seal(client, group, &self.core, &self.fds));
        self.step(Input::SealObjects { client, request, group, checked: begun });
        self.kept.end_keep();
    }
}
