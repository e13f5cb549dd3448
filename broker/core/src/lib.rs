//! fdbroker's logic: registry, LRU, ledger, leases, policy. A pure state machine: must never do IO,
//! read a clock, know an OS type, or contain unsafe code.
//!
//! [`Core::step`] takes one input and appends what the daemon is to do to the effects; [`Core::poll`] does
//! what time or leftover work asks for, when [`Core::poll_timeout`] says; [`Core::take_events`]
//! gives one message for a client's event socket.
#![forbid(unsafe_code)]

mod accounts;
mod acquire;
mod acts;
mod addresses;
mod ahead;
mod allocation;
mod allowances;
pub mod api;
mod clients;
mod closings;
mod comeback;
mod config;
mod connect;
mod continuity;
mod credits;
mod drain;
mod end;
mod events;
mod fairness;
mod files;
mod hello;
mod holding;
mod invariants;
mod job_name;
mod keep;
mod leases;
mod ledger;
pub mod limits;
mod lists;
mod lru;
mod notes;
mod objects;
mod order;
mod parked;
mod queues;
mod recall;
mod recalls;
mod reclaim;
mod register;
mod registry;
mod restore;
mod rooms;
mod rounds;
mod saved;
mod shares;
mod slots;
mod subordinate;
mod timers;
mod view;
mod waiting;
pub mod work;

pub use api::*;
pub use config::ConfigError;
pub use fdbroker_protocol::Caps;
pub use job_name::JobName;
pub use ledger::Account;
pub use notes::Note;
pub use objects::ObjectNews;
pub use objects::api::*;
pub use restore::RestoreError;
pub use saved::Saved;
pub use shares::Part;
pub use subordinate::{SubordinateRange, SubordinateUids};
pub use view::{AllocationView, ClientView, DomainView, JobView, LeaseView, Totals};

use std::collections::BTreeMap;

use allowances::Allowances;
use clients::{Client, Clients};
use closings::Closings;
use continuity::Continuity;
use fairness::Rooms;
use fdbroker_protocol::limits::{DRIVER_DATA_BYTES, ENDS_PER_MESSAGE};
use fdbroker_protocol::{ByCounter, ErrorCode};
use leases::Leases;
use ledger::{Blocked, Ledger};
use objects::Objects;
use parked::Parked;
use queues::Waiting;
use recalls::Recalls;
use registry::Registry;
use timers::Timers;

/// The broker's state. See the crate's page.
#[derive(Debug)]
pub struct Core {
    /// Its caps are those in the beginning; the ledger has those in force.
    config: Config,
    ledger: Ledger,
    clients: Clients,
    allocations: Registry,
    continuity: Continuity,
    leases: Leases,
    recalls: Recalls,
    closings: Closings,
    /// Allocations that the request at hand wants: out of the order of eviction, so that none makes room for another.
    aside: Vec<u32>,
    files: files::Files,
    /// Parked requests by arrival number. At most `max_clients` x `max_parked_per_client`.
    parked: BTreeMap<u64, Parked>,
    /// Of these, those that wait for room or a reader.
    rooms: Rooms,
    /// Which of the parked requests wait for which allocation.
    waiting: Waiting,
    allowances: Allowances,
    /// What the items of the acquire at hand come to.
    items: Vec<acquire::Item>,
    /// Accounts in the way of the request at hand, beside the first one.
    also_blocked: Vec<Blocked>,
    /// Most fds granted in one answer.
    most_granted: usize,
    /// The time of the step.
    now: Now,
    /// The account behind which the look at those who wait for leases to come back goes on.
    reclaim_from: Option<Option<Blocked>>,
    /// Where the look at accounts above their caps goes on: how many kinds of scopes are done, and the next scope.
    drain_from: Option<(usize, u32)>,
    /// The administrator wants the broker empty; clients ever connected then: later ones deposit nothing.
    draining: Option<u64>,
    timers: Timers,
    /// Clients that this step has made events for.
    eventful: Vec<ClientId>,
    arrivals: u64,
    counters: ByCounter<u64>,
    notes: notes::Notes,
    objects: Objects,
}

impl Core {
    /// An empty broker.
    ///
    /// # Errors
    /// When a number of the configuration cannot work; the message says which and why.
    pub fn new(mut config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        config.bound_caps();
        Ok(Core {
            ledger: Ledger::new(config.caps(), config.table_fds),
            clients: Clients::new(config.max_domains, config.subordinate_uids.clone()),
            allocations: Registry::new(config.max_slots, config.first_generation),
            continuity: Continuity::default(),
            leases: Leases::default(),
            recalls: Recalls::default(),
            closings: Closings::default(),
            aside: Vec::new(),
            files: files::Files::default(),
            parked: BTreeMap::new(),
            rooms: Rooms::default(),
            waiting: Waiting::default(),
            allowances: Allowances::default(),
            items: Vec::new(),
            also_blocked: Vec::new(),
            most_granted: fdbroker_protocol::MAX_BATCH,
            now: Now(0),
            reclaim_from: None,
            drain_from: None,
            draining: None,
            timers: Timers::default(),
            eventful: Vec::new(),
            arrivals: 0,
            counters: ByCounter::default(),
            notes: notes::Notes::default(),
            objects: Objects::default(),
            config,
        })
    }

