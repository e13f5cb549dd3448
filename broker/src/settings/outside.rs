//! What settings depend on and nobody sets: this process on its machine, and its environment. Must
//! never know a key of the configuration.

use crate::manager::inherited::Inherited;
use crate::settings::config::ConfigError;
use crate::settings::{memory, subordinate};
use fdbroker_core::SubordinateRange;
use nix::unistd::User;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// The user of the node's broker, as systemd/sysusers.d makes it.
const SERVICE_USER: &str = "fdbroker";

/// What the settings depend on and this process cannot choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Effective uid.
    pub euid: u32,
    /// Hard RLIMIT_NOFILE.
    pub hard_fds: u64,
    /// Fds open at the start.
    pub open_fds: u64,
    /// Uids that may own the broker's directories: those of its user.
    pub owners: Vec<u32>,
    /// Bytes of memory: the machine's, or less where a cgroup of this process has less; `None`: not
    /// known.
    pub memory_bytes: Option<u64>,
    /// Uids that share as one user, by the user's name in subuid(5).
    pub subordinate_uids: Vec<(String, SubordinateRange)>,
}

impl Host {
    /// This process on this machine, now.
    pub fn of_this_process() -> Self {
        use nix::sys::resource::{Resource, getrlimit};
        let hard_fds = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
        // The count has the fd of this directory in it, in place of one that is opened later. Fds
        // of the service manager's store are not counted: none of them stays as it is.
        let open_fds = std::fs::read_dir("/proc/self/fd").map_or(3, |entries| entries.count());
        let open_fds = (open_fds as u64).saturating_sub(Inherited::count_to_the_environment());
        let euid = nix::unistd::geteuid().as_raw();
        let subordinate_uids = subordinate::of_this_machine();
        let memory_bytes = memory::of_this_process();
        Host { euid, hard_fds, open_fds, owners: vec![euid], memory_bytes, subordinate_uids }
    }

    /// The same for a look by somebody else than the daemon: the node's broker mostly has a user
    /// of its own.
    pub fn to_check() -> Self {
        let mut host = Self::of_this_process();
        let service = User::from_name(SERVICE_USER).ok().flatten();
        host.owners.extend(service.map(|user| user.uid.as_raw()));
        host
    }
}

/// The variables that count. An empty one counts as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Those of this process whose names are UTF-8.
    pub fn of_this_process() -> Self {
        let pairs = std::env::vars_os();
        Self::from_pairs(pairs.filter_map(|(name, value)| Some((name.into_string().ok()?, value))))
    }

    /// From names and values.
    pub fn from_pairs<N: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        let counts = |(name, value): &(String, OsString)| {
            !value.is_empty() && (name.starts_with("FDBROKER_") || name == "XDG_RUNTIME_DIR")
        };
        Environment(pairs.filter(counts).collect())
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(name).map(PathBuf::from)
    }

    pub(crate) fn parse<T: std::str::FromStr>(
        &self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.0.get(name).map(|value| value.to_string_lossy()) else {
            return Ok(None);
        };
        text.trim().parse().map(Some).map_err(|_| {
            ConfigError::value(name, format!("`{text}` is not {what}"), "correct or unset it")
        })
    }
}
