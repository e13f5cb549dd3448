//! Clients, their domains and their jobs, each with its account in the ledger and found by its key.
//! A domain or a job is here as long as clients, charges or waiting requests are of it. Must never
//! count a client twice, or forget one that has something. The records go to a successor
//! (`saved.rs`): another field, or another order, is another format of the daemon's handover.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use crate::api::{DomainKey, JobKey, JobName, NONE, OwnerKey, SubordinateUids, UserKey};
use crate::books::check::{Check, ensure};
use crate::books::ledger::{Charge, Ledger, ScopeId};
use crate::books::slots::{Flat, SavedSlots, Slots};
use crate::limits::{CLIENT_NUMBERS, DOMAINS_PER_USER, DORMANT_DOMAINS};
use crate::work::visit;
use fdbroker_protocol::{Resource, Scope};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// A connection, and what belongs to it until its teardown is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Never that of another client, as the number may be.
    pub serial: u64,
    /// Its account in the ledger.
    pub scope: ScopeId,
    /// Its domain's number.
    pub domain: u32,
    /// Its job's number.
    pub job: Option<u32>,
    /// Its process, as the broker's PID namespace numbers it: SO_PEERCRED's, so of the process that
    /// connected.
    pub pid: u32,
    /// What it is known by over connections and brokers.
    pub key: OwnerKey,
    /// The group of that process, also from SO_PEERCRED.
    pub gid: u32,
    /// Its other groups, sorted.
    pub groups: Box<[u32]>,
    /// Has said hello.
    pub welcome: bool,
    /// Its process or its socket has ended: nothing is addressed to it any more.
    pub gone: bool,
    /// Misses a recall.
    pub silent: bool,
    /// Has room for a message with fds.
    pub sendable: bool,
    /// Places reserved for its deposits.
    pub credits: u64,
    /// It has waited for one of them, and has not used it yet.
    pub credit_waited_for: bool,
    /// Credits that were taken back: it may not know yet.
    pub credits_taken: u64,
    /// Fds it holds by itself.
    pub own_fds: u64,
    /// The most fds that it wants to be held for it.
    pub most_held: Option<u32>,
    /// It was asked for leases, and has given back none of them since.
    pub keeps_asked: bool,
    /// The number of its last activity among those of all clients.
    pub act: u64,
    /// Its parked requests. At most `max_parked_per_client`.
    pub parked: Vec<u64>,
}

impl Client {
    /// A new connection, whose account is still to be opened.
    pub fn new(serial: u64, domain: u32, job: Option<u32>, pid: u32) -> Self {
        Client { serial, domain, job, pid, sendable: true, ..Client::default() }
    }

    /// So many credits were taken back, of at most `most` that it may have. Messages that are on
    /// their way may count on them, whatever it is told meanwhile.
    pub fn note_taken(&mut self, count: u64, most: u64) {
        self.credits_taken = most.min(self.credits_taken + count);
    }
}

/// One isolation domain. Kept while it has clients or anything is charged to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Listener, uid and pod.
    pub key: DomainKey,
    /// Its account in the ledger.
    pub scope: ScopeId,
    /// Clients connected or being torn down.
    pub clients: u32,
    /// Its closes take long: the node does not wait for them.
    pub slow: bool,
    /// When it was last served, in the order of all domains.
    pub turn: u64,
    /// The user or pod that it has a part of, where that has several uids: known from the settings,
    /// so it is not saved.
    #[serde(skip)]
    pub user: Option<UserKey>,
}

impl Domain {
    /// One whose account is still to be opened.
    pub fn new(key: DomainKey) -> Self {
        Domain { key, scope: ScopeId::NODE, clients: 0, slow: false, turn: 0, user: None }
    }
}

/// One job of a domain. Stays while it has clients, or these have left kept allocations or objects:
/// whoever cleans up after it must find them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its domain's and its own.
    pub key: (DomainKey, JobKey),
    /// For people.
    pub name: JobName,
    /// Its account in the ledger.
    pub scope: ScopeId,
    /// Clients connected or being torn down.
    pub clients: u32,
    /// Kept allocations whose owner was one of its clients, and is gone.
    pub orphans: u32,
    /// Names of objects that its clients have made.
    pub objects: u32,
}

