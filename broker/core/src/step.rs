//! What a step does, and in which order: the one place that leads. Must never know how a request is
//! served.

use crate::api::{Asker, Body, Effect, Effects, Input, Now, Request};
use crate::books::allowances::Allowances;
use crate::books::{Books, Wish};
use crate::core::Core;
use crate::moves::Step;
use crate::requests::turn::Attempt;
use crate::work;
use fdbroker_protocol::ErrorCode;

impl Core {
    /// Takes one input; appends to `effects` what the daemon is to do, in order.
    pub fn step(&mut self, now: Now, input: Input<'_>, effects: &mut Effects) {
        work::begin();
        let step = &mut Step::new(now, effects);
        let items = input.items();
        self.take(input, step);
        self.after(step);
        work::end(items);
    }

    /// Does what is due: deadlines, silent owners, teardown, waiting requests that have a turn.
    /// Bounded work.
    pub fn poll(&mut self, now: Now, effects: &mut Effects) {
        work::begin();
        let step = &mut Step::new(now, effects);
        self.expire(step);
        self.end_lost(step);
        self.after(step);
        work::end(0);
    }

    /// What the daemon says, each with the function that knows its rules.
    fn take(&mut self, input: Input<'_>, step: &mut Step) {
        match input {
            Input::Request(request) => self.serve(request, step),
            Input::Connect { client, peer } => self.connect(client, &peer, step),
            Input::Identify { client, key } => self.identify(client, key),
            Input::BoundHeld { client, fds } => self.bound_held(client, fds),
            Input::Gone { client } => self.gone(client, step),
            Input::Sendable { client, sendable } => self.sendable(client, sendable, step),
            Input::Unsent { client, request, grants, deadline, seq } => {
                let attempt = Attempt::new(Asker { client, request }, seq, deadline);
                self.unsent(attempt, grants, step);
            }
            Input::MostGranted { fds } => self.books.most_granted = fds.max(1),
            Input::Closed { ticket } => self.closed(ticket),
            Input::Slow { domain, slow } => self.set_slow(domain, slow),
            Input::Measured { files } => self.measure(files),
            Input::SetCaps { caps } => self.set_caps(caps),
            Input::Evict { ids } => self.act(ids, Core::evict_outcome, Books::evict, step),
            Input::Revoke { ids } => self.act(ids, Core::revoke_outcome, Books::revoke, step),
            Input::SetDraining { draining } => self.set_draining(draining),
        }
    }

    /// A client's request, if it may make it.
    fn serve(&mut self, Request { by, body }: Request<'_>, step: &mut Step) {
        let (client, terms) = (by.client, body.terms());
        if terms.is_busy {
            self.touch(client);
        }
        if terms.is_for_guests && !self.books.welcome(client) {
            self.books.close_all_uninvited(client, terms.deposits, step);
            return self.refuse_stranger(by, step);
        }
        match body {
            Body::Hello { own_fds, deadline } => self.hello(by, own_fds, deadline, step),
            // What owners say of their allocations.
            Body::Register { deposits, credits_wanted, deadline } => {
                self.register(by, deposits, credits_wanted, deadline, step);
            }
            Body::Unregister { ids } => self.unregister(by, ids, step),
            Body::Supply { supplies } => self.supply(client, supplies, step),
            // What consumers say of their leases.
            Body::Acquire { wanted, deadline } => self.acquire(by, wanted, deadline, step),
            Body::AcquireAhead { wanted } => self.acquire_ahead(client, wanted, step),
            Body::Cancel => self.cancel(by, step),
            Body::Mapped { leases } => self.mapped(by, leases, step),
            Body::Release { leases } => self.release(by, leases, step),
            // What makers and readers say of named objects.
            Body::CreateObjects { create } => self.create_objects(by, create, step),
            Body::AddObjects { group, objects } => self.add_objects(by, group, objects, step),
            Body::SealObjects { group, checked } => self.seal_objects(by, group, checked, step),
            Body::AbortObjects { group } => self.abort_objects(by, group, step),
            Body::GetObjects { of_job, names, deadline } => {
                self.get_objects(by, of_job, names, deadline, step);
            }
            Body::DeleteObjects { of_job, objects } => {
                self.delete_objects(by, of_job, objects, step);
            }
            Body::TouchObjects { touch } => self.touch_objects(by, touch, step),
            Body::WatchObjects { of_job, prefix, is_wanted } => {
                self.watch_objects(by, of_job, (prefix, is_wanted), step);
            }
            // After a crash.
            Body::Redeposit { items } => self.redeposit(by, items, step),
            Body::Declare { items } => self.declare(by, items, step),
            Body::Complete => self.complete(client),
        }
    }

