//! `--filter`: which records are wanted. Must never take what is missing for a value: a comparison with it
//! is false, but for `!=` and for the word `none`.

use super::{Column, Value};
use std::cmp::Ordering;

/// How a value is compared.
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
    /// `=~`: text that contains this.
    Contains,
}

impl Operator {
    /// As they are written; a longer one stands before its beginning.
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
    /// Of a column with a value of its kind.
    Comparison(&'static Column<R>, Operator, Value),
    /// All of these.
    All(Vec<Filter<R>>),
    /// At least one of these.
    Any(Vec<Filter<R>>),
}

impl<R> Filter<R> {
    /// Whether a record is wanted.
    pub fn has(&self, record: &R) -> bool {
        match self {
            Filter::Comparison(column, operator, value) => {
                operator.holds(&(column.value)(record), value)
            }
            Filter::All(parts) => parts.iter().all(|part| part.has(record)),
            Filter::Any(parts) => parts.iter().any(|part| part.has(record)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, parse};
    use super::*;
    use fdbroker_protocol::AllocationId;

    struct Row(u64, Option<u32>, &'static str, bool);

    const COLUMNS: &[Column<Row>] = &[
        Column::new(Kind::Size, "SIZE", "size_bytes", "", |it| Value::Size(it.0)),
        Column::new(Kind::Number, "OWNER", "owner_pid", "", |it| Value::number_or(it.1, "gone")),
        Column::new(Kind::Text, "NAME", "name", "", |it| Value::word(it.2)),
        Column::new(Kind::Flag, "KEEP", "keep", "", |it| Value::Flag(it.3)),
        Column::new(Kind::Time, "AGE", "age_seconds", "", |it| Value::Time(it.0)),
        Column::new(Kind::Allocation, "ALLOCATION", "allocation", "", |it| {
            Value::Allocation(AllocationId { slot: 12, generation: it.1.unwrap_or(0) })
        }),
    ];

    fn has(filter: &str, row: &Row) -> bool {
        parse::filter(COLUMNS, filter).unwrap_or_else(|error| panic!("{error}")).has(row)
    }

    #[test]
    fn filter_when_each_operator_then_as_written() {
        let row = Row(65536, Some(7), "rank 3", true);
        for (filter, expected) in [
            ("SIZE == 64KiB", true),
            ("SIZE!=65536", false),
            ("SIZE < 64KiB", false),
            ("SIZE <= 64KiB", true),
            ("SIZE > 1KiB", true),
            ("size_bytes >= 1MiB", false),
            ("NAME =~ rank", true),
            ("NAME =~ 'k 3'", true),
            ("NAME =~ Rank", false),
            ("NAME == \"rank 3\"", true),
            ("KEEP == yes", true),
            ("KEEP != true", false),
            ("AGE > 1m", true),
            ("age > 66", false),
            ("ALLOCATION == 12.7", true),
            ("ALLOCATION < 12.8", true),
            ("OWNER == 0x7", true),
        ] {
            assert_eq!(has(filter, &row), expected, "{filter}");
        }
    }

    #[test]
    fn filter_when_joined_then_and_before_or_and_parentheses_first() {
        let row = Row(1, Some(7), "x", false);
        assert!(has("SIZE == 1 or SIZE == 2 and OWNER == 8", &row));
        assert!(!has("(SIZE == 1 or SIZE == 2) and OWNER == 8", &row));
        assert!(has("((SIZE==1))AND(owner==7 Or NAME==y)", &row));
    }

    #[test]
    fn filter_when_a_value_is_missing_then_only_none_and_unequal_find_it() {
        let gone = Row(1, None, "none", false);
        for filter in ["OWNER < 9", "OWNER >= 0", "OWNER == 0", "OWNER != none", "OWNER <= none"] {
            assert!(!has(filter, &gone), "{filter}");
        }
        assert!(has("OWNER == none", &gone) && has("OWNER != 7", &gone));
        assert!(has("OWNER != none", &Row(1, Some(0), "", false)));
        // In quotes it is a text like any other.
        assert!(has("NAME == 'none'", &gone) && !has("NAME == none", &gone));
    }
}