impl Job {
    /// One whose account is still to be opened.
    pub fn new(key: (DomainKey, JobKey), name: JobName) -> Self {
        Job { key, name, scope: ScopeId::NODE, clients: 0, orphans: 0, objects: 0 }
    }

    /// Whether clients are of it, or have left something.
    pub fn is_used(&self) -> bool {
        self.clients > 0 || self.orphans > 0 || self.objects > 0
    }
}

/// Domains, jobs and clients as plain data.
pub type SavedClients = (SavedSlots<Domain>, SavedSlots<Job>, Vec<Option<Box<Client>>>);

/// What the node is charged with for each domain that has clients. Others have only left something:
/// each of them is charged with an fd at least, and must not keep a user out who comes.
pub const DOMAIN: Charge = Charge(Resource::Domains, 1);

/// Most domains, those without clients included.
fn most_domains(max_domains: u32) -> u32 {
    max_domains.saturating_add(DORMANT_DOMAINS)
}

/// All of them.
#[derive(Debug, Default)]
pub struct Clients {
    /// By number; at most `max_clients`.
    clients: Vec<Option<Box<Client>>>,
    domains: Slots<Domain>,
    domain_by_key: FxHashMap<DomainKey, u32>,
    subordinate_uids: SubordinateUids,
    /// Domains of each pod, and of each user that has subordinate uids. At most
    /// [`DOMAINS_PER_USER`] each; more are a predecessor's.
    by_user: FxHashMap<UserKey, Vec<u32>>,
    /// At most one per client, per kept allocation without an owner (capped: `kept_allocations`),
    /// and per parked request that waits for room of it.
    jobs: Slots<Job>,
    job_by_key: FxHashMap<(DomainKey, JobKey), u32>,
    /// Gone clients not yet torn down.
    dying: VecDeque<u32>,
    /// Clients ever connected.
    serials: u64,
    /// Acts of clients for themselves so far.
    acts: u64,
    /// How often a client came to have idle credits: the order in which they are taken back.
    credits_given: u64,
}

/// The client of a number that the state itself holds.
impl Index<u32> for Clients {
    type Output = Client;

    fn index(&self, number: u32) -> &Client {
        self.find(number).expect("numbers in the state are of clients")
    }
}

impl IndexMut<u32> for Clients {
    fn index_mut(&mut self, number: u32) -> &mut Client {
        self.find_mut(number).expect("numbers in the state are of clients")
    }
}

impl Clients {
    /// Nobody.
    pub fn new(max_domains: u32, subordinate_uids: SubordinateUids) -> Self {
        let domains = Slots::new(most_domains(max_domains), 1, 0);
        Clients { domains, subordinate_uids, ..Clients::default() }
    }

    // --- clients ---------------------------------------------------------------------------------

    /// The client of a number, also a gone one; [`NONE`] is of nobody.
    pub fn find(&self, number: u32) -> Option<&Client> {
        visit(1);
        self.clients.get(number as usize)?.as_deref()
    }

    /// A client as long as it is the one of this serial, and its number no other's.
    pub fn of_serial(&self, (number, serial): (u32, u64)) -> Option<&Client> {
        self.find(number).filter(|client| client.serial == serial)
    }

    /// [`Clients::find`], to change it.
    pub fn find_mut(&mut self, number: u32) -> Option<&mut Client> {
        visit(1);
        self.clients.get_mut(number as usize)?.as_deref_mut()
    }

