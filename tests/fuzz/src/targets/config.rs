//! Configuration: any file, any `--set` flags, any environment. Accepted settings make a broker's
//! core, and `--check-config` prints them as a file that gives the same settings. Must never touch
//! the file system.

use crate::bytes::Bytes;
use fdbroker_core::Core;
use fdbrokerd::cli::Args;
use fdbrokerd::config::ConfigFile;
use fdbrokerd::{Environment, Host, Settings};
use std::path::PathBuf;

pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let choice = bytes.u8();
    let set = lines(bytes.block());
    let environment = lines(bytes.block());
    let text = String::from_utf8_lossy(bytes.0);
    let _ = ConfigFile::from_set_flags(&set);
    let file = match ConfigFile::parse(&text) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let args = Args {
        private: (choice & 1 != 0).then(|| PathBuf::from("/nonexistent/job")),
        max_fds: (choice & 2 != 0).then_some(u64::from(choice) * 64),
        table_fds: (choice & 4 != 0).then_some(u64::from(choice) * 16),
        set,
        ..Args::default()
    };
    let pairs = environment.iter().filter_map(|line| line.split_once('='));
    let environment = Environment::from_pairs(pairs);
    let euid = if choice & 8 != 0 { 0 } else { 1000 };
    let host = Host {
        euid,
        hard_fds: if choice & 16 != 0 { 1024 } else { 1 << 20 },
        open_fds: 8,
        owners: vec![euid],
        memory_bytes: (choice & 32 != 0).then_some(1 << 30),
        subordinate_uids: Default::default(),
    };
    let settings = match Settings::resolve(&args, &environment, file, &host) {
        Ok(settings) => settings,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!settings.listeners.is_empty());
    assert!(settings.core.table_fds <= settings.table_fds, "more places than the table has");
    Core::new(settings.core.clone()).expect("settings that resolve make a core");
    assert_says_the_same(&settings, &host);
}

/// Reads the printed settings again: they must be the same.
fn assert_says_the_same(settings: &Settings, host: &Host) {
    let text = settings.to_string();
    let file = ConfigFile::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let args = Args {
        private: (settings.mode == fdbrokerd::Mode::Private).then(|| "/nonexistent/job".into()),
        ..Args::default()
    };
    let again = Settings::resolve(&args, &Environment::default(), file, host)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.core, settings.core, "{text}");
    assert_eq!(again.log, settings.log, "{text}");
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}
