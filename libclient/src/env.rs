//! Settings from environment variables. Must never take a misspelt value for another one: it is an
//! error.

use crate::error::Error;
use fdbroker_protocol::ErrorCode;
use std::ffi::OsString;
use std::fmt::Display;

/// A variable that says something.
pub(crate) struct Variable {
    pub name: &'static str,
    pub value: OsString,
}

impl Variable {
    /// The variable of the environment; `None`: it is not set, or empty.
    pub fn of_process(name: &'static str) -> Option<Self> {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some(Variable { name, value })
    }

    pub fn read<T>(
        &self,
        allowed: impl Display,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let text = self.value.to_string_lossy();
        read(text.trim()).ok_or_else(|| {
            let context = format!("{}={text}: set it to {allowed}, or unset it", self.name);
            Error::new(ErrorCode::NotSupported, context).because("the variable has no such value")
        })
    }
}

/// A decimal number; `None`: it is none, or out of range.
pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// A number, K, M or G after it for powers of 1024.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.trim_end().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `None`: neither yes nor no.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "true" | "on" => Some(true),
        "0" | "n" | "no" | "false" | "off" => Some(false),
        _ => None,
    }
}
