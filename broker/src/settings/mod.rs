//! The effective settings: flag, then environment, then file, then default, each value with its
//! origin. Must never read a source behind the caller's back: what it knows of the machine and the
//! environment is handed in.

use crate::cli::Args;
use crate::kernel::KernelFeatures;
use crate::manager::inherited::Inherited;
use crate::settings::config::{ConfigError, ConfigFile};
use crate::settings::derive::{Derived, Given, resolve_core, resolve_table};
use crate::settings::places::Places;
use crate::settings::sources::{Lines, NONE, Sources, first};
use fdbroker_core::Config;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub mod config;
pub mod derive;
pub mod places;
pub mod preflight;
pub mod reload;
pub mod sources;

/// Read when no other is named and it exists.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/fdbroker/fdbrokerd.toml";

/// Whom the broker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A node: sockets for everybody, not dumpable.
    Service,
    /// One user or job: directories 0700, sockets 0600, dumpable, so that its owner can inspect it.
    Private,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Of the socket.
    pub path: PathBuf,
    /// Of the socket.
    pub mode: u32,
}

/// What the settings depend on and this process cannot choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Effective uid.
    pub euid: u32,
    /// Hard RLIMIT_NOFILE.
    pub hard_fds: u64,
    /// Fds open at the start.
    pub open_fds: u64,
}

impl Host {
    /// This process on this machine, now.
    pub fn of_this_process() -> Self {
        use nix::sys::resource::{Resource, getrlimit};
        let hard_fds = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
        // The directory's own fd is among those counted; it stands for one that may come. What an
        // earlier process has stored does not stay as it is.
        let open_fds = std::fs::read_dir("/proc/self/fd").map_or(3, |entries| entries.count());
        let open_fds = (open_fds as u64).saturating_sub(Inherited::count_to_the_environment());
        Host { euid: nix::unistd::geteuid().as_raw(), hard_fds, open_fds }
    }
}

/// The variables that count. An empty one counts as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// This process's.
    pub fn of_this_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::from_pairs(std::env::vars_os().filter_map(text))
    }

    /// From names and values.
    pub fn from_pairs<N: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        Environment(
            pairs
                .filter(|(name, value): &(String, String)| {
                    !value.is_empty()
                        && (name.starts_with("FDBROKER_") || name == "XDG_RUNTIME_DIR")
                })
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    pub(crate) fn parse<T: std::str::FromStr>(
        &self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| {
            ConfigError::value(name, format!("`{text}` is not {what}"), "correct or unset it")
        })
    }
}

/// What settings are made of.
#[derive(Clone, Debug)]
pub(crate) struct MadeOf {
    pub args: Args,
    pub environment: Environment,
    pub file: ConfigFile,
    pub host: Host,
}

/// Everything the daemon needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whom it serves.
    pub mode: Mode,
    /// The file read, if any.
    pub config_file: Option<PathBuf>,
    /// Sockets for clients, by listener number; at least one.
    pub listeners: Vec<ListenerSettings>,
    /// The administrator's socket; key and page stand beside it.
    pub admin_socket: PathBuf,
    /// Soft RLIMIT_NOFILE to run with: the size of the fd table.
    pub table_fds: u64,
    /// The core's part.
    pub core: Config,
    /// Most connections, those included that have ended and whose peer has not read all:
    /// `max_clients`, or as many as the table has room for.
    pub most_connections: u32,
    /// Time a new connection has for its hello.
    pub handshake_timeout: Duration,
    /// Log level.
    pub log: log::LevelFilter,
    /// Where to say that clients can connect.
    pub ready_fd: Option<i32>,
    /// What ends the daemon when it ends.
    pub until_eof: Option<i32>,
    /// Kernel features that may be used.
    pub kernel: KernelFeatures,
    /// Go on in the place of the broker that runs.
    pub takeover: bool,
    /// What they were made of, to be made again by [`Settings::reload`]; `None`: of something else.
    pub(crate) made_of: Option<Box<MadeOf>>,
    /// Each effective value: key, value, origin.
    pub(crate) lines: Vec<(String, String, &'static str)>,
}

