//! The time that events are wanted from. Must never read a clock: a time counts back from now, by
//! the broker's clock.

use std::str::FromStr;

/// How long before now, in milliseconds; `u32::MAX`: all events that the broker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since(pub u32);

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Since(u32::MAX));
        }
        let form = || {
            format!("`{text}` is no time: write a number with s, m, h or d, such as 10m, or all")
        };
        let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
        let parts = |(unit, seconds)| Some((text.strip_suffix(unit)?, seconds));
        let (digits, seconds) = units.into_iter().find_map(parts).ok_or_else(form)?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(form());
        }
        // More than the wire can say is 49 days: then all.
        let number: u64 = digits.parse().unwrap_or(u64::MAX);
        let ms = number.saturating_mul(seconds * 1000);
        Ok(Since(u32::try_from(ms).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_when_a_number_with_a_unit_or_all_then_taken_and_all_else_is_refused() {
        let table = [
            ("0s", 0),
            ("90s", 90_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("400d", u32::MAX),
            ("99999999999999999999d", u32::MAX),
            ("all", u32::MAX),
        ];
        for (text, ms) in table {
            assert_eq!(text.parse(), Ok(Since(ms)), "{text}");
        }
        for text in ["", "m", "10", "-5m", "+5m", "1.5h", "10 m", "10M", "ALL", "5\u{b5}"] {
            let error = text.parse::<Since>().expect_err(text);
            assert!(error.contains("such as 10m"), "{error}");
        }
    }
}
