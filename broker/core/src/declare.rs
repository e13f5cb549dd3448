//! Declare: holders say which leases of before a crash they still have. Must never make one of an allocation that
//! was born after it, nor of one that the holder may not have.

use crate::Core;
use crate::acquire::Item;
use crate::api::{ClientId, Declared, Effect, Effects, Granted, Now, RequestId};
use fdbroker_protocol::{ErrorCode, Status};

impl Core {
    pub(crate) fn declare(
        &mut self,
        now: Now,
        client: ClientId,
        request: RequestId,
        items: &[Declared],
        fx: &mut Effects,
    ) {
        let begin = fx.granted.len();
        for item in items {
            let granted = match self.declare_one(now, client, item) {
                Ok(granted) => granted,
                Err(status) => Granted::refused(item.wanted, status),
            };
            fx.granted.push(granted);
        }
        let range = begin..fx.granted.len();
        fx.list.push(Effect::Declared { client, request, range });
    }

    fn declare_one(
        &mut self,
        now: Now,
        client: ClientId,
        declared: &Declared,
    ) -> Result<Granted, Status> {
        let id = declared.wanted.map_err(Status::from)?;
        if id.generation >= self.config.first_generation {
            // Nobody can have held it before the crash.
            return Err(ErrorCode::Stale.into());
        }
        match self.item(client, declared.wanted) {
            // That its owner does not answer is no reason to give up what one has.
            Item::Final(ErrorCode::OwnerSilent) => {}
            Item::Final(code) => return Err(code.into()),
            _ => {}
        }
        match self.lease_as(now, client.0, id.slot, !declared.open) {
            Ok(lease) => Ok(self.granted(declared.wanted, id.slot, lease)),
            Err(blocked) => {
                let status = self.no_quota(blocked);
                self.count_refusal(client.0, status);
                Err(status)
            }
        }
    }
}
