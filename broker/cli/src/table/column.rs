//! A column of a list, and what it holds. Must never know how a list is printed, sorted or filtered.

use super::value::Value;
use crate::output::Side;

/// What a column holds. It decides how values are compared, read from a filter and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text, fit for a terminal.
    Text,
    /// A count or number.
    Number,
    /// Bytes.
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
            Kind::Flag | Kind::Allocation => Side::Left,
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
    /// Its value in a record: one of `kind`, or [`Value::None`].
    pub value: fn(&R) -> Value,
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
        Column { name, key, help, kind, is_default: true, value }
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
}
