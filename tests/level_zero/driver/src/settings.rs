//! The switches of the environment, read once. Must never take a mistyped switch for its default.

use crate::devices::Hierarchy;
use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The layouts of IPC handles in compute-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The fd and the pool offset: drivers before 26.09, and 26.09 to 26.30 on older devices.
    Legacy,
    /// Also the exporter's pid and a second copy of the fd number.
    Opaque,
    /// The exporter's pid, and one fd number: drivers of 26.09 to 26.17.
    OneNumber,
}

/// Who closes the fd of a successful `ze_external_memory_import_fd_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportFd {
    /// Drivers from 26.14.37833.4 on.
    DriverCloses,
    /// Drivers before that.
    CallerCloses,
}

/// The kind of an exported fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exports {
    Memfd,
    Udmabuf,
}

/// What the UUIDs of devices are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uuids {
    /// The PCI address and the tile.
    Pci,
    /// The card's number in the process: old runtimes.
    Ordinal,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub layout: Layout,
    pub pool: bool,
    pub cards: u32,
    /// Of each card. Memory of a device of two tiles has an fd for each.
    pub tiles: u32,
    pub uuids: Uuids,
    /// Whether a card reaches another's memory.
    pub peers: bool,
    /// ZE_FLAT_DEVICE_HIERARCHY.
    pub hierarchy: Hierarchy,
    /// ZE_AFFINITY_MASK.
    pub mask: String,
    /// Whether an allocation that follows a success finds the card full.
    pub full_at_first: bool,
    pub import_fd: ImportFd,
    pub exports: Exports,
    pub trace: bool,
    pub helper: Option<PathBuf>,
}

/// The settings of this process, or the error that `zeInit` reports.
pub fn settings() -> Result<&'static Settings, &'static str> {
    static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
    SETTINGS.get_or_init(read).as_ref().map_err(String::as_str)
}

fn read() -> Result<Settings, String> {
    let yes_or_no = [("no", false), ("yes", true)];
    Ok(Settings {
        layout: choice(
            "ZE_TEST_DRIVER_HANDLES",
            [
                ("legacy", Layout::Legacy),
                ("opaque", Layout::Opaque),
                ("one-number", Layout::OneNumber),
            ],
        )?,
        pool: choice("ZE_TEST_DRIVER_POOL", yes_or_no)?,
        cards: choice("ZE_TEST_DRIVER_CARDS", [("one", 1), ("two", 2), ("four", 4)])?,
        tiles: choice("ZE_TEST_DRIVER_TILES", [("one", 1), ("two", 2)])?,
        uuids: choice("ZE_TEST_DRIVER_UUIDS", [("pci", Uuids::Pci), ("ordinal", Uuids::Ordinal)])?,
        peers: choice("ZE_TEST_DRIVER_PEERS", [("yes", true), ("no", false)])?,
        hierarchy: Hierarchy::from_word(&env::var("ZE_FLAT_DEVICE_HIERARCHY").unwrap_or_default()),
        mask: env::var("ZE_AFFINITY_MASK").unwrap_or_default(),
        full_at_first: choice("ZE_TEST_DRIVER_FULL", [("no", false), ("at-first", true)])?,
        import_fd: choice(
            "ZE_TEST_DRIVER_IMPORT_FD",
            [("driver-closes", ImportFd::DriverCloses), ("caller-closes", ImportFd::CallerCloses)],
        )?,
        exports: choice(
            "ZE_TEST_DRIVER_MEMORY",
            [("memfd", Exports::Memfd), ("udmabuf", Exports::Udmabuf)],
        )?,
        trace: choice("ZE_TEST_DRIVER_TRACE", yes_or_no)?,
        helper: env::var_os("ZE_TEST_DRIVER_HELPER").map(PathBuf::from),
    })
}

/// The choice that the variable names; the first one when it is not set.
fn choice<T: Copy, const N: usize>(variable: &str, choices: [(&str, T); N]) -> Result<T, String> {
    let Some(word) = env::var_os(variable) else { return Ok(choices[0].1) };
    let chosen = choices.iter().find(|(name, _)| word == **name);
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let names = choices.map(|(name, _)| name).join(" or ");
        format!("{variable} is {}; it may be {names}", word.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_when_not_set_is_the_first_choice() {
        assert_eq!(choice("ZE_TEST_DRIVER_NOT_SET", [("a", 1), ("b", 2)]), Ok(1));
    }

    #[test]
    fn a_variable_when_mistyped_is_an_error_that_names_the_choices() {
        // Every test process has a PATH, and it is neither of these words.
        let error = choice("PATH", [("a", 1), ("b", 2)]).unwrap_err();

        assert!(error.starts_with("PATH is ") && error.ends_with("it may be a or b"), "{error}");
    }
}
