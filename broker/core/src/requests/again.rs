//! Parked requests are looked at again, until they are served or given up. Must never serve a later
//! request of a domain with what an earlier one of it waits for.

use crate::api::{Asker, ClientId, Effect, Granted, Item, NONE};
use crate::books::rooms::Number;
use crate::books::{Books, Fate, Parked, Wait, Wish};
use crate::core::Core;
use crate::limits::{
    LISTENERS_WOKEN_PER_LOOK, LOOKS_PER_TURN, PARKED_ITEMS_PER_STEP, PARKED_LOOKS_PER_STEP,
};
use crate::moves::Step;
use crate::requests::turn::{Attempt, Turn};
use fdbroker_protocol::ErrorCode;

impl Core {
    pub(crate) fn sendable(&mut self, client: ClientId, sendable: bool, step: &mut Step) {
        let Some(record) = self.books.client(client) else { return };
        record.sendable = sendable;
        let parked = record.parked.clone();
        if sendable {
            let waits = |seq: &u64| self.books.parked[seq].wait == Wait::Reader;
            let waiting: Vec<u64> = parked.into_iter().filter(waits).collect();
            waiting.into_iter().for_each(|seq| self.books.look_soon(seq));
        } else {
            // Its turn may not come for long: it must not stand before others.
            parked.into_iter().for_each(|seq| self.wait_for_reader(seq, step));
        }
    }

    /// Makes those ready that wait for an account of which something has come back.
    fn wake_all(&mut self) {
        while let Some(account) = self.books.ledger.next_freed() {
            self.books.hear_of(account);
        }
        for _ in 0..LISTENERS_WOKEN_PER_LOOK {
            let Some((account, until)) = self.books.rooms.heard.first_key_value() else { return };
            let (account, until) = (*account, *until);
            let Books { rooms, parked, .. } = &mut self.books;
            let next = rooms.listeners.range((account, 0, 0)..(account, until, 0)).next();
            let Some((_, since, seq)) = next.copied() else {
                rooms.heard.remove(&account);
                continue;
            };
            let now = rooms.tick();
            rooms.listeners.remove(&(account, since, seq));
            rooms.listeners.insert((account, now, seq));
            let listener = parked.get_mut(&seq).expect("listeners are parked");
            let listen = listener.listens.iter_mut().find(|listen| listen.0 == account);
            listen.expect("it listens to the account").1 = now;
            self.books.look_soon(seq);
        }
    }

    /// Looks at ready requests, a few a step, the domains in turn. A later one passes by those that
    /// wait for caps which it does not need itself.
    pub(crate) fn serve_waiting(&mut self, step: &mut Step) {
        let mut items = 0;
        for _ in 0..PARKED_LOOKS_PER_STEP {
            self.wake_all();
            if items >= PARKED_ITEMS_PER_STEP || step.fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let Some(seq) = self.books.rooms.next() else { return };
            items += self.books.parked[&seq].wish.items();
            self.look(seq, step);
        }
        self.wake_all();
    }

    fn look(&mut self, seq: u64, step: &mut Step) {
        let (place, number) = self.books.place(seq);
        self.books.rooms.unready(place, number);
        let taken = self.books.taken();
        let wait = self.retry(seq, Turn::InLine(seq), step);
        if let Some(Wait::Room(account)) = wait {
            if self.books.is_behind(seq, account) {
                self.books.wake(account)
            } else {
                _ = self.books.rooms.open.remove(&account)
            }
        }
        let looks =
            if self.books.rooms.looks.0 == number { self.books.rooms.looks.1 + 1 } else { 1 };
        self.books.rooms.looks = (number, looks);
        // One that joined a recall under way, or waits for an owner to come back, had nothing of
        // the room.
        let is_served = match wait {
            None => true,
            Some(Wait::Recall) => self.books.taken() != taken,
            Some(_) => false,
        };
        if is_served || looks >= LOOKS_PER_TURN {
            self.end_turn(number);
        }
    }

    /// The domain has had its turn: the others come before it.
    pub(crate) fn end_turn(&mut self, number: Number) {
        self.books.rooms.looks = (number, 0);
        if number == NONE {
            return;
        }
        let turn = self.books.rooms.last_turn();
        let former = std::mem::replace(&mut self.books.clients.domain_mut(number).turn, turn);
        if self.books.rooms.turns.remove(&(former, number)) {
            self.books.rooms.turns.insert((turn, number));
        }
        // Others may be the first in line for what it has left.
        let open = std::mem::take(&mut self.books.rooms.open);
        open.into_iter().for_each(|account| self.books.wake(account));
    }

    /// Looks at a parked request again. `turn`: what it may take. Says what it still waits for;
    /// `None` when it has been answered.
    fn retry(&mut self, seq: u64, turn: Turn, step: &mut Step) -> Option<Wait> {
        if self.books.is_answer_certain(seq) {
            self.answer_ended_item(seq, step);
            return None;
        }
        let parked = self.books.parked.get(&seq)?;
        let (by, deadline, supplied) = (parked.by, parked.deadline, parked.supplied);
        step.also_blocked.clear();
        let attempt = Attempt { turn, first: false, ..Attempt::new(by, seq, deadline) };
        let wait = match parked.wish.clone() {
            Wish::Credits(wanted) => self.try_credits(by, wanted, turn, step),
            Wish::Hello(own) => {
                let blocked = self.let_in(by, own, turn, step).err();
                blocked.map(|blocked| self.wait_of_hello(by.client.0, own, blocked, step))
            }
            Wish::Acquire(wanted) if self.books.clients[by.client.0].sendable => {
                self.try_acquire(attempt, &wanted, step)
            }
            Wish::Get(get, _) => {
                let looked = self.look_at_get(attempt, get.scope, &get.names, step);
                looked.map(|(wait, at)| {
                    self.books.stand_at(seq, at);
                    wait
                })
            }
            // It asks anew when its client reads.
            Wish::Acquire(_) => Some(Wait::Reader),
        };
        let Some(wait) = wait else {
            self.books.unpark(seq, step);
            return None;
        };
        self.books.wait_anew(seq, wait, supplied);
        self.books.place_items(seq, step);
        self.books.listen(seq, step);
        Some(wait)
    }

