//! The configuration read again while the daemon runs: caps, the log level and `end_with_job`
//! change, each other difference is named. Must never change anything when the file has an error,
//! nor change what clients have already been told.

use crate::limits::PATH_BYTES;
use crate::node::config_file::error_of;
use crate::node::names::CONFIG_MEMFD;
use crate::settings::config::{ConfigError, ConfigFile};
use crate::settings::effective::{MadeOf, Settings, caps_of};
use fdbroker_core::CapsOfScopes;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

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

/// The configuration while a lane reads it.
#[derive(Default)]
pub(crate) struct Rereading {
    /// The path of the file, and behind it what the lane reads.
    memfd: Option<File>,
    /// It was asked for again meanwhile: the file may have changed since it was read.
    is_asked_again: bool,
}

impl Rereading {
    /// What a lane is to read the file into; `Ok(None)`: one is at it, and it is read once more
    /// afterwards.
    ///
    /// # Errors
    /// No memory, or the path is too long.
    pub fn begin(&mut self, path: Option<&Path>) -> io::Result<Option<BorrowedFd<'_>>> {
        if self.memfd.is_some() {
            self.is_asked_again = true;
            return Ok(None);
        }
        let path = path.unwrap_or(Path::new("/dev/null")).as_os_str().as_bytes();
        if path.len() >= PATH_BYTES {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let memfd = File::from(memfd_create(CONFIG_MEMFD, MFdFlags::MFD_CLOEXEC)?);
        memfd.set_len(PATH_BYTES as u64)?;
        memfd.write_all_at(path, 0)?;
        let memfd: &File = self.memfd.insert(memfd);
        Ok(Some(memfd.as_fd()))
    }

    /// The lane has read so many bytes: what they are, and whether they are to be read again.
    pub fn end(&mut self, found: Result<usize, i32>) -> (io::Result<String>, bool) {
        let memfd = self.memfd.take().ok_or(io::Error::from(io::ErrorKind::NotFound));
        let text = found.map_err(|errno| error_of(Errno::from_raw(errno))).and_then(|length| {
            let mut bytes = vec![0; length];
            memfd?.read_exact_at(&mut bytes, PATH_BYTES as u64)?;
            String::from_utf8(bytes).map_err(io::Error::other)
        });
        (text, std::mem::take(&mut self.is_asked_again))
    }
}

/// Whether a key can change at run time.
fn changes_at_run_time(key: &str) -> bool {
    ["log", "end_with_job"].contains(&key) || key.starts_with("caps.")
}

impl Settings {
    /// The settings with caps and log level as flags, environment and the file, read again as
    /// `text`, say now.
    ///
    /// # Errors
    /// See [`ConfigError`]; the file as a whole must be sound, keys included that cannot change.
    pub(crate) fn reload(&self, text: io::Result<String>) -> Result<Reloaded, ConfigError> {
        let Some(made_of) = &self.made_of else {
            let remedy = "restart it with other ones";
            return Err(ConfigError::value("SIGHUP", "the settings are of no file", remedy));
        };
        let MadeOf { args, environment, file: running, host, .. } = &**made_of;
        let path = self.config_file.as_deref().unwrap_or(Path::new("/dev/null"));
        let text = text.map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let file = ConfigFile::of_text(path, &text)?;
        let whole = Settings::resolve(args, environment, file.clone(), host)?;
        // The defaults of caps follow from the limits in force, which do not change.
        let ConfigFile { caps, log, end_with_job, .. } = file;
        let file = ConfigFile { caps, log, end_with_job, ..running.clone() };
        let next = Settings::resolve(args, environment, file.clone(), host)?;
        let changed = differences(&self.lines, &next.lines, changes_at_run_time);
        let after_restart = differences(&self.lines, &whole.lines, |key| !changes_at_run_time(key));
        let mut settings = self.clone();
        let CapsOfScopes { node, domain, job, client } = caps_of(&next);
        let core = &mut settings.core;
        (core.node, core.domain, core.job, core.client) = (node, domain, job, client);
        (settings.log, settings.lines) = (next.log, next.lines);
        settings.end_with_job = next.end_with_job;
        settings.refused = None;
        settings.made_of = Some(Box::new(MadeOf { file, ..(**made_of).clone() }));
        Ok(Reloaded { settings, changed, after_restart })
    }
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
