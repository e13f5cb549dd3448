//! The configuration read again while the daemon runs: caps and the log level change, each other difference is named.
//! Must never change anything when the file has an error, nor change what clients have already been told.

use crate::settings::config::{ConfigError, ConfigFile};
use crate::settings::effective::{MadeOf, Settings};
use fdbroker_core::CapsOfScopes;
use std::sync::{Arc, Mutex, PoisonError};

/// What reading the configuration again has brought.
#[derive(Debug)]
pub(crate) struct Reloaded {
    /// To go on with.
    pub settings: Settings,
    /// `key old -> new` of what has changed.
    pub changed: Vec<String>,
    /// `key old -> new` of each change that needs a restart.
    pub after_restart: Vec<String>,
}

/// The configuration while it is read on another thread.
#[derive(Default)]
pub(crate) struct Rereading {
    found: Arc<Mutex<Option<Result<Reloaded, ConfigError>>>>,
    is_under_way: bool,
    /// It was asked for again meanwhile: the file may have changed since it was read.
    is_asked_again: bool,
}

impl Rereading {
    /// What the other thread is to call. `None`: it is reading, and reads once more afterwards.
    pub fn begin(&mut self, settings: &Settings) -> Option<Box<dyn FnOnce() + Send + Sync>> {
        if std::mem::replace(&mut self.is_under_way, true) {
            self.is_asked_again = true;
            return None;
        }
        let (settings, found) = (settings.clone(), Arc::clone(&self.found));
        Some(Box::new(move || {
            let reloaded = settings.reload();
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(reloaded);
        }))
    }

    /// The other thread has called it: what was found, and whether it is to be read again.
    pub fn end(&mut self) -> (Option<Result<Reloaded, ConfigError>>, bool) {
        self.is_under_way = false;
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        (found, std::mem::take(&mut self.is_asked_again))
    }
}

/// Whether a key can change at run time.
fn changes_at_run_time(key: &str) -> bool {
    key == "log" || key.starts_with("caps.")
}

impl Settings {
    /// The settings with caps and log level as flags, environment and the file, read again, say now.
    ///
    /// # Errors
    /// See [`ConfigError`]; the file as a whole must be sound, keys included that cannot change.
    pub(crate) fn reload(&self) -> Result<Reloaded, ConfigError> {
        let Some(made_of) = &self.made_of else {
            let remedy = "restart it with other ones";
            return Err(ConfigError::value("SIGHUP", "the settings are of no file", remedy));
        };
        let MadeOf { args, environment, file: running, host } = &**made_of;
        let read = self.config_file.as_deref().map(ConfigFile::read).transpose()?;
        let file = read.unwrap_or_default();
        let whole = Settings::resolve(args, environment, file.clone(), host)?;
        // The defaults of caps follow from the limits in force, which do not change.
        let file = ConfigFile { caps: file.caps, log: file.log, ..running.clone() };
        let next = Settings::resolve(args, environment, file.clone(), host)?;
        let changed = differences(&self.lines, &next.lines, changes_at_run_time);
        let after_restart = differences(&self.lines, &whole.lines, |key| !changes_at_run_time(key));
        let mut settings = self.clone();
        let CapsOfScopes { node, domain, job, client } = caps_of(&next);
        let core = &mut settings.core;
        (core.node, core.domain, core.job, core.client) = (node, domain, job, client);
        (settings.log, settings.lines) = (next.log, next.lines);
        settings.made_of = Some(Box::new(MadeOf { file, ..(**made_of).clone() }));
        Ok(Reloaded { settings, changed, after_restart })
    }
}

/// The caps of all scopes.
pub(crate) fn caps_of(settings: &Settings) -> CapsOfScopes {
    let core = &settings.core;
    CapsOfScopes { node: core.node, domain: core.domain, job: core.job, client: core.client }
}

type Lines = [(String, String, &'static str)];

fn differences(old: &Lines, new: &Lines, counts: impl Fn(&str) -> bool) -> Vec<String> {
    let value = |lines: &Lines, key: &str| {
        let found = lines.iter().find(|(other, ..)| other == key);
        found.map_or_else(|| "none".to_owned(), |(_, value, _)| value.clone())
    };
    let gone = old.iter().filter(|(key, ..)| new.iter().all(|(other, ..)| other != key));
    let keys = new.iter().chain(gone).map(|(key, ..)| key.as_str()).filter(|key| counts(key));
    let pairs = keys.map(|key| (key, value(old, key), value(new, key)));
    pairs
        .filter(|(_, old, new)| old != new)
        .map(|(key, old, new)| format!("{key} {old} -> {new}"))
        .collect()
}
