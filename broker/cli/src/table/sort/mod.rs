//! `--sort`: sorts records. Must never hold more than a bounded number of them.

use super::choice::find;
use super::column::Column;
use crate::error::{Error, Result};
use std::cmp::Ordering;

/// Most records that an order keeps. With 496 bytes each, and a quarter more while records arrive,
/// this takes some 160 MiB.
pub const SORTED_RECORDS: usize = 1 << 18;

/// The columns to sort by, and whether each is descending. The first that differs decides, then the
/// broker's order.
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
mod tests;
