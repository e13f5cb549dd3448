//! The data that `top` shows: the latest sample, rates, order, filter and events. Must never read a clock nor ask the broker.

use super::events::Events;
use super::sample::Sample;
use crate::records::{self, UseView, clients};
use crate::table::{Column, Kind};
use fdbroker_protocol::admin::{ClientRecord, LeaseRecord};
use fdbroker_protocol::{ByCounter, Resource};
use std::cmp::{Ordering, Reverse};

/// Columns of the clients by their keys: those before the resources that lists show, and those after them.
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

/// The order of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Index in [`client_columns`].
    pub column: usize,
    /// Reversed.
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
    /// Matches `pid:N`, `uid:N`, a number that is a pid or uid, or a part of the name in any case. Empty text matches all.
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

/// The model.
#[derive(Debug)]
pub struct Model {
    /// The latest sample.
    pub latest: Sample,
    /// Rates per second between the two latest samples; `None`: there is only one sample of this broker.
    pub rates: Option<ByCounter<f64>>,
    /// The events.
    pub events: Events,
    /// The reason why the broker does not answer.
    pub lost: Option<String>,
}

impl Model {
    /// With a first sample.
    pub fn new(first: Sample) -> Self {
        Model { latest: first, rates: None, events: Events::default(), lost: None }
    }

    /// Takes the next sample.
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

    /// Names and rates.
    pub fn rates_named(&self) -> Option<impl Iterator<Item = (&'static str, f64)>> {
        Some(self.rates.as_ref()?.iter().map(|(counter, rate)| (counter.name(), *rate)))
    }

