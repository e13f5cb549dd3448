//! `--sort`: sorts records. Must never hold more than a bounded number of them.

use super::choice::find;
use super::column::Column;
use crate::error::{Error, Result};
use std::cmp::Ordering;

/// Most records that `--sort` keeps: the default number of slots of a broker. With 96 bytes each, and a quarter more while
/// records arrive, this takes some 130 MiB.
pub const SORTED_RECORDS: usize = 1 << 20;

/// The columns to sort by, and whether each is descending. The first that differs decides, then the broker's order.
pub struct Order<R: 'static>(Vec<(&'static Column<R>, bool)>);

impl<R> Order<R> {
    /// Reads `COL[:desc][,...]`.
    pub fn parse(columns: &'static [Column<R>], text: &str) -> Result<Self> {
        let key = |part: &str| {
            let (name, direction) = part.trim().split_once(':').unwrap_or((part.trim(), "asc"));
            let is_descending = match direction {
                "asc" => false,
                "desc" => true,
                _ => {
                    let part = part.escape_debug();
                    let message = format!("--sort {part}: after the colon comes asc or desc");
                    return Err(Error::Usage(message));
                }
            };
            Ok((find(columns, name)?, is_descending))
        };
        text.split(',').map(key).collect::<Result<_>>().map(Order)
    }

    fn compare(&self, a: &R, b: &R) -> Ordering {
        for (column, is_descending) in &self.0 {
            let order = column.value(a).order(&column.value(b));
            if order != Ordering::Equal {
                return if *is_descending { order.reverse() } else { order };
            }
        }
        Ordering::Equal
    }
}

/// Sorts the records it is given, and keeps the first [`SORTED_RECORDS`].
pub struct Sorter<R: 'static> {
    order: Order<R>,
    kept: Vec<(u64, R)>,
    most: usize,
    seen: u64,
}

impl<R> Sorter<R> {
    /// Has no records yet.
    pub fn new(order: Order<R>) -> Self {
        Self::with_room(order, SORTED_RECORDS)
    }

    fn with_room(order: Order<R>, most: usize) -> Self {
        Sorter { order, kept: Vec::new(), most, seen: 0 }
    }

    /// Adds a record, in the order of the broker.
    pub fn push(&mut self, record: R) {
        self.kept.push((self.seen, record));
        self.seen += 1;
        // Rare enough for a constant cost per record.
        if self.kept.len() > self.most + self.most / 4 {
            self.cut();
        }
    }

    /// The sorted records, and the number of those left out.
    pub fn finish(mut self) -> (Vec<R>, u64) {
        self.cut();
        let Sorter { order, mut kept, seen, .. } = self;
        kept.sort_unstable_by(|a, b| order.compare(&a.1, &b.1).then(a.0.cmp(&b.0)));
        let left_out = seen - kept.len() as u64;
        (kept.into_iter().map(|(_, record)| record).collect(), left_out)
    }

    fn cut(&mut self) {
        if self.kept.len() > self.most {
            let order = &self.order;
            self.kept.select_nth_unstable_by(self.most, |a, b| {
                order.compare(&a.1, &b.1).then(a.0.cmp(&b.0))
            });
            self.kept.truncate(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