impl Settings {
    /// From flags and environment, and the file that they or the default name.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(args: &Args, environment: &Environment, host: &Host) -> Result<Self, ConfigError> {
        let named = args.config.clone().or_else(|| environment.path("FDBROKER_CONFIG"));
        let default = || {
            let path = PathBuf::from(DEFAULT_CONFIG_FILE);
            (args.private.is_none() && path.exists()).then_some(path)
        };
        let path = named.or_else(default);
        let file = path.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        let mut settings = Self::resolve(args, environment, file.clone(), host)?;
        settings.config_file = path;
        let (args, environment, host) = (args.clone(), environment.clone(), host.clone());
        settings.made_of = Some(Box::new(MadeOf { args, environment, file, host }));
        Ok(settings)
    }

    /// From flags, environment and a file already read.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn resolve(
        args: &Args,
        environment: &Environment,
        file: ConfigFile,
        host: &Host,
    ) -> Result<Self, ConfigError> {
        let set = &ConfigFile::from_set_flags(&args.set)?;
        let given = Given { args, environment, set, file: &file };
        let mut lines = Lines::default();
        let log = resolve_log(given, &mut lines)?;
        let places = Places::resolve(given, host, &mut lines)?;
        let table = resolve_table(given, host, places.listeners.len(), &mut lines)?;
        let Derived { core, most_connections } =
            resolve_core(given, places.mode, table, &mut lines)?;
        core.check().map_err(|problem| {
            ConfigError::value("configuration", problem.to_string(), "correct the value named")
        })?;
        let handshake_timeout_ms = lines.pick(
            "limits.handshake_timeout_ms",
            given.limit(|it| it.handshake_timeout_ms),
            // The library says hello at once; a swapping node may need seconds.
            10_000,
        );
        if args.ready_fd.is_some() && args.ready_fd == args.until_eof {
            let remedy = "name two fds";
            return Err(ConfigError::value("--ready-fd", "it is --until-eof's fd", remedy));
        }
        let without = args.without_kernel_features.as_deref().unwrap_or_default();
        let kernel = KernelFeatures::without(without).map_err(|name| {
            let problem = format!("`{name}` is no feature");
            ConfigError::value("--without-kernel-features", problem, "see its help")
        })?;
        Ok(Settings {
            mode: places.mode,
            config_file: None,
            listeners: places.listeners,
            admin_socket: places.admin_socket,
            table_fds: table.fds,
            core,
            most_connections,
            handshake_timeout: Duration::from_millis(handshake_timeout_ms),
            log,
            ready_fd: args.ready_fd,
            until_eof: args.until_eof,
            kernel,
            takeover: args.takeover,
            made_of: None,
            lines: lines.0,
        })
    }

    /// Each effective value, as a configuration file has it or `none`: key, value, origin.
    pub fn effective(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.lines.iter().map(|(key, value, origin)| (key.as_str(), value.as_str(), *origin))
    }

    /// What is served, in one line.
    pub fn summary(&self) -> String {
        let paths: Vec<_> = self.listeners.iter().map(|it| it.path.display().to_string()).collect();
        format!("serving {}", paths.join(" "))
    }

    /// The administrator's directory: of the lock, the node key and the generation page.
    pub fn admin_directory(&self) -> &Path {
        parent(&self.admin_socket)
    }
}

/// The directory a socket stands in.
pub fn parent(socket: &Path) -> &Path {
    match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The administrator's socket that belongs to a client socket: for DIR/NAME it is
/// DIR-admin/admin.sock.
pub fn admin_socket_of(client_socket: &Path) -> PathBuf {
    let mut directory = parent(client_socket).as_os_str().to_owned();
    directory.push("-admin");
    PathBuf::from(directory).join("admin.sock")
}

/// The effective settings as a configuration file, each value with its origin: what
/// `--check-config` prints.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.config_file {
            Some(path) => writeln!(f, "# file: {}", path.display())?,
            None => writeln!(f, "# file: none")?,
        }
        writeln!(f, "# mode: {:?}; fds kept from clients: {}", self.mode, self.own_fds())?;
        let mut sections: Vec<&str> = Vec::new();
        for (key, ..) in &self.lines {
            let section = split_key(key).0;
            if !sections.contains(&section) {
                sections.push(section);
            }
        }
        for section in sections {
            match section {
                "" => {}
                listener if listener.starts_with("listener") => writeln!(f, "\n[[listener]]")?,
                section => writeln!(f, "\n[{section}]")?,
            }
            for (key, value, origin) in &self.lines {
                let (of, name) = split_key(key);
                if of == section {
                    let mark = if value == NONE { "# " } else { "" };
                    writeln!(f, "{mark}{name} = {value}  # {origin}")?;
                }
            }
        }
        Ok(())
    }
}

/// Section and name of a key.
fn split_key(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

impl Settings {
    fn own_fds(&self) -> u64 {
        self.table_fds - self.core.table_fds
    }
}

fn resolve_log(given: Given<'_>, lines: &mut Lines) -> Result<log::LevelFilter, ConfigError> {
    let parse = |text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            let problem = format!("`{text}` is no level");
            ConfigError::value("log", problem, "use error, warn, info or debug")
        }),
    };
    let sources = Sources {
        flag: given.args.log,
        environment: given.environment.parse("FDBROKER_LOG", "error, warn, info or debug")?,
        set: parse(&given.set.log)?,
        file: parse(&given.file.log)?,
    };
    let (level, origin) = first(sources, log::LevelFilter::Info);
    lines.push("log", &format!("{:?}", level.to_string().to_lowercase()), origin);
    Ok(level)
}
