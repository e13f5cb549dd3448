//! What an import cache may keep: bounds and modes, by API or by environment; and the mode of one
//! import.
//! Must never take a misspelt setting for another one: a bad value is an error.

use crate::env::{Variable, bytes, number, switch};
use crate::error::Error;
use crate::map::Access;
use std::ffi::OsString;

/// Bounds and modes of an [`crate::ImportCache`]. The fields' variables, and the names they answer
/// to elsewhere:
///
/// | variable | oneCCL | UCX | MPICH | UMF | Open MPI |
/// |---|---|---|---|---|---|
/// | `FDBROKER_CACHE_MAX_ENTRIES` | `CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD` | `UCX_CUDA_IPC_CACHE_MAX_REGIONS` | `MPIR_CVAR_CH4_IPC_GPU_CACHE_SIZE` | `UMF_MAX_OPENED_IPC_HANDLES` | - |
/// | `FDBROKER_CACHE_MAX_BYTES` | - | `UCX_CUDA_IPC_CACHE_MAX_SIZE` | - | - | `rcache_rgpusm_rcache_size_limit` |
/// | `FDBROKER_LEAVE_PINNED` | `CCL_ZE_CACHE_OPEN_IPC_HANDLES` | `UCX_CUDA_IPC_CACHE` | that size, 0 = off | - | `rcache_rgpusm_leave_pinned` |
/// | `FDBROKER_EMPTY_CACHE` | - | - | - | - | `rcache_rgpusm_empty_cache` |
/// | `FDBROKER_CACHE_STRICT` | - | - | - | - | always, with a limit |
/// | `FDBROKER_PRINT_STATS` | - | - | - | - | `rcache_rgpusm_print_stats` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheSettings {
    /// Most allocations kept open; 0 = no limit. What is in use counts but is never closed for it.
    pub max_entries: usize,
    /// Most bytes of them together; 0 = no limit.
    pub max_bytes: u64,
    /// Whether memory stays open when its last user has released it.
    pub leave_pinned: bool,
    /// Whether a cache at its limit closes all that is unused, instead of just enough.
    pub empty_cache: bool,
    /// Whether an import that would pass a limit is refused (NO_QUOTA) while all that is open is in
    /// use. Otherwise the cache goes over its limits.
    pub strict: bool,
    /// Whether the counters are printed to stderr, one line, when the cache ends.
    pub print_stats: bool,
}

/// What an import may do with the memory, and whether the cache keeps what the import opens. An
/// [`Access`] alone keeps it: `ImportMode::from(Access::Read).keep(false)` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportMode {
    /// Reading, or reading and writing.
    pub access: Access,
    /// Whether memory that this import opens stays open after its last release. Memory that is open
    /// already serves this import, too, and stays as it is.
    pub keep: bool,
}

impl ImportMode {
    /// With another [`ImportMode::keep`](field@ImportMode::keep).
    #[must_use]
    pub fn keep(self, keep: bool) -> Self {
        ImportMode { keep, ..self }
    }
}

impl From<Access> for ImportMode {
    fn from(access: Access) -> Self {
        ImportMode { access, keep: true }
    }
}

impl Default for CacheSettings {
    /// No limits, left pinned, silent.
    fn default() -> Self {
        CacheSettings {
            max_entries: 0,
            max_bytes: 0,
            leave_pinned: true,
            empty_cache: false,
            strict: false,
            print_stats: false,
        }
    }
}

impl CacheSettings {
    /// With another [`CacheSettings::max_entries`](field@CacheSettings::max_entries).
    #[must_use]
    pub fn max_entries(self, max_entries: usize) -> Self {
        CacheSettings { max_entries, ..self }
    }

    /// With another [`CacheSettings::max_bytes`](field@CacheSettings::max_bytes).
    #[must_use]
    pub fn max_bytes(self, max_bytes: u64) -> Self {
        CacheSettings { max_bytes, ..self }
    }

    /// With another [`CacheSettings::leave_pinned`](field@CacheSettings::leave_pinned).
    #[must_use]
    pub fn leave_pinned(self, leave_pinned: bool) -> Self {
        CacheSettings { leave_pinned, ..self }
    }

    /// With another [`CacheSettings::empty_cache`](field@CacheSettings::empty_cache).
    #[must_use]
    pub fn empty_cache(self, empty_cache: bool) -> Self {
        CacheSettings { empty_cache, ..self }
    }