    /// The client of a parked request does not read: it waits for that, and does not stand before
    /// others.
    fn wait_for_reader(&mut self, seq: u64, step: &mut Step) {
        let parked = &self.books.parked[&seq];
        if let (Wish::Acquire(_) | Wish::Get(..), Wait::Room(_)) = (&parked.wish, parked.wait) {
            let supplied = parked.supplied;
            self.books.wait_anew(seq, Wait::Reader, supplied);
            self.books.listen(seq, step);
            if supplied {
                // Then nothing is kept back for it any more.
                self.books.look_soon(seq);
            }
        }
    }

    pub(crate) fn cancel(&mut self, by: Asker, step: &mut Step) {
        let Some(record) = self.books.clients.find(by.client.0) else { return };
        let found = record.parked.iter().find(|seq| self.books.parked[seq].by == by).copied();
        if let Some(seq) = found {
            self.books.unpark(seq, step);
            step.fail(by, ErrorCode::Cancelled.into());
        }
    }

    /// Answers a request of which an item has come to an end, out of its turn: nothing is granted,
    /// so that it overtakes nobody; what it may still have it asks for again.
    pub(crate) fn answer_ended_item(&mut self, seq: u64, step: &mut Step) {
        let Some(parked) = self.books.parked.get(&seq) else { return };
        let (Asker { client, request }, deadline) = (parked.by, parked.deadline);
        let Wish::Acquire(wanted) = &parked.wish else { unreachable!("only acquires have items") };
        let begin = step.fx.granted.len();
        for (item, node) in wanted.iter().zip(&parked.nodes) {
            // What is certain before its state shows it.
            let status = match (self.books.waiting.fate(*node), self.books.item(client, *item)) {
                (Some(Fate::Answer(id, status)), _) if *item == Ok(id) => status,
                (_, Item::Final(code)) => code.into(),
                _ => ErrorCode::Again.into(),
            };
            let status = self.books.naming_owner(client, *item, status);
            step.fx.granted.push(Granted::refused(*item, status));
        }
        self.books.unpark(seq, step);
        let range = begin..step.fx.granted.len();
        step.fx.list.push(Effect::Granted { client, request, range, deadline, seq });
    }

    pub(crate) fn deadline_passed(&mut self, seq: u64, step: &mut Step) {
        if self.books.is_answer_certain(seq) {
            return self.answer_ended_item(seq, step);
        }
        let Some(parked) = self.books.unpark(seq, step) else { return };
        let Parked { by, deadline, wish, wait, .. } = parked;
        let attempt = Attempt { first: false, ..Attempt::new(by, seq, deadline) };
        match wish {
            Wish::Acquire(wanted) => {
                // What stood in the way when it was last looked at may have gone since.
                let wait = match wait {
                    Wait::Room(_) => {
                        self.in_the_way(by.client, &wanted).map_or(Wait::Recall, Wait::Room)
                    }
                    Wait::Recall | Wait::Space(_) | Wait::Reader => wait,
                };
                self.answer_waiting(attempt, &wanted, wait, step);
            }
            Wish::Credits(wanted) => {
                // The room may have come in this very moment.
                if self.try_credits(by, wanted, Turn::Last, step).is_some() {
                    let status = self.no_credit(by.client);
                    self.books.refuse(by, status, step);
                }
            }
            Wish::Hello(own) => {
                if let Err(blocked) = self.let_in(by, own, Turn::Last, step) {
                    self.refuse_hello(by, own, blocked, step);
                }
            }
            Wish::Get(get, _) => self.get_too_late(attempt, &get, step),
        }
    }

    /// Serves requests of ready queues, a few a step; each time those of another domain's
    /// allocations.
    pub(crate) fn serve_ready(&mut self, step: &mut Step) {
        let mut items = 0;
        for _ in 0..PARKED_LOOKS_PER_STEP {
            let Some(queue) = self.books.waiting.next_ready() else { return };
            if items >= PARKED_ITEMS_PER_STEP || step.fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let (node, seq) =
                self.books.waiting.first(queue).expect("a queue without items is dropped");
            items += self.books.parked[&seq].nodes.len();
            let fate = self.books.waiting.fate_of(queue).expect("a ready queue");
            match fate {
                _ if self.books.client(self.books.parked[&seq].by.client).is_none() => {
                    _ = self.books.unpark(seq, step)
                }
                Fate::Answer(..) => self.answer_ended_item(seq, step),
                _ if self.books.has_ended_item(seq) => self.answer_ended_item(seq, step),
                Fate::InTurn => {
                    self.books.place_items(seq, step);
                    self.books.look_soon(seq);
                }
                Fate::Recalled(_) | Fate::Pinned(_) | Fate::Interested(_) | Fate::First => {
                    _ = self.retry(seq, Turn::First, step)
                }
            }
            let stays = self.books.waiting.fate_of(queue) == Some(fate)
                && self.books.waiting.first(queue) == Some((node, seq));
            assert!(!stays, "request {seq} was looked at, and stands where it stood");
            self.books.waiting.end_turn();
        }
    }
}
