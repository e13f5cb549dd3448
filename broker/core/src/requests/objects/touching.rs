//! Touches: a use of a group by one of its names, and what keeps it from now on. Must never keep a
//! group in part, nor keep names of a job.

use crate::api::{Asker, KeptChange, Touch};
use crate::books::{Charge, Client};
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    pub(crate) fn touch_objects(&mut self, by: Asker, touch: &Touch<'_>, step: &mut Step) {
        let touched =
            touch.names.iter().map(|name| self.touch_object(by.client.0, touch, name, step));
        let touched: Vec<_> = touched.collect();
        Self::answer_objects(by, touched, step);
    }

    fn touch_object(
        &mut self,
        client: u32,
        touch: &Touch<'_>,
        name: &[u8],
        step: &mut Step,
    ) -> Result<(), Status> {
        let scope = self.books.names_of(client, touch.of_job)?;
        let keeps = touch.keeps();
        if touch.of_job && keeps {
            return Err(ErrorCode::NotSupported.into());
        }
        let Some((place, _)) = self.books.sealed(scope, name) else {
            return Err(self.missing(scope, name, 0));
        };
        let number = place.group;
        let group = &self.books.objects.groups[number];
        let (was_kept, size, domain) = (group.is_kept, group.size_bytes, group.domain);
        let is_host = group.is_host;
        let (had_pin, pin) = (group.pin, touch.pin.unwrap_or(group.pin));
        if keeps && !was_kept {
            self.books.charge_kept(client, (size, is_host), pin, step)?;
        } else if was_kept && pin && !had_pin {
            self.books.charge_objects(client, &[Charge(Resource::PermanentBytes, size)])?;
        } else if was_kept && had_pin && !pin {
            self.books.release_objects(domain, &[Charge(Resource::PermanentBytes, size)]);
        }
        if keeps {
            self.adopt_group(client, number);
        }
        let now = step.now;
        let group = &mut self.books.objects.groups[number];
        group.used = now;
        if was_kept || keeps {
            group.pin = pin;
            group.keep_us = touch.keep_us.or(group.keep_us);
        }
        if had_pin && !pin {
            // Else nothing would ever end it.
            group.keep_us.get_or_insert(u64::MAX);
        }
        if was_kept {
            self.books.time_group(number);
            let changed = KeptChange::Changed(self.books.objects.groups.id_of(number));
            self.books.objects.changes.push(changed);
        } else if keeps {
            self.books.keep_group(number);
        }
        self.books.order_group(number);
        Ok(())
    }

    /// A group whose creator is gone has another one from now on: of the same domain, as all who
    /// know its names are.
    fn adopt_group(&mut self, client: u32, number: u32) {
        let (creator, serial) = self.books.objects.groups[number].creator;
        let found = self.books.clients.find(creator).filter(|it| it.serial == serial && !it.gone);
        if found.is_none() {
            let Client { serial, pid, .. } = self.books.clients[client];
            let group = &mut self.books.objects.groups[number];
            (group.creator, group.creator_pid) = ((client, serial), pid);
        }
    }
}
