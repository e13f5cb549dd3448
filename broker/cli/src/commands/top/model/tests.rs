//! Orders, filters and rates.

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
    new.status.counters.as_mut().expect("of the node").grants += 600;
    new.status.counters.as_mut().expect("of the node").refusals += 1;
    model.update(new.clone());
    let rates: Vec<_> = model.rates_named().expect("two samples").collect();
    assert_eq!(rates[0], ("grants", 1200.0));
    assert_eq!(rates[1], ("refusals", 2.0));
    new.status.incarnation = "another".into();
    new.status.counters.as_mut().expect("of the node").grants = 0;
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
