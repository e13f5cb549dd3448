//! A column of a list, and what it holds. Must never know how a list is printed, sorted or
//! filtered.

use super::value::Value;
use crate::output::Side;
use fdbroker_protocol::{Resource, Scope, Unit};

/// What a column holds. It decides how values are compared, read from a filter and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text, as it is: it is made fit for a terminal where it is printed.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A count or number.
    Number,
    /// A size in bytes.
    Size,
    /// A time span in ms.
    Time,
    /// Yes or no.
    Flag,
    /// An allocation, SLOT.GENERATION.
    Allocation,
}

impl Kind {
    /// The name that `-H` prints.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Word(_) => "word",
            Kind::Number => "number",
            Kind::Size => "bytes",
            Kind::Time => "seconds",
            Kind::Flag => "flag",
            Kind::Allocation => "allocation",
        }
    }

    /// Where it stands in its column of a table. Only text is cut where there is no room.
    pub fn side(self) -> Side {
        match self {
            Kind::Number | Kind::Size | Kind::Time => Side::Right,
            Kind::Text => Side::LeftOrCut,
            Kind::Word(_) | Kind::Flag | Kind::Allocation => Side::Left,
        }
    }
}

/// One column of records `R`. A new list needs nothing but its columns.
#[derive(Debug)]
pub struct Column<R: 'static> {
    /// Its heading, in capitals; users name it in any case.
    pub name: &'static str,
    /// Its key in JSON; users may name it by this too.
    pub key: &'static str,
    /// Explains the column in `-H`.
    pub help: &'static str,
    /// Kind of all its values.
    pub kind: Kind,
    /// Shown in a table without `-o`. JSON has all columns then.
    pub is_default: bool,
    source: Source<R>,
}

/// Where a column's value comes from.
#[derive(Debug)]
enum Source<R: 'static> {
    /// A function of the record.
    Record(fn(&R) -> Value),
    /// A row of the table of resources, read from the record.
    Resource(Resource, fn(&R, Resource) -> u64),
}

impl<R> Column<R> {
    /// A column that is shown by default.
    pub const fn new(
        kind: Kind,
        name: &'static str,
        key: &'static str,
        help: &'static str,
        value: fn(&R) -> Value,
    ) -> Self {
        Column { name, key, help, kind, is_default: true, source: Source::Record(value) }
    }

    /// A column that is shown only with `-o`, and in JSON.
    pub const fn on_request(
        kind: Kind,
        name: &'static str,
        key: &'static str,
        help: &'static str,
        value: fn(&R) -> Value,
    ) -> Self {
        Column { is_default: false, ..Self::new(kind, name, key, help, value) }
    }

    /// A column of each resource that clients and jobs are charged for, in the table's order: all
    /// in JSON and with `-o`, those of `shown` by default. `count` gives how much of it the record
    /// has.
    pub fn of_resources(
        shown: &[Resource],
        count: fn(&R, Resource) -> u64,
    ) -> impl Iterator<Item = Column<R>> {
        let charged = Resource::ALL.iter().filter(|it| it.narrowest() == Scope::Client);
        charged.map(move |&resource| Column {
            // Made once for the life of the process.
            name: resource.name().to_uppercase().leak(),
            key: resource.name(),
            help: resource.help(),
            kind: if resource.unit() == Unit::Bytes { Kind::Size } else { Kind::Number },
            is_default: shown.contains(&resource),
            source: Source::Resource(resource, count),
        })
    }

    /// Its value in a record: one of `kind`, or [`Value::None`].
    pub fn value(&self, record: &R) -> Value {
        match self.source {
            Source::Record(value) => value(record),
            Source::Resource(resource, count) => match self.kind {
                Kind::Size => Value::Size(count(record, resource)),
                _ => Value::Number(count(record, resource)),
            },
        }
    }
}