    /// The uses of resources: first those with a cap, which can be full. Where there is little room the last are left
    /// out.
    pub fn uses(&self) -> impl Iterator<Item = (Resource, &UseView)> {
        let uses = &self.latest.status.uses;
        let capped = uses.iter().filter(|(_, item)| item.cap.is_some());
        capped.chain(uses.iter().filter(|(_, item)| item.cap.is_none()))
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

    /// Leases that match the filter: open ones, which cost fds, before mapped ones, and the oldest first.
    pub fn oldest_leases(&self, filter: &Filter) -> Vec<&LeaseRecord> {
        let is_wanted = |it: &&LeaseRecord| filter.has(it.pid.get(), it.uid.get(), &it.name);
        let mut leases: Vec<_> = self.latest.leases.iter().filter(is_wanted).collect();
        let age = |it: &LeaseRecord| Reverse(it.age_ms.get());
        leases.sort_by_key(|it| (!is_open(it), age(it), it.lease.get()));
        leases
    }
}

/// Whether the lease is open.
pub fn is_open(lease: &LeaseRecord) -> bool {
    /// `LeaseRecord::state` of an open lease.
    const OPEN: u32 = 1;
    lease.state.get() == OPEN
}

/// Rates per second between two samples; `None`: they are of two brokers.
fn rates(old: &Sample, new: &Sample) -> Option<ByCounter<f64>> {
    let seconds = new.at.saturating_duration_since(old.at).as_secs_f64();
    if old.status.incarnation != new.status.incarnation || seconds <= 0.0 {
        return None;
    }
    let (old, new) = (&old.status.counters, &new.status.counters);
    #[allow(clippy::cast_precision_loss)] // one decimal is shown
    Some(ByCounter::from_fn(|it| new[it].saturating_sub(old[it]) as f64 / seconds))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{client, lease, sample};
    use super::*;
    use std::time::Duration;

    fn pids(clients: &[&ClientRecord]) -> Vec<u32> {
        clients.iter().map(|it| it.pid.get()).collect()
    }

    fn by(key: &str) -> Order {
        let column = client_columns().iter().position(|it| it.key == key).expect("a column");
        Order { column, reversed: false }
    }

    #[test]
    fn client_columns_when_looked_up_then_all_are_there() {
        let (before, after) = CLIENT_KEYS;
        let fds_twice = 1;
        let keys = before.len() + records::SHOWN.len() + after.len() - fds_twice;
        assert_eq!(client_columns().len(), keys);
    }

    #[test]
    fn rates_when_two_samples_then_per_second_between_them() {
        let mut model = Model::new(sample(&[]));
        assert_eq!(model.rates, None);
        let mut new = model.latest.clone();
        new.at += Duration::from_millis(500);
        new.status.counters.grants += 600;
        new.status.counters.refusals += 1;
        model.update(new.clone());
        let rates: Vec<_> = model.rates_named().expect("two samples").collect();
        assert_eq!(rates[0], ("grants", 1200.0));
        assert_eq!(rates[1], ("refusals", 2.0));
        new.status.incarnation = "another".into();
        new.status.counters.grants = 0;
        model.update(new);
        assert_eq!(model.rates, None);
    }

    #[test]
    fn clients_when_ordered_then_numbers_descend_and_text_ascends_and_reversed_is_the_other_way() {
        let mut clients = [client(3, "b"), client(1, "c"), client(2, "a")];
        clients[0].uses.fds = 5.into();
        clients[1].uses.fds = 70.into();
        clients[2].uses.fds = 5.into();
        let model = Model::new(sample(&clients));
        let pids_by = |order| pids(&model.clients(order, &Filter::default()));
        assert_eq!(pids_by(Order::default()), [1, 2, 3]);
        assert_eq!(pids_by(Order { reversed: true, ..Order::default() }), [2, 3, 1]);
        assert_eq!(pids_by(by("name")), [2, 3, 1]);
        assert_eq!(pids_by(by("pid")), [1, 2, 3]);
        assert_eq!(pids_by(Order { reversed: true, ..by("pid") }), [3, 2, 1]);
    }

    #[test]
    fn order_when_moved_on_through_all_columns_then_back_at_the_first() {
        let end = client_columns().iter().fold(Order::default(), |order, _| order.next());
        assert_eq!(end, Order::default());
    }

    #[test]
    fn filter_when_pid_uid_or_part_of_a_name_then_those() {
        let mut clients = [client(10, "Rank-0"), client(11, "rank-1"), client(12, "tool")];
        clients[2].uid = 11.into();
        let model = Model::new(sample(&clients));
        let found = |text: &str| pids(&model.clients(by("pid"), &Filter(text.into())));
        assert_eq!(found(""), [10, 11, 12]);
        assert_eq!(found("rank"), [10, 11]);
        assert_eq!(found("11"), [11, 12]);
        assert_eq!(found("pid:11"), [11]);
        assert_eq!(found("uid:11"), [12]);
        assert!(found("pid:x").is_empty());
        assert!(found("nobody").is_empty());
    }

    #[test]
    fn oldest_leases_when_some_are_mapped_then_open_ones_first_and_each_by_age() {
        let mut sample = sample(&[]);
        sample.leases = vec![lease(1, 10, 1), lease(2, 30, 2), lease(3, 20, 1)];
        let model = Model::new(sample);
        let oldest = |filter: &str| -> Vec<u64> {
            let leases = model.oldest_leases(&Filter(filter.into()));
            leases.iter().map(|it| it.lease.get()).collect()
        };
        assert_eq!(oldest(""), [3, 1, 2]);
        assert_eq!(oldest("holder"), [3, 1, 2]);
        assert!(oldest("nobody").is_empty());
    }

    #[test]
    fn lost_when_the_broker_answers_again_then_not_any_more_and_rates_are_known_after_a_second_sample()
     {
        let mut model = Model::new(sample(&[]));
        let mut new = model.latest.clone();
        new.at += Duration::from_secs(1);
        model.update(new.clone());
        model.lose("gone".into());
        assert_eq!((model.lost.as_deref(), model.rates), (Some("gone"), None));
        new.at += Duration::from_secs(1);
        model.update(new);
        assert!(model.lost.is_none() && model.rates.is_some());
    }
}
