//! The switches of the environment, read once. Must never take a mistyped switch for its default.

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

#[derive(Clone, Debug)]
pub struct Settings {
    pub layout: Layout,
    pub pool: bool,
    /// Whether memory of the device has an fd for each of two tiles.
    pub two_tiles: bool,
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
        two_tiles: choice("ZE_TEST_DRIVER_TILES", [("one", false), ("two", true)])?,
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