    /// Takes one input; appends to `effects` what the daemon is to do, in order.
    pub fn step(&mut self, now: Now, input: Input<'_>, effects: &mut Effects) {
        let items = input.items();
        self.begin(now);
        self.touch_by(&input);
        match input.request().filter(|(client, _)| !self.welcome(*client)) {
            None => self.take(input, effects),
            Some((client, request)) => {
                let deposits = match input {
                    Input::Register { deposits, .. } => deposits,
                    Input::CreateObjects { create, .. } => std::slice::from_ref(&create.deposit),
                    _ => &[],
                };
                self.close_all_uninvited(client, deposits, effects);
                self.refuse_stranger(client, request, effects);
            }
        }
        self.after(effects);
        work::end(items);
    }

    /// Does what is due: deadlines, silent owners, teardown, waiting requests that have a turn. Bounded work.
    pub fn poll(&mut self, now: Now, effects: &mut Effects) {
        self.begin(now);
        self.expire(now, effects);
        self.end_lost(effects);
        self.after(effects);
        work::end(0);
    }

    /// What every step and poll begins with: its time, and its allowances.
    fn begin(&mut self, now: Now) {
        work::begin();
        self.now = now;
        self.allowances = Allowances::of_a_step();
        self.also_blocked.clear();
    }

    /// One input, each with the function that knows its rules.
    fn take(&mut self, input: Input<'_>, fx: &mut Effects) {
        let few = |ids: &'_ [fdbroker_protocol::AllocationId]| ids.len().min(ENDS_PER_MESSAGE);
        match input {
            // Clients come and go.
            Input::Connect { client, peer } => self.connect(client, &peer, fx),
            Input::Identify { client, key } => self.identify(client, key),
            Input::BoundHeld { client, fds } => self.bound_held(client, fds),
            Input::Hello { client, request, own_fds, deadline } => {
                self.hello(client, request, own_fds, deadline, fx);
            }
            Input::Gone { client } => self.gone(client),
            // What owners say of their allocations.
            Input::Register { client, request, deposits, credits_wanted, deadline } => {
                self.register(client, request, deposits, credits_wanted, deadline, fx);
            }
            Input::Unregister { client, request, ids } => self.unregister(client, request, ids, fx),
            Input::Supply { client, supplies } => self.supply(client, supplies, fx),
            // What consumers say of their leases.
            Input::Acquire { client, request, wanted, deadline } => {
                self.acquire(client, request, wanted, deadline, fx);
            }
            Input::AcquireAhead { client, wanted } => self.acquire_ahead(client, wanted, fx),
            Input::Cancel { client, request } => self.cancel(client, request, fx),
            Input::Mapped { client, request, leases } => self.mapped(client, request, leases, fx),
            Input::Release { client, request, leases } => self.release(client, request, leases, fx),
            // Named objects.
            Input::CreateObjects { client, request, create } => {
                self.create_objects(client, request, create, fx);
            }
            Input::AddObjects { client, request, group, objects } => {
                self.add_objects(client, request, group, objects, fx);
            }
            Input::SealObjects { client, request, group, checked } => {
                self.seal_objects(client, request, group, checked, fx);
            }
            Input::AbortObjects { client, request, group } => {
                self.abort_objects(client, request, group, fx);
            }
            Input::GetObjects { client, request, of_job, names, deadline } => {
                self.get_objects(client, request, of_job, names, deadline, fx);
            }
            Input::DeleteObjects { client, request, of_job, objects } => {
                self.delete_objects(client, request, of_job, objects, fx);
            }
            Input::TouchObjects { client, request, touch } => {
                self.touch_objects(client, request, touch, fx);
            }
            Input::WatchObjects { client, request, of_job, prefix, is_wanted } => {
                self.watch_objects(client, request, of_job, (prefix, is_wanted), fx);
            }
            // After a crash.
            Input::Redeposit { client, request, items } => {
                self.redeposit(client, request, items, fx);
            }
            Input::Declare { client, request, items } => {
                self.declare(client, request, items, fx);
            }
            Input::Complete { client } => self.complete(client),
            // What the daemon says of sockets and closers.
            Input::Sendable { client, sendable } => self.sendable(client, sendable),
            Input::Unsent { client, request, grants, deadline, seq } => {
                self.unsent(client, request, grants, deadline, seq, fx);
            }
            Input::MostGranted { fds } => self.most_granted = fds.max(1),
            Input::Closed { ticket } => self.closed(ticket),
            Input::Slow { domain, slow } => self.set_slow(domain, slow),
            Input::Measured { files } => self.measure(files),
            // An administrator acts.
            Input::SetCaps { caps } => self.set_caps(caps),
            Input::Evict { ids } => self.evict_these(&ids[..few(ids)], fx),
            Input::Revoke { ids } => self.revoke_these(&ids[..few(ids)], fx),
            Input::SetDraining { draining } => self.set_draining(draining),
        }
    }