    /// With another [`CacheSettings::strict`](field@CacheSettings::strict).
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        CacheSettings { strict, ..self }
    }

    /// With another [`CacheSettings::print_stats`](field@CacheSettings::print_stats).
    #[must_use]
    pub fn print_stats(self, print_stats: bool) -> Self {
        CacheSettings { print_stats, ..self }
    }

    /// The default with what the environment says otherwise: `FDBROKER_CACHE_MAX_ENTRIES` (a
    /// number), `FDBROKER_CACHE_MAX_BYTES` (a number, K, M or G after it for powers of 1024),
    /// `FDBROKER_LEAVE_PINNED`, `FDBROKER_EMPTY_CACHE`, `FDBROKER_CACHE_STRICT`,
    /// `FDBROKER_PRINT_STATS` (1, 0, yes, no, true, false, on, off). An empty variable says
    /// nothing.
    ///
    /// # Errors
    /// NOT_SUPPORTED: a value that cannot be used; the message names variable, value and what is
    /// allowed.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let mut settings = Self::default();
        let said = |name: &'static str| {
            get(name).filter(|value| !value.is_empty()).map(|value| Variable { name, value })
        };
        if let Some(variable) = said("FDBROKER_CACHE_MAX_ENTRIES") {
            settings.max_entries = variable.read("a number, 0 for no limit", number)?;
        }
        if let Some(variable) = said("FDBROKER_CACHE_MAX_BYTES") {
            let allowed = "bytes, such as 1048576 or 512M (K, M or G), 0 for no limit";
            settings.max_bytes = variable.read(allowed, bytes)?;
        }
        for (name, field) in [
            ("FDBROKER_LEAVE_PINNED", &mut settings.leave_pinned),
            ("FDBROKER_EMPTY_CACHE", &mut settings.empty_cache),
            ("FDBROKER_CACHE_STRICT", &mut settings.strict),
            ("FDBROKER_PRINT_STATS", &mut settings.print_stats),
        ] {
            if let Some(variable) = said(name) {
                *field = variable.read("1 or 0, yes or no, true or false, on or off", switch)?;
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<CacheSettings, Error> {
        CacheSettings::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn from_env_when_nothing_or_empty_then_the_default() {
        assert_eq!(read(&[]), Ok(CacheSettings::default()));
        let empty = [("FDBROKER_CACHE_MAX_ENTRIES", ""), ("FDBROKER_LEAVE_PINNED", "")];
        assert_eq!(read(&empty), Ok(CacheSettings::default()));
    }

    #[test]
    fn from_env_when_all_set_then_each_is_read() {
        let settings = read(&[
            ("FDBROKER_CACHE_MAX_ENTRIES", "1000"),
            ("FDBROKER_CACHE_MAX_BYTES", "3G"),
            ("FDBROKER_LEAVE_PINNED", "off"),
            ("FDBROKER_EMPTY_CACHE", "Yes"),
            ("FDBROKER_CACHE_STRICT", "true"),
            ("FDBROKER_PRINT_STATS", "1"),
        ]);
        let expected = CacheSettings {
            max_entries: 1000,
            max_bytes: 3 << 30,
            leave_pinned: false,
            empty_cache: true,
            strict: true,
            print_stats: true,
        };
        assert_eq!(settings, Ok(expected));
    }

    #[test]
    fn from_env_when_bytes_have_a_suffix_then_powers_of_1024() {
        let read_bytes =
            |text: &str| read(&[("FDBROKER_CACHE_MAX_BYTES", text)]).map(|s| s.max_bytes);
        let of =
            [("0", 0), ("7", 7), ("2k", 2048), ("2K", 2048), ("5 M", 5 << 20), ("1g", 1 << 30)];
        for (text, expected) in of {
            assert_eq!(read_bytes(text), Ok(expected), "{text}");
        }
        for bad in ["K", "-1", "1T", "1.5M", "99999999999G", "12 34", "é"] {
            read_bytes(bad).unwrap_err();
        }
    }

    #[test]
    fn from_env_when_a_value_is_bad_then_variable_value_and_remedy_are_named() {
        for (name, value, remedy) in [
            ("FDBROKER_CACHE_MAX_ENTRIES", "many", "0 for no limit"),
            ("FDBROKER_CACHE_MAX_ENTRIES", "-1", "a number"),
            ("FDBROKER_CACHE_MAX_BYTES", "1X", "512M"),
            ("FDBROKER_LEAVE_PINNED", "maybe", "yes or no"),
            ("FDBROKER_EMPTY_CACHE", "2", "1 or 0"),
            ("FDBROKER_CACHE_STRICT", "very", "true or false"),
            ("FDBROKER_PRINT_STATS", "stderr", "on or off"),
        ] {
            let text = read(&[(name, value)]).unwrap_err().to_string();
            for part in [name, value, remedy] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
    }
}
