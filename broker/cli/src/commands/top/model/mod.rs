//! The data that `top` shows: the latest sample, rates, order, filter and events. Must never read a
//! clock nor ask the broker.

use super::events::Events;
use super::sample::Sample;
use crate::records::{self, UseView, clients};
use crate::table::{Column, Kind};
use fdbroker_protocol::admin::{ClientRecord, LeaseRecord};
use fdbroker_protocol::{ByCounter, Resource};
use std::cmp::{Ordering, Reverse};

/// Columns of the clients by their keys: those before the resources that lists show, and those
/// after them.
const CLIENT_KEYS: (&[&str], &[&str]) =
    (&["pid", "name", "uid", "fds", "silent"], &["parked_requests"]);

/// Columns of the clients as `top` shows them; where there is no room the last are left out.
pub fn client_columns() -> Vec<&'static Column<ClientRecord>> {
    let (before, after) = CLIENT_KEYS;
    let resources = records::SHOWN.iter().map(|resource| resource.name());
    let resources = resources.filter(|name| !before.contains(name));
    let keys: Vec<_> =
        before.iter().copied().chain(resources).chain(after.iter().copied()).collect();
    columns(&clients::COLUMNS, &keys)
}

/// The columns of `all` with these keys, in the order of the keys.
pub fn columns<R>(all: &'static [Column<R>], keys: &[&str]) -> Vec<&'static Column<R>> {
    keys.iter().filter_map(|key| all.iter().find(|column| column.key == *key)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Index in [`client_columns`].
    pub column: usize,
    pub reversed: bool,
}

impl Default for Order {
    /// The clients with most fds first.
    fn default() -> Self {
        let column = client_columns().iter().position(|it| it.key == Resource::Fds.name());
        Order { column: column.unwrap_or(0), reversed: false }
    }
}

impl Order {
    /// The order by the next column.
    pub fn next(self) -> Self {
        Order { column: (self.column + 1) % client_columns().len(), reversed: false }
    }

    /// Whether the largest comes first: so for numbers, but not for text and ids.
    pub fn is_descending(self, column: &Column<ClientRecord>) -> bool {
        let is_id = matches!(column.key, "pid" | "uid") || column.kind == Kind::Text;
        is_id == self.reversed
    }
}

/// A filter of clients and leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(pub String);

impl Filter {
    /// Matches `pid:N`, `uid:N`, a number that is a pid or uid, or a part of the name in any case.
    /// Empty text matches all.
    fn has(&self, pid: u32, uid: u32, name: &[u8]) -> bool {
        let text = self.0.trim();
        let is = |number: u32, text: &str| text.parse() == Ok(number);
        if let Some(text) = text.strip_prefix("pid:") {
            return is(pid, text);
        }
        if let Some(text) = text.strip_prefix("uid:") {
            return is(uid, text);
        }
        let name = || records::name(name).shown().to_lowercase();
        is(pid, text) || is(uid, text) || name().contains(&text.to_lowercase())
    }
}

#[derive(Debug)]
pub struct Model {
    pub latest: Sample,
    /// Rates per second between the two latest samples; `None`: there is only one sample of this
    /// broker.
    pub rates: Option<ByCounter<f64>>,
    pub events: Events,
    /// The reason why the broker does not answer.
    pub lost: Option<String>,
}

impl Model {
    pub fn new(first: Sample) -> Self {
        Model { latest: first, rates: None, events: Events::default(), lost: None }
    }

    pub fn update(&mut self, new: Sample) {
        self.lost = None;
        self.rates = rates(&self.latest, &new);
        self.latest = new;
    }

    /// Notes that the broker does not answer.
    pub fn lose(&mut self, why: String) {
        self.lost = Some(why);
        self.rates = None;
    }

    pub fn rates_named(&self) -> Option<impl Iterator<Item = (&'static str, f64)>> {
        Some(self.rates.as_ref()?.iter().map(|(counter, rate)| (counter.name(), *rate)))
    }

    /// The uses of resources: first those with a cap, which can be full. Where there is little room
    /// the last are left out.
    pub fn uses(&self) -> impl Iterator<Item = (Resource, &UseView)> {
        let uses = || self.latest.status.uses.iter().filter(|(_, item)| item.is_counted);
        let capped = uses().filter(|(_, item)| item.cap.is_some());
        capped.chain(uses().filter(|(_, item)| item.cap.is_none()))
    }

    /// Clients that match the filter, in this order, equal ones by pid.
    pub fn clients(&self, order: Order, filter: &Filter) -> Vec<&ClientRecord> {
        let is_wanted = |it: &&ClientRecord| filter.has(it.pid.get(), it.uid.get(), &it.name);
        let mut clients: Vec<_> = self.latest.clients.iter().filter(is_wanted).collect();
        let columns = client_columns();
        let compare = |a: &ClientRecord, b: &ClientRecord| {
            let Some(column) = columns.get(order.column) else { return Ordering::Equal };
            let ordering = column.value(a).order(&column.value(b));
            if order.is_descending(column) { ordering.reverse() } else { ordering }
        };
        clients.sort_by(|a, b| compare(a, b).then_with(|| a.pid.get().cmp(&b.pid.get())));
        clients
    }

    /// Leases that match the filter: open ones, which cost fds, before mapped ones, and the oldest
    /// first.
    pub fn oldest_leases(&self, filter: &Filter) -> Vec<&LeaseRecord> {
        let is_wanted = |it: &&LeaseRecord| filter.has(it.pid.get(), it.uid.get(), &it.name);
        let mut leases: Vec<_> = self.latest.leases.iter().filter(is_wanted).collect();
        let age = |it: &LeaseRecord| Reverse(it.age_ms.get());
        leases.sort_by_key(|it| (!is_open(it), age(it), it.lease.get()));
        leases
    }
}

pub fn is_open(lease: &LeaseRecord) -> bool {
    /// `LeaseRecord::state` of an open lease.
    const OPEN: u32 = 1;
    lease.state.get() == OPEN
}

/// Rates per second between two samples; `None`: they are of two brokers, or not counted of a
/// user's part.
fn rates(old: &Sample, new: &Sample) -> Option<ByCounter<f64>> {
    let seconds = new.at.saturating_duration_since(old.at).as_secs_f64();
    if old.status.incarnation != new.status.incarnation || seconds <= 0.0 {
        return None;
    }
    let (old, new) = (old.status.counters.as_ref()?, new.status.counters.as_ref()?);
    #[allow(clippy::cast_precision_loss)] // one decimal is shown
    Some(ByCounter::from_fn(|it| new[it].saturating_sub(old[it]) as f64 / seconds))
}

#[cfg(test)]
mod tests;
