//! One machinery for every list: columns are declared once and serve the table, JSON, `-o`, `--sort` and
//! `--filter` alike. Must never hold more records than one page, but those that `--sort` asks for.

mod args;
mod choice;
mod filter;
mod literal;
mod parse;
mod print;
mod sort;
mod value;

pub use args::{ListArgs, after_help};
pub use print::{Fields, List};
pub use value::Value;

use crate::output::Side;

/// What a column holds: how it is compared, read from a filter and set in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// A count or number.
    Number,
    /// Bytes.
    Size,
    /// A time span: [`Value::Time`].
    Time,
    /// Yes or no.
    Flag,
    /// An allocation, SLOT.GENERATION.
    Allocation,
}

impl Kind {
    /// As `-H` names it.
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

    /// Numbers stand to the right; text is cut where there is no room.
    pub fn side(self) -> Side {
        match self {
            Kind::Number | Kind::Size | Kind::Time => Side::Right,
            Kind::Text => Side::LeftOrCut,
            Kind::Flag | Kind::Allocation => Side::Left,
        }
    }
}

/// One column of records `R`. Made by [`Column::new`]; a list of them is all that a new list needs.
#[derive(Debug)]
pub struct Column<R: 'static> {
    /// Its heading, in capitals; users name it in any case.
    pub name: &'static str,
    /// Its key in JSON; users may name it by this too.
    pub key: &'static str,
    /// What it is, for `-H`.
    pub help: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Shown when `-o` does not say otherwise. JSON then has all columns.
    pub is_default: bool,
    /// Its value, of `kind` or [`Value::None`].
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
        Column { name, key, help, kind, is_default: false, value }
    }
}
