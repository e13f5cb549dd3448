//! Records in order, and what is left out.

use super::super::column::Kind;
use super::super::value::Value;
use super::*;

const COLUMNS: &[Column<(u64, u64)>] = &[
    Column::new(Kind::Number, "A", "a", "", |it| Value::Number(it.0)),
    Column::new(Kind::Number, "B", "b", "", |it| match it.1 {
        0 => Value::None("-"),
        some => Value::Number(some),
    }),
];

fn sorted(spec: &str, most: usize, records: &[(u64, u64)]) -> (Vec<(u64, u64)>, u64) {
    let order = Order::parse(COLUMNS, spec).expect("a sort");
    let mut sorter = Sorter::with_room(order, most);
    records.iter().for_each(|record| sorter.push(*record));
    sorter.finish()
}

#[test]
fn sort_when_two_columns_then_the_second_decides_between_equals() {
    let records = [(1, 5), (2, 1), (1, 7), (2, 0)];
    assert_eq!(sorted("A,B:desc", 9, &records).0, [(1, 7), (1, 5), (2, 1), (2, 0)]);
    assert_eq!(sorted("b", 9, &records).0, [(2, 0), (2, 1), (1, 5), (1, 7)]);
    // Equal ones stay as the broker gave them.
    assert_eq!(sorted("a:desc", 9, &records).0, [(2, 1), (2, 0), (1, 5), (1, 7)]);
}

#[test]
fn sort_when_more_than_there_is_room_for_then_the_first_in_order_and_a_count() {
    let records: Vec<(u64, u64)> = (0..1000).map(|n| (n * 7919 % 1000, n)).collect();
    let (kept, left_out) = sorted("A:desc", 10, &records);
    let kept: Vec<u64> = kept.iter().map(|record| record.0).collect();
    assert_eq!(kept, [999, 998, 997, 996, 995, 994, 993, 992, 991, 990]);
    assert_eq!(left_out, 990);
}

#[test]
fn sort_when_used_wrongly_then_usage() {
    for spec in ["", "C", "A:up", "A:desc:desc", "A,"] {
        let error = Order::parse(COLUMNS, spec).err().expect(spec);
        assert_eq!(error.exit_status(), crate::error::exit::USAGE);
    }
}
