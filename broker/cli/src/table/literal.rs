//! Reads the values in a filter. Must never guess: numbers are whole, and have at most one unit,
//! which fits the column.

use super::column::Kind;
use super::value::Value;
use fdbroker_protocol::parse_amount;
use std::borrow::Cow;

/// In ms. A number without a unit is in seconds.
const TIME_UNITS: &[(&str, u64)] = &[
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("", 1000),
];

impl Kind {
    /// Reads a value of a column of this kind; the error says what is wrong with it.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        let wrong = |what: &str| format!("`{}` is not {what}", text.escape_debug());
        match self {
            Kind::Text => Ok(Value::Text(Cow::Owned(text.to_owned()))),
            Kind::Word(words) => match words.iter().find(|word| **word == text) {
                Some(word) => Ok(Value::word(word)),
                None => Err(wrong(&format!("one of {}", words.join(", ")))),
            },
            Kind::Number => match text.strip_prefix("0x") {
                Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
                _ => scaled(text, &[("", 1)]),
            }
            .map(Value::Number)
            .ok_or_else(|| wrong("a whole number")),
            Kind::Size => parse_amount(text).map(Value::Size).map_err(|_| {
                wrong("a size: a whole number with KiB, MiB, GiB, TiB or PiB (or Ki, Mi ...), or K, M, G, T or P of 1000")
            }),
            Kind::Time => scaled(text, TIME_UNITS)
                .map(Value::Time)
                .ok_or_else(|| wrong("a time: a whole number with ms, s, m, h or d")),
            Kind::Flag => match text {
                "yes" | "true" => Ok(Value::Flag(true)),
                "no" | "false" => Ok(Value::Flag(false)),
                _ => Err(wrong("yes or no")),
            },
            Kind::Allocation => text
                .parse()
                .map(Value::Allocation)
                .map_err(|_| wrong("an allocation, SLOT.GENERATION such as 12.3")),
        }
    }
}

/// Reads digits and one of `units`. `None` for any other text, and for numbers above 64 bits.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    digits.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_when_units_then_bytes_and_milliseconds() {
        assert_eq!(Kind::Size.parse("64KiB"), Ok(Value::Size(65536)));
        assert_eq!(Kind::Size.parse("7"), Ok(Value::Size(7)));
        for (text, bytes) in
            [("8 GiB", 8 << 30), ("8Gi", 8 << 30), ("8G", 8_000_000_000), ("1PiB", 1 << 50)]
        {
            assert_eq!(Kind::Size.parse(text), Ok(Value::Size(bytes)), "{text}");
        }
        assert_eq!(Kind::Time.parse("4 min"), Ok(Value::Time(240_000)));
        assert_eq!(Kind::Time.parse("5"), Ok(Value::Time(5000)));
        assert_eq!(Kind::Time.parse("850ms"), Ok(Value::Time(850)));
        assert_eq!(Kind::Time.parse("5m"), Ok(Value::Time(300_000)));
        assert_eq!(Kind::Time.parse("2h"), Ok(Value::Time(7_200_000)));
        assert_eq!(Kind::Number.parse("0xff"), Ok(Value::Number(255)));
        assert_eq!(Kind::Flag.parse("no"), Ok(Value::Flag(false)));
    }

    #[test]
    fn parse_when_not_exact_then_refused_and_the_units_are_named() {
        for text in ["", "KiB", "1.5KiB", "1  KiB", "1kb", "-1", "+1", "16384PiB", "1KiBx", "٣"] {
            let error = Kind::Size.parse(text).expect_err(text);
            assert!(error.contains("MiB"), "{error}");
        }
        for text in ["", "1.5s", "1mins", "18446744073709551615h"] {
            assert!(Kind::Time.parse(text).is_err(), "{text}");
        }
        for text in ["", "1KiB", "0x", "0x+1", "0xg", "18446744073709551616"] {
            assert!(Kind::Number.parse(text).is_err(), "{text}");
        }
        assert!(Kind::Flag.parse("maybe").is_err());
        assert!(Kind::Allocation.parse("12").is_err());
    }
}