    /// When [`Core::poll`] is due; `Now(0)` = at once.
    pub fn poll_timeout(&self) -> Option<Now> {
        if self.is_work_left() { Some(Now(0)) } else { self.books.timers.next_due() }
    }

    /// Whether a step has left something of what [`Core::after`] does, or [`Core::end_lost`], to
    /// the next poll.
    fn is_work_left(&self) -> bool {
        self.books.continuity.has_work()
            || self.books.clients.next_dying().is_some()
            || self.books.allocations.next_ending().is_some()
            || !self.books.rooms.is_idle()
            || !self.books.ledger.is_idle()
            || !self.books.waiting.is_idle()
            || self.books.reclaim_from.is_some()
            || self.books.drain_from.is_some()
            || !self.books.objects.is_idle()
    }

    /// What every step and poll ends with, each a bounded number of records.
    fn after(&mut self, step: &mut Step) {
        // First: what gone clients had becomes room, and ends what others wait for.
        self.tear_down(step);
        // Ended groups of objects go, and requests for names that were sealed become ready to be
        // looked at.
        self.sweep_objects(step);
        // Requests for fds of silent owners become ready to be answered.
        self.sweep_silent();
        // Ready requests go before those that wait for room: their fds are here, and pinned until
        // they are served.
        self.serve_ready(step);
        // Caps that have changed: what is above a lowered one goes, and whoever waits below a
        // raised one may go on.
        self.drain(step);
        self.serve_waiting(step);
        // Nobody waits for what follows: holders are told, an emptied broker is seen to, and
        // clients are asked for leases, once it is known who waits still.
        self.sweep_ended(step);
        self.give_up(step);
        self.reclaim_again(step);
        // Last: a holder is told of an end only when the generation page shows it.
        for client in std::mem::take(&mut self.books.eventful) {
            if self.books.client(client).is_some() {
                step.fx.list.push(Effect::Events { client });
            }
        }
        step.fx.kept.append(&mut self.books.objects.changes);
        assert!(step.aside.is_empty(), "invariant 5: what was set aside is put back");
        self.assert_invariants();
    }

    /// Answers every parked request AGAIN, so that nothing waits any more. The effects go to
    /// clients as those of a step do.
    pub fn settle_parked(&mut self, now: Now, effects: &mut Effects) {
        let step = &mut Step::new(now, effects);
        while let Some((seq, parked)) = self.books.parked.first_key_value() {
            let (seq, by) = (*seq, parked.by);
            let client = by.client;
            let is_gone = self.books.clients.find(client.0).is_none_or(|it| it.gone);
            match parked.wish {
                _ if is_gone => _ = self.books.unpark(seq, step),
                Wish::Acquire(_) => self.answer_ended_item(seq, step),
                Wish::Credits(_) | Wish::Get(..) => {
                    self.books.unpark(seq, step);
                    step.fail(by, ErrorCode::Again.into());
                }
                Wish::Hello(_) => self.give_up_hello(client, ErrorCode::Again.into(), step),
            }
        }
        // What is saved lives.
        while !self.books.objects.ending.is_empty() {
            self.sweep_objects(step);
        }
        while self.books.allocations.next_ending().is_some() {
            step.allowances = Allowances::of_a_step();
            self.sweep_ended(step);
        }
        // The teardown of an owner goes on, and what it kept lives on from now.
        self.after(step);
    }
}
