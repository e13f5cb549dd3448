//! `--filter`: which records are wanted. Must never take a missing value for 0 or empty text: every
//! comparison with it is false, except `!=` and the word `none`.

use super::column::Column;
use super::value::Value;
use std::cmp::Ordering;

/// An operator between a column and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
    /// `=~`: the text contains this one.
    Contains,
}

impl Operator {
    /// How operators are written. `<=` stands before `<`, since the first that fits is taken.
    pub const WRITTEN: &[(&str, Operator)] = &[
        ("==", Operator::Equal),
        ("!=", Operator::Unequal),
        ("<=", Operator::AtMost),
        (">=", Operator::AtLeast),
        ("=~", Operator::Contains),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];

    fn holds(self, found: &Value, wanted: &Value) -> bool {
        let either_missing = matches!(found, Value::None(_)) || matches!(wanted, Value::None(_));
        let order = found.order(wanted);
        match self {
            Operator::Equal => order == Ordering::Equal,
            Operator::Unequal => order != Ordering::Equal,
            _ if either_missing => false,
            Operator::Less => order == Ordering::Less,
            Operator::AtMost => order != Ordering::Greater,
            Operator::Greater => order == Ordering::Greater,
            Operator::AtLeast => order != Ordering::Less,
            Operator::Contains => match (found, wanted) {
                (Value::Text(found), Value::Text(wanted)) => found.contains(wanted.as_ref()),
                _ => false,
            },
        }
    }
}

/// A filter, or a part of one.
pub enum Filter<R: 'static> {
    /// Compares a column with a value of its kind.
    Comparison(&'static Column<R>, Operator, Value),
    /// Wants records that all of these want.
    All(Vec<Filter<R>>),
    /// Wants records that at least one of these wants.
    Any(Vec<Filter<R>>),
}

impl<R> Filter<R> {
    /// Whether a record is wanted.
    pub fn has(&self, record: &R) -> bool {
        match self {
            Filter::Comparison(column, operator, value) => {
                operator.holds(&column.value(record), value)
            }
            Filter::All(parts) => parts.iter().all(|part| part.has(record)),
            Filter::Any(parts) => parts.iter().any(|part| part.has(record)),
        }
    }
}
