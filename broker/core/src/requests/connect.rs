//! A client connects, and says what it is. Must never keep anything of one that is refused.

use crate::api::{ClientId, DomainKey, Effect, JobKey, Note, OwnerKey, Peer};
use crate::books::{Books, CONNECTION, Client, ScopeId};
use crate::core::Core;
use crate::limits::DOMAINS_PER_USER;
use crate::moves::Step;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{Resource, Scope, Status};

impl Core {
    pub(crate) fn connect(&mut self, client: ClientId, peer: &Peer<'_>, step: &mut Step) {
        let key = peer.domain;
        let known = self.books.clients.find_domain(key);
        let refused = known.and_then(|domain| self.books.too_many_refused(domain, 0));
        let status = if client.0 >= self.books.config.max_clients {
            let most = u64::from(self.books.config.max_clients);
            Books::no_quota_limit(Resource::Connections, Scope::Node, most)
        } else if let Some(status) = refused.or_else(|| self.is_beyond_share(key)) {
            status
        } else if let Some(domain) = self.domain_of_client(key) {
            match self.take_in(client, peer, domain) {
                Ok(()) => return,
                Err(blocked) => blocked,
            }
        } else {
            let of_user = self.books.clients.of_user(key).len();
            let (scope, most) = if of_user < DOMAINS_PER_USER {
                (Scope::Node, self.books.config.max_domains.into())
            } else {
                (Scope::Domain, of_user as u64)
            };
            Books::no_quota_limit(Resource::Domains, scope, most)
        };
        self.count_refused_connection(peer.pid, key, peer.job.map(|(job, _)| job), status);
        step.fx.list.push(Effect::Disconnect { client, status });
        // Nothing of it was ever kept.
        step.fx.list.push(Effect::Forget { client });
    }

    /// Makes a client of a domain, or says which cap is in the way; then nothing of it is left.
    fn take_in(&mut self, client: ClientId, peer: &Peer<'_>, domain: u32) -> Result<(), Status> {
        let Books { clients, ledger, .. } = &mut self.books;
        let job = peer.job.map(|(job, name)| clients.job_of((peer.domain, job), name, ledger));
        let mut groups: Box<[u32]> = peer.groups.into();
        groups.sort_unstable();
        let new = Client::new(0, domain, job, peer.pid);
        clients.insert(client.0, Client { gid: peer.gid, groups, ..new });
        clients.open(client.0, ledger);
        if let Err(blocked) = self.books.charge(client.0, CONNECTION) {
            let status = self.books.as_told(client.0, self.books.no_quota(blocked));
            self.books.close_client(client.0);
            return Err(status);
        }
        Ok(())
    }

    /// Why the domain may not have another connection, though there is room: that is for others.
    fn is_beyond_share(&self, key: DomainKey) -> Option<Status> {
        let of_user = || self.books.clients.of_user(key).first().copied();
        let domain = self.books.clients.find_domain(key).or_else(of_user)?;
        let (ledger, resource) = (&self.books.ledger, Resource::Connections);
        let now = |scope: ScopeId| ledger[scope].account.now(resource);
        let is_room = now(ScopeId::NODE) < ledger.caps().node.connections;
        let is_beyond = is_room && self.books.share_of_connections(domain) == 0;
        let own = now(self.books.clients.scope_of_domain(domain));
        is_beyond.then(|| Books::no_quota_limit(resource, Scope::Domain, own).of_share())
    }

    /// The domain of a key for another client; `None`: as many as there may be have clients, and it
    /// has none.
    fn domain_of_client(&mut self, key: DomainKey) -> Option<u32> {
        let known = self.books.clients.find_domain(key);
        if known.is_none_or(|domain| self.books.clients.domain(domain).clients == 0)
            && self.now_in_node(Resource::Domains) >= self.books.config.max_domains.into()
        {
            return None;
        }
        self.books.domain(key)
    }

    /// A client, as the daemon knows it over brokers and connections.
    pub(crate) fn identify(&mut self, client: ClientId, key: OwnerKey) {
        if let Some(record) = self.books.client(client) {
            record.key = key;
        }
    }

    /// The client's own bound of what is held for it, beside its caps.
    pub(crate) fn bound_held(&mut self, client: ClientId, fds: u32) {
        if let Some(record) = self.books.client(client).filter(|record| !record.welcome) {
            record.most_held = Some(fds);
            let scope = record.scope;
            self.books.ledger.bound_held(scope, fds.into());
        }
    }

    /// A connection is refused, because a cap is full: by the core, or by the daemon before the
    /// core learns of it. The note has the peer's process, but no client, since the peer never
    /// becomes one.
    pub fn count_refused_connection(
        &mut self,
        pid: u32,
        domain: DomainKey,
        job: Option<JobKey>,
        status: Status,
    ) {
        self.books.counters.refusals += 1;
        if self.books.notes.is_on() {
            self.books.notes.add(Note {
                pid,
                domain,
                job,
                status,
                ..Note::of_node(EventKind::Refusal)
            });
        }
    }
}
