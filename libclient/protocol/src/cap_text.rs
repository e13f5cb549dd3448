//! A cap as people write it: on the command line and in the configuration, in the same units. Must
//! never guess a unit.

use crate::NO_CAP;

/// Reads `none`, or a number with a unit of 1000s (K M G T) or 1024s (Ki Mi Gi Ti), which may end
/// with B. [`NO_CAP`]: none.
///
/// # Errors
/// For any other text; the message says what would do.
pub fn parse_cap(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(NO_CAP);
    }
    // The largest number means none.
    let value = parse_amount(text).map_err(|problem| format!("{problem}, or none"))?;
    let most = || format!("`{text}` is too large; use at most {}, or none", NO_CAP - 1);
    Some(value).filter(|it| *it != NO_CAP).ok_or_else(most)
}

/// Reads a number with a unit of 1000s (K M G T P) or 1024s (Ki Mi Gi Ti Pi), which may end with B
/// and stand behind a blank: `8 GiB`, as tables have it, `8Gi`, `8G`.
///
/// # Errors
/// For any other text; the message says what would do.
pub fn parse_amount(text: &str) -> Result<u64, String> {
    let form =
        || format!("`{text}` is no value; use digits and K, M, G, T, P, Ki, Mi, Gi, Ti or Pi");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let factor: u64 = match unit {
        "" => 1,
        "K" | "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "P" => 1000_u64.pow(5),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return Err(form()),
    };
    if digits.is_empty() {
        return Err(form());
    }
    // Digits alone can only be too many.
    let number: Option<u64> = digits.parse().ok();
    let value = number.and_then(|number| number.checked_mul(factor));
    value.ok_or_else(|| format!("`{text}` is too large; use at most {}", NO_CAP - 1))
}
