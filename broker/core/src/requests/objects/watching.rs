//! Clients watch names. Must never tell one of names that it may not see.

use crate::api::Asker;
use crate::books::objects::names::NameScope;
use crate::books::objects::watches::Watches;
use crate::core::Core;
use crate::limits::WATCHES_PER_CLIENT;
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, Status};

impl Core {
    pub(crate) fn watch_objects(
        &mut self,
        by: Asker,
        of_job: bool,
        (prefix, is_wanted): (&[u8], bool),
        step: &mut Step,
    ) {
        let scope = self.books.names_of(by.client.0, of_job);
        let change = if is_wanted { Core::watch } else { Core::unwatch };
        let done = scope.and_then(|scope| change(self, by.client.0, scope, prefix));
        Self::answer_objects(by, [done], step);
    }

    fn watch(&mut self, client: u32, scope: NameScope, prefix: &[u8]) -> Result<(), Status> {
        let domain = self.books.clients[client].domain;
        let watches = &mut self.books.objects.watches;
        let known = watches.of.get(&(client, scope));
        if known.is_some_and(|watcher| watcher.prefixes.iter().any(|(it, _)| **it == *prefix)) {
            return Ok(());
        }
        let all = watches.of.range(Watches::of_client(client));
        if all.map(|(_, it)| it.prefixes.len()).sum::<usize>() >= WATCHES_PER_CLIENT {
            return Err(Status::with_value(ErrorCode::TooLong, WATCHES_PER_CLIENT as u64));
        }
        watches.enter(client, scope, domain);
        let log = watches.logs.get_mut(&scope).expect("it was entered");
        let watcher = watches.of.get_mut(&(client, scope)).expect("it was entered");
        watcher.prefixes.push((prefix.into(), log.next));
        if watcher.next == log.next {
            log.asleep.insert(client);
        }
        Ok(())
    }

    fn unwatch(&mut self, client: u32, scope: NameScope, prefix: &[u8]) -> Result<(), Status> {
        let found = self.books.objects.watches.of.get_mut(&(client, scope));
        let watcher = found.ok_or(ErrorCode::NotFound)?;
        let at = watcher.prefixes.iter().position(|(it, _)| **it == *prefix);
        watcher.prefixes.remove(at.ok_or(ErrorCode::NotFound)?);
        if watcher.prefixes.is_empty() {
            self.books.leave_log(client, scope);
        }
        Ok(())
    }
}