    /// Every client there is: as much work as there are.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        self.iter_from(0)
    }

    /// Those from a number on.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &Client)> {
        let all = (0..).zip(&self.clients).skip(from as usize);
        all.filter_map(|(number, client)| {
            visit(1);
            Some((number, client.as_deref()?))
        })
    }

    /// Their numbers: for the rare walk that changes them.
    pub fn numbers(&self) -> Vec<u32> {
        self.iter().map(|(number, _)| number).collect()
    }

    /// A new client, whose account is still to be opened. The number is of nobody.
    pub fn insert(&mut self, number: u32, mut client: Client) {
        let place = number as usize;
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        self.serials += 1;
        client.serial = self.serials;
        let former = self.clients[place].replace(Box::new(client));
        assert!(former.is_none(), "client {number} is connected already");
    }

    /// Opens the account of a client, and counts it with its domain and its job.
    pub fn open(&mut self, number: u32, ledger: &mut Ledger) {
        let Client { domain, job, most_held, .. } = self[number];
        let domain = &mut self.domains[domain];
        if domain.clients == 0 {
            ledger.add(ScopeId::NODE, DOMAIN);
        }
        domain.clients += 1;
        let parent = job.map_or(domain.scope, |job| {
            let job = &mut self.jobs[job];
            job.clients += 1;
            job.scope
        });
        let scope = ledger.open(Scope::Client, number, parent);
        self[number].scope = scope;
        if let Some(fds) = most_held {
            ledger.bound_held(scope, fds.into());
        }
    }

    /// Closes the account of a client, and counts it no longer with its domain and its job, which
    /// may be unused now.
    pub fn close(&mut self, number: u32, ledger: &mut Ledger) -> Client {
        let client = self.clients[number as usize].take().expect("it was connected");
        ledger.leave_coming(client.scope);
        ledger.close(client.scope);
        let domain = &mut self.domains[client.domain];
        domain.clients -= 1;
        if domain.clients == 0 {
            ledger.take(ScopeId::NODE, DOMAIN);
        }
        if let Some(job) = client.job {
            self.jobs[job].clients -= 1;
        }
        *client
    }

    /// Clients ever connected.
    pub fn serials(&self) -> u64 {
        self.serials
    }

    /// The number of the next act of a client for itself.
    pub fn next_act(&mut self) -> u64 {
        self.acts += 1;
        self.acts
    }

    /// Acts so far.
    pub fn acts(&self) -> u64 {
        self.acts
    }

    /// The place behind all clients with idle credits.
    pub fn next_creditor(&mut self) -> u64 {
        self.credits_given += 1;
        self.credits_given
    }

    /// A gone client is to be torn down.
    pub fn bury(&mut self, number: u32) {
        self.dying.push_back(number);
    }

    /// The client to be torn down next.
    pub fn next_dying(&self) -> Option<u32> {
        self.dying.front().copied()
    }

    /// It has been torn down.
    pub fn end_dying(&mut self) {
        self.dying.pop_front();
    }

    /// All that are to be torn down, in their turn.
    pub fn dying(&self) -> &VecDeque<u32> {
        &self.dying
    }

    // --- domains ---------------------------------------------------------------------------------

    /// A domain of which something is left.
    pub fn domain(&self, number: u32) -> &Domain {
        &self.domains[number]
    }

    /// The domain of a number that the state itself holds, to change it.
    pub fn domain_mut(&mut self, number: u32) -> &mut Domain {
        &mut self.domains[number]
    }

    /// Its key.
    pub fn domain_key(&self, number: u32) -> DomainKey {
        self.domains[number].key
    }

    /// Its account.
    pub fn scope_of_domain(&self, number: u32) -> ScopeId {
        self.domains[number].scope
    }

    /// All domains from a number on.
    pub fn domains(&self, from: u32) -> impl Iterator<Item = (u32, &Domain)> {
        self.domains.iter_from(from)
    }

    /// Whether there is a domain of this number.
    pub fn is_domain(&self, number: u32) -> bool {
        self.domains.is_full(number)
    }

    /// The number of the domain of a key.
    pub fn find_domain(&self, key: DomainKey) -> Option<u32> {
        self.domain_by_key.get(&key).copied()
    }

    /// The same, or of a new one with this turn; `None`: there are as many as there may be.
    pub fn domain_of(
        &mut self,
        key: DomainKey,
        ledger: &mut Ledger,
        turn: impl FnOnce() -> u64,
    ) -> Option<u32> {
        if let Some(number) = self.find_domain(key) {
            return Some(number);
        }
        if self.of_user(key).len() >= DOMAINS_PER_USER {
            return None;
        }
        let (number, _) = self.domains.insert(Domain { turn: turn(), ..Domain::new(key) })?;
        self.open_domain(number, ledger);
        Some(number)
    }

    /// Opens the account of a domain under its key; `false`: another one has the key.
    fn open_domain(&mut self, number: u32, ledger: &mut Ledger) -> bool {
        let domain = &mut self.domains[number];
        domain.scope = ledger.open(Scope::Domain, number, ScopeId::NODE);
        domain.user = self.subordinate_uids.user_of_domain(domain.key);
        if let Some(user) = domain.user {
            self.by_user.entry(user).or_default().push(number);
        }
        self.domain_by_key.insert(domain.key, number).is_none()
    }

    /// Drops a domain that nothing is left of, requests of other domains that wait for its room
    /// included.
    pub fn forget_domain_if_unused(&mut self, number: u32, ledger: &mut Ledger) {
        let domain = &self.domains[number];
        let scope = &ledger[domain.scope];
        if domain.clients > 0 || !scope.blocked.is_empty() || !scope.account.is_zero() {
            return;
        }
        let Domain { key, scope, user, .. } = self.domains.remove(number);
        self.domain_by_key.remove(&key);
        self.leave_user(user, number);
        ledger.close(scope);
    }

    /// All domains of a domain's user, whichever of its uids they are of. None, where its uid is a
    /// user by itself.
    pub fn of_same_user(&self, number: u32) -> &[u32] {
        self.all_of(self.domains[number].user)
    }

    /// All domains of the user that a key's uid is of: for one that may have no domain yet.
    pub fn of_user(&self, key: DomainKey) -> &[u32] {
        self.all_of(self.subordinate_uids.user_of_domain(key))
    }

    fn all_of(&self, user: Option<UserKey>) -> &[u32] {
        let all = user.and_then(|user| self.by_user.get(&user));
        all.map_or(&[], Vec::as_slice)
    }

    fn leave_user(&mut self, user: Option<UserKey>, number: u32) {
        let Some(user) = user else { return };
        let all = self.by_user.get_mut(&user).expect("the domain was opened");
        all.retain(|other| *other != number);
        if all.is_empty() {
            self.by_user.remove(&user);
        }
    }

    // --- jobs ------------------------------------------------------------------------------------

    /// A job of which something is left.
    pub fn job(&self, number: u32) -> &Job {
        &self.jobs[number]
    }

    /// Its own key.
    pub fn job_key(&self, number: u32) -> JobKey {
        self.jobs[number].key.1
    }

    /// All jobs from a number on.
    pub fn jobs(&self, from: u32) -> impl Iterator<Item = (u32, &Job)> {
        self.jobs.iter_from(from)
    }

    /// How many jobs there are.
    pub fn count_of_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is a job of this number, and its domain is that one.
    pub fn is_job_of(&self, job: u32, domain: u32) -> bool {
        self.jobs.is_full(job) && self.jobs[job].key.0 == self.domains[domain].key
    }

    /// The number of the job of a key.
    pub fn find_job(&self, key: (DomainKey, JobKey)) -> Option<u32> {
        self.job_by_key.get(&key).copied()
    }

    /// The same, or of a new one. Its domain is there.
    pub fn job_of(&mut self, key: (DomainKey, JobKey), name: JobName, ledger: &mut Ledger) -> u32 {
        if let Some(number) = self.find_job(key) {
            return number;
        }
        let (number, _) = self.jobs.insert(Job::new(key, name)).expect("jobs are fewer than slots");
        self.open_job(number, ledger);
        number
    }

    /// Opens the account of a job whose domain has one, and has it found by its key; `false`:
    /// another one is found by it.
    fn open_job(&mut self, number: u32, ledger: &mut Ledger) -> bool {
        let job = &mut self.jobs[number];
        let domain = self.domains[self.domain_by_key[&job.key.0]].scope;
        job.scope = ledger.open(Scope::Job, number, domain);
        self.job_by_key.insert(job.key, number).is_none()
    }

    /// A client of the job has left a kept allocation.
    pub fn add_orphan(&mut self, job: u32) {
        self.jobs[job].orphans += 1;
    }

    /// The allocation has another owner, or has ended.
    pub fn take_orphan(&mut self, job: u32) {
        self.jobs[job].orphans -= 1;
    }

    /// An object of the job has its name, or is made under it.
    pub fn add_object(&mut self, job: u32) {
        self.jobs[job].objects += 1;
    }

    /// So many have it no more.
    pub fn take_objects(&mut self, job: u32, count: u32) {
        self.jobs[job].objects -= count;
    }

    /// Drops a job that nothing is left of, requests of others that wait for its room included.
    pub fn forget_job_if_unused(&mut self, number: u32, ledger: &mut Ledger) {
        let job = &self.jobs[number];
        if job.is_used() || !ledger[job.scope].blocked.is_empty() {
            return;
        }
        let Job { key, scope, .. } = self.jobs.remove(number);
        self.job_by_key.remove(&key);
        ledger.close(scope);
    }

    // --- what a successor gets -------------------------------------------------------------------

    /// The domains of which clients or allocations are, the jobs and the clients.
    pub fn save(&self, is_used: impl Fn(&Domain) -> bool) -> SavedClients {
        let flat = |client: &Option<Box<Client>>| Some(Box::new(client.as_deref()?.flat()));
        let clients = self.clients.iter().map(flat).collect();
        (self.domains.save(is_used), self.jobs.save(|_| true), clients)
    }

    /// These again, with the accounts of domains and jobs open; those of clients are still to be
    /// opened. `Err`: what contradicts itself, and at which number.
    pub fn restore(
        (max_domains, subordinate_uids): (u32, SubordinateUids),
        serials: u64,
        (domains, jobs, clients): SavedClients,
        dying: VecDeque<u32>,
        ledger: &mut Ledger,
    ) -> Check<Self> {
        // Those there are stay, whatever the new limit.
        let most = most_domains(max_domains).max(domains.slots());
        let mut new = Clients { serials, dying, ..Clients::new(max_domains, subordinate_uids) };
        new.domains = Slots::restore(most, 0, domains)?;
        for number in new.domains.full() {
            ensure(new.open_domain(number, ledger), "two domains of one uid", number)?;
        }
        new.jobs = Slots::restore(NONE, 0, jobs)?;
        for number in new.jobs.full() {
            let domain = new.find_domain(new.jobs[number].key.0);
            ensure(domain.is_some(), "job's domain", number)?;
            ensure(new.open_job(number, ledger), "two jobs of one key", number)?;
        }
        ensure(clients.len() <= CLIENT_NUMBERS as usize, "clients", clients.len() as u64)?;
        let flat = |client: Box<Client>| Box::new(client.flat());
        new.clients = clients.into_iter().map(|client| client.map(flat)).collect();
        Ok(new)
    }

    /// Asserts that domains and jobs are found by their keys, and that each job counts its clients.
    pub fn check(&self) {
        for (number, domain) in self.domains.iter_from(0) {
            assert_eq!(self.find_domain(domain.key), Some(number));
            let count = self.iter().filter(|(_, client)| client.domain == number).count();
            assert_eq!(domain.clients as usize, count, "invariant 3: domain {:?}", domain.key);
        }
        for (number, job) in self.jobs.iter_from(0) {
            assert_eq!(self.find_job(job.key), Some(number));
            let count = self.iter().filter(|(_, client)| client.job == Some(number)).count();
            assert_eq!(job.clients as usize, count, "invariant 3: job {:?}", job.key);
        }
        let of_users = self.domains.iter_from(0).filter(|(number, domain)| {
            assert_eq!(domain.user, self.subordinate_uids.user_of_domain(domain.key));
            let is_several = domain.user.is_some();
            assert_eq!(self.of_same_user(*number).contains(number), is_several, "{:?}", domain.key);
            is_several
        });
        assert_eq!(of_users.count(), self.by_user.values().map(Vec::len).sum::<usize>());
        let found = (self.domain_by_key.len(), self.job_by_key.len());
        assert_eq!(found, (self.domains.len(), self.jobs.len()), "found by their keys");
    }
}

impl Flat for Domain {
    fn flat(&self) -> Self {
        Domain { turn: self.turn, ..Domain::new(self.key) }
    }
}

impl Flat for Job {
    fn flat(&self) -> Self {
        Job::new(self.key, self.name)
    }
}

impl Flat for Client {
    fn flat(&self) -> Self {
        let (scope, act, parked) = Default::default();
        Client { scope, act, parked, ..self.clone() }
    }
}
