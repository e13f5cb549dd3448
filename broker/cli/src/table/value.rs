//! A value of a record: compared, as text, and as JSON. Must never round in JSON.

use crate::output::{human_size, human_time, printable, seconds};
use fdbroker_protocol::AllocationId;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::cmp::Ordering;

/// One value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value: this text in a table, `null` in JSON.
    None(&'static str),
    /// Any text; in a table without control characters.
    Text(Cow<'static, str>),
    /// A count or number.
    Number(u64),
    /// A size in bytes.
    Size(u64),
    /// A time span in ms; seconds in JSON.
    Time(u64),
    /// Yes or no.
    Flag(bool),
    Allocation(AllocationId),
}

impl Value {
    /// A number, or the text `none` if there is none.
    pub fn number_or(number: Option<u32>, none: &'static str) -> Self {
        number.map_or(Value::None(none), |number| Value::Number(number.into()))
    }

    /// A fixed text.
    pub const fn word(word: &'static str) -> Self {
        Value::Text(Cow::Borrowed(word))
    }

    /// Order for `--sort` and `--filter`. No value comes first. Values of different kinds, which
    /// never stand in one column, are equal.
    pub fn order(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::None(_), Value::None(_)) => Ordering::Equal,
            (Value::None(_), _) => Ordering::Less,
            (_, Value::None(_)) => Ordering::Greater,
            (Value::Text(a), Value::Text(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b))
            | (Value::Size(a), Value::Size(b))
            | (Value::Time(a), Value::Time(b)) => a.cmp(b),
            (Value::Flag(a), Value::Flag(b)) => a.cmp(b),
            (Value::Allocation(a), Value::Allocation(b)) => {
                (a.slot, a.generation).cmp(&(b.slot, b.generation))
            }
            _ => Ordering::Equal,
        }
    }

    /// Its text in a table.
    pub fn shown(&self) -> String {
        match self {
            Value::None(text) => (*text).to_owned(),
            Value::Text(text) => printable(text),
            Value::Number(number) => number.to_string(),
            Value::Size(bytes) => human_size(*bytes),
            Value::Time(ms) => human_time(*ms),
            Value::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Value::Allocation(id) => id.to_string(),
        }
    }

    /// Its text with the exact number where a table rounds.
    pub fn shown_exactly(&self) -> String {
        match self {
            Value::Size(bytes) if *bytes >= 1024 => format!("{} ({bytes})", self.shown()),
            _ => self.shown(),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::None(_) => serializer.serialize_none(),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Number(number) | Value::Size(number) => serializer.serialize_u64(*number),
            Value::Time(ms) => serializer.serialize_f64(seconds(*ms)),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Allocation(id) => serializer.collect_str(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_when_allocations_then_by_number_and_what_is_missing_first() {
        let id = |slot, generation| Value::Allocation(AllocationId { slot, generation });
        assert_eq!(id(9, 1).order(&id(10, 1)), Ordering::Less);
        assert_eq!(id(9, 2).order(&id(9, 1)), Ordering::Greater);
        assert_eq!(Value::None("-").order(&Value::Number(0)), Ordering::Less);
        assert_eq!(Value::Number(0).order(&Value::None("-")), Ordering::Greater);
    }

    #[test]
    fn json_when_each_kind_then_typed_and_exact() {
        let values = [
            Value::None("gone"),
            Value::word("a\"b"),
            Value::Number(u64::MAX),
            Value::Size(1537),
            Value::Time(61_234),
            Value::Flag(true),
            Value::Allocation(AllocationId { slot: 1, generation: 2 }),
        ];
        let json = serde_json::to_string(&values).expect("plain data");
        assert_eq!(json, r#"[null,"a\"b",18446744073709551615,1537,61.234,true,"1.2"]"#);
        let shown: Vec<String> = values.iter().map(Value::shown_exactly).collect();
        let expected = ["gone", "a\"b", "18446744073709551615", "1.5 KiB (1537)", "1 min 1 s"];
        assert_eq!(shown[..5], expected);
    }
}
