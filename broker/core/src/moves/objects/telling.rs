//! Those who watch names are told, as far as their domain has room. Must never wait for one that
//! does not read.

use crate::books::objects::names::{Name, NameScope};
use crate::books::objects::watches::{Logged, Watches};
use crate::books::{Books, Charge};
use crate::limits::EVENTS_IN_LOG;
use crate::work::visit;
use fdbroker_protocol::Resource;
use fdbroker_protocol::object::ObjectEvent;

impl Books {
    pub(crate) fn leave_log(&mut self, client: u32, scope: NameScope) {
        if let Some(log) = self.objects.watches.leave(client, scope) {
            self.release_objects(log.domain, &[log.charge()]);
        }
    }

    /// A client is gone: it watches nothing any more.
    pub(crate) fn unwatch_all(&mut self, client: u32) {
        let scopes = self.objects.watches.of.range(Watches::of_client(client));
        let scopes: Vec<NameScope> = scopes.map(|((_, scope), _)| *scope).collect();
        scopes.into_iter().for_each(|scope| self.leave_log(client, scope));
    }

    /// Something happened to a name. An event for which the domain has no room is lost.
    pub(crate) fn tell(&mut self, scope: NameScope, event: ObjectEvent, version: u64, name: &Name) {
        visit(1);
        let watches = &mut self.objects.watches;
        let Some(log) = watches.logs.get_mut(&scope) else { return };
        if !log.asleep.is_empty() {
            watches.stirred.insert(scope);
        }
        let (number, name) = (log.next, Name::clone(name));
        log.next += 1;
        let domain = log.domain;
        let logged = Logged { number, event: event as u8, version, name };
        let oldest = if log.events.len() == EVENTS_IN_LOG { log.events.pop_front() } else { None };
        let (freed, bytes) = (oldest.map_or(0, |oldest| oldest.bytes()), logged.bytes());
        log.bytes -= freed;
        if freed > 0 {
            self.release_objects(domain, &[Charge(Resource::MetadataBytes, freed)]);
        }
        if self.may_log(domain, bytes) {
            let scope_of_domain = self.clients.scope_of_domain(domain);
            self.ledger.add(scope_of_domain, Charge(Resource::MetadataBytes, bytes));
            let log = self.objects.watches.logs.get_mut(&scope).expect("it is there");
            log.bytes += bytes;
            log.events.push_back(logged);
        }
    }
}
