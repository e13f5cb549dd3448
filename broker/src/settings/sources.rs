//! Where a setting may come from and which source wins: flag, then environment, then file, then
//! default. Must never know a key.

use std::fmt;

/// How an absent cap is shown.
pub(crate) const NONE: &str = "none";

/// Where a value may come from, apart from the default; the first that is there wins.
#[derive(Clone, Copy)]
pub(crate) struct Sources<T> {
    pub flag: Option<T>,
    pub environment: Option<T>,
    pub set: Option<T>,
    pub file: Option<T>,
}

impl<T> Sources<T> {
    pub fn of(set: Option<T>, file: Option<T>) -> Self {
        Sources { flag: None, environment: None, set, file }
    }
}

/// Each effective value with its key and origin, in the order of `--check-config`.
#[derive(Default)]
pub(crate) struct Lines(pub Vec<(String, String, &'static str)>);

impl Lines {
    pub fn pick<T: fmt::Display>(&mut self, key: &str, sources: Sources<T>, default: T) -> T {
        let (value, origin) = first(sources, default);
        self.push(key, &value, origin);
        value
    }

    pub fn push(&mut self, key: &str, value: &impl fmt::Display, origin: &'static str) {
        self.0.push((key.to_owned(), value.to_string(), origin));
    }
}

/// The value that wins, and where it came from.
pub(crate) fn first<T>(sources: Sources<T>, default: T) -> (T, &'static str) {
    let Sources { flag, environment, set, file } = sources;
    let found = [
        (flag, "flag"),
        (set, "flag --set"),
        (environment, "environment"),
        (file, "file"),
        (Some(default), "default"),
    ];
    let mut found = found.into_iter().filter_map(|(value, origin)| Some((value?, origin)));
    found.next().expect("the default is always there")
}