    /// When [`Core::poll`] is due; `Now(0)` = at once.
    pub fn poll_timeout(&self) -> Option<Now> {
        if self.is_work_left() { Some(Now(0)) } else { self.timers.next_due() }
    }

    /// Whether a step has left something of what [`Core::after`] does, or [`Core::end_lost`], to the next poll.
    fn is_work_left(&self) -> bool {
        self.continuity.has_work()
            || self.clients.next_dying().is_some()
            || self.allocations.next_ending().is_some()
            || !self.rooms.is_idle()
            || !self.ledger.is_idle()
            || !self.waiting.is_idle()
            || self.reclaim_from.is_some()
            || self.drain_from.is_some()
            || !self.objects.is_idle()
    }

    /// Driver data of a live allocation: bytes in use, and the bytes.
    pub fn driver_data(
        &self,
        id: fdbroker_protocol::AllocationId,
    ) -> Option<(u8, &[u8; DRIVER_DATA_BYTES])> {
        self.allocations.find(id)?;
        let (len, bytes) = self.allocations.driver_data(id.slot)?;
        Some((*len, bytes))
    }

    /// What every step and poll ends with, each a bounded number of records.
    fn after(&mut self, fx: &mut Effects) {
        let now = self.now;
        // First: what gone clients had becomes room, and ends what others wait for.
        self.tear_down(fx);
        // Ended groups of objects go, and requests for names that were sealed become ready to be looked at.
        self.sweep_objects(fx);
        // Requests for fds of silent owners become ready to be answered.
        self.sweep_silent();
        // Ready requests go before those that wait for room: their fds are here, and pinned until they are served.
        self.serve_ready(now, fx);
        // Caps that have changed: what is above a lowered one goes, and whoever waits below a raised one may go on.
        self.drain(fx);
        self.serve_waiting(now, fx);
        // Nobody waits for what follows: holders are told, an emptied broker is seen to, and clients are asked for leases,
        // once it is known who waits still.
        self.sweep_ended();
        self.give_up(fx);
        self.reclaim_again();
        // Last: a holder is told of an end only when the generation page shows it.
        for client in std::mem::take(&mut self.eventful) {
            if self.client(client).is_some() {
                fx.list.push(Effect::Events { client });
            }
        }
        self.objects.take_changes(&mut fx.kept);
        self.assert_invariants();
    }

    /// What a client does for itself shows that it is not idle; what it answers, or gives back, does not.
    fn touch_by(&mut self, input: &Input<'_>) {
        match input {
            Input::Hello { client, .. }
            | Input::Register { client, .. }
            | Input::Unregister { client, .. }
            | Input::Acquire { client, .. }
            | Input::Redeposit { client, .. }
            | Input::CreateObjects { client, .. }
            | Input::AddObjects { client, .. }
            | Input::SealObjects { client, .. }
            | Input::GetObjects { client, .. }
            | Input::DeleteObjects { client, .. }
            | Input::TouchObjects { client, .. }
            | Input::WatchObjects { client, .. }
            | Input::Declare { client, .. } => self.touch(*client),
            _ => {}
        }
    }

    /// The client, if it is connected and not gone.
    fn client(&mut self, client: ClientId) -> Option<&mut Client> {
        self.clients.find_mut(client.0).filter(|client| !client.gone)
    }

    /// The client of a number that the state itself holds.
    fn client_mut(&mut self, number: u32) -> &mut Client {
        &mut self.clients[number]
    }

    /// Whether the client may make requests.
    fn welcome(&mut self, client: ClientId) -> bool {
        self.client(client).is_some_and(|client| client.welcome)
    }

    /// A request before hello; or one that the daemon read just before it learnt of the client's end.
    fn refuse_stranger(&mut self, client: ClientId, request: RequestId, fx: &mut Effects) {
        if self.client(client).is_some() {
            let status = ErrorCode::Protocol.into();
            fx.list.push(Effect::Failed { client, request, status });
            self.give_up_hello(client, status, fx);
            fx.list.push(Effect::Disconnect { client, status });
        }
    }
}

impl Input<'_> {
    /// The client and its request, where only a client that was let in may make it; 0 stands for a one-way message.
    fn request(&self) -> Option<(ClientId, RequestId)> {
        match *self {
            Input::Register { client, request, .. }
            | Input::Unregister { client, request, .. }
            | Input::Acquire { client, request, .. }
            | Input::CreateObjects { client, request, .. }
            | Input::AddObjects { client, request, .. }
            | Input::SealObjects { client, request, .. }
            | Input::AbortObjects { client, request, .. }
            | Input::GetObjects { client, request, .. }
            | Input::DeleteObjects { client, request, .. }
            | Input::TouchObjects { client, request, .. }
            | Input::WatchObjects { client, request, .. }
            | Input::Redeposit { client, request, .. }
            | Input::Declare { client, request, .. } => Some((client, request)),
            Input::Mapped { client, request, .. } | Input::Release { client, request, .. } => {
                Some((client, request.unwrap_or(RequestId(0))))
            }
            Input::Complete { client } | Input::AcquireAhead { client, .. } => {
                Some((client, RequestId(0)))
            }
            _ => None,
        }
    }
}
