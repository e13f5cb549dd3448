//! The effective settings: flag, then environment, then file, then default, each value with its
//! origin. Must never read a source behind the caller's back: what it knows of the machine and the
//! environment is handed in.

use crate::kernel::KernelFeatures;
use crate::node::directories::parent;
use crate::settings::args::Args;
use crate::settings::config::{ConfigError, ConfigFile};
use crate::settings::derive::{Given, resolve_core, resolve_table};
use crate::settings::outside::{Environment, Host};
use crate::settings::places::Places;
use crate::settings::sockets::{Isolate, ListenerSettings, Mode};
use crate::settings::sources::{Lines, NONE, Sources, first};
use crate::settings::untold::Untold;
use fdbroker_core::{CapsOfScopes, Config, DomainKey};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The configuration file that is read if no other is named and it exists.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/fdbroker/fdbrokerd.toml";

/// `NAME=/path` as a shell takes it, from whatever directory: for people to paste.
pub fn assignment(name: &str, path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let path = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@:,".contains(c);
    if path.chars().all(is_plain) {
        format!("{name}={path}")
    } else {
        format!("{name}='{}'", path.replace('\'', r"'\''"))
    }
}

/// What settings are made of.
#[derive(Clone, Debug)]
pub(crate) struct MadeOf {
    pub args: Args,
    pub environment: Environment,
    pub file: ConfigFile,
    /// The file as it was read.
    pub text: String,
    pub host: Host,
}

/// Everything the daemon needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which users it serves.
    pub mode: Mode,
    /// The file read, if any.
    pub config_file: Option<PathBuf>,
    /// Sockets for clients, as they are listed; at least one.
    pub listeners: Vec<ListenerSettings>,
    /// The administrator's socket; key and page stand beside it.
    pub admin_socket: PathBuf,
    /// Sockets by which users look at what is their own, each with the place in `listeners` of the
    /// one whose domains they see.
    pub viewing: Vec<(u32, PathBuf)>,
    /// The name or number of the group whose members see all, and change nothing.
    pub monitor_group: Option<String>,
    /// Its number, once the start has found it.
    pub monitor_gid: Option<u32>,
    /// The cgroup in which the kubelet has those of pods; `None`: the kubelet's default.
    pub pods_cgroup: Option<String>,
    /// `revoke --job` ends named objects that outlive their job, too.
    pub end_with_job: bool,
    /// Listeners of the file in whose place FDBROKER_SOCKET of the environment is served.
    pub dropped: Vec<PathBuf>,
    /// Soft RLIMIT_NOFILE to run with: the size of the fd table.
    pub table_fds: u64,
    /// What the core is made with: caps, limits, times.
    pub core: Config,
    /// Most connections, those included that have ended and whose peer has not read all:
    /// `max_clients`, or as many as the table has room for.
    pub most_connections: u32,
    /// Time a new connection has for its hello.
    pub handshake_timeout: Duration,
    /// The least that is logged.
    pub log: log::LevelFilter,
    /// The fd to which READY is written when clients can connect.
    pub ready_fd: Option<i32>,
    /// The fd whose end of file ends the daemon.
    pub until_eof: Option<i32>,
    /// Kernel features that may be used.
    pub kernel: KernelFeatures,
    /// Go on in the place of the broker that runs.
    pub takeover: bool,
    /// Uids that may own the directories.
    pub(crate) owners: Vec<u32>,
    /// What the look at the places does not tell.
    pub untold: Untold,
    /// Why the configuration file is not what is served with: they are those of the last good
    /// start, or those of before a reload that was refused.
    pub refused: Option<String>,
    /// What [`Settings::reload`] makes them of again; `None`: they cannot be made again.
    pub(crate) made_of: Option<Box<MadeOf>>,
    /// Each effective value: key, value, origin.
    pub(crate) lines: Vec<(String, String, &'static str)>,
}

impl Settings {
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
        let table =
            resolve_table(given, host, (places.listeners.len(), places.viewing.len()), &mut lines)?;
        let core = resolve_core(given, host, places.mode, table, &mut lines)?;
        core.check().map_err(|problem| {
            ConfigError::value("configuration", problem.to_string(), "correct the value named")
        })?;
        let end_with_job = Sources::of(set.end_with_job, given.file.end_with_job);
        let end_with_job = lines.pick("end_with_job", end_with_job, false);
        let handshake_timeout_ms = lines.pick(
            "limits.handshake_timeout_ms",
            given.limit(|it| it.handshake_timeout_ms),
            // The library says hello at once; a swapping node may need seconds.
            10_000,
        );
        if handshake_timeout_ms == 0 {
            let problem = "0 leaves no time, and no client could connect";
            let remedy = "give it at least 1; 10000 is the default";
            return Err(ConfigError::value("limits.handshake_timeout_ms", problem, remedy));
        }
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
            viewing: places.viewing,
            monitor_group: places.monitor_group,
            monitor_gid: None,
            pods_cgroup: places.pods_cgroup,
            end_with_job,
            dropped: places.dropped,
            table_fds: table.fds,
            most_connections: core.max_clients,
            core,
            handshake_timeout: Duration::from_millis(handshake_timeout_ms),
            log,
            ready_fd: args.ready_fd,
            until_eof: args.until_eof,
            kernel,
            takeover: args.takeover,
            owners: host.owners.clone(),
            untold: Untold::default(),
            refused: None,
            made_of: None,
            lines: lines.0,
        })
    }

    /// Each effective value, as a configuration file has it or `none`: key, value, origin.
    pub fn effective(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.lines.iter().map(|(key, value, origin)| (key.as_str(), value.as_str(), *origin))
    }

    /// What is served, in one line: as a shell takes it, so that whoever reads the log can paste
    /// it.
    pub fn summary(&self) -> String {
        let sockets: Vec<_> =
            self.listeners.iter().map(|it| assignment("FDBROKER_SOCKET", &it.path)).collect();
        format!("serving {}", sockets.join(" "))
    }

    /// Whether pods of one uid are domains of their own at this listener.
    pub fn isolates_pods(&self, number: u32) -> bool {
        self.listeners.iter().any(|it| it.number == number && it.isolate == Some(Isolate::Pod))
    }

    /// Whether it is of a listener that is served.
    pub fn serves(&self, domain: DomainKey) -> bool {
        self.listeners.iter().any(|it| it.number == domain.listener)
    }

    /// The administrator's directory: of the lock, the node key and the generation page.
    pub fn admin_directory(&self) -> &Path {
        parent(&self.admin_socket)
    }
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

/// The caps of all scopes.
pub fn caps_of(settings: &Settings) -> CapsOfScopes {
    let core = &settings.core;
    CapsOfScopes { node: core.node, domain: core.domain, job: core.job, client: core.client }
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

/// As an error names them.
const LOG_LEVELS: &str = "off, error, warn, info or debug";

fn resolve_log(given: Given<'_>, lines: &mut Lines) -> Result<log::LevelFilter, ConfigError> {
    let parse = |text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            let problem = format!("`{text}` is no level");
            ConfigError::value("log", problem, format!("use {LOG_LEVELS}"))
        }),
    };
    let sources = Sources {
        flag: given.args.log,
        environment: given.environment.parse("FDBROKER_LOG", LOG_LEVELS)?,
        set: parse(&given.set.log)?,
        file: parse(&given.file.log)?,
    };
    let (level, origin) = first(sources, log::LevelFilter::Info);
    lines.push("log", &format!("{:?}", level.to_string().to_lowercase()), origin);
    Ok(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignment_when_a_shell_reads_it_then_the_whole_path_from_any_directory() {
        for path in ["/run/a-b_1.c/broker.sock", "/tmp/a b/$(x)'\"/s", "/tmp/ä;y"] {
            let script = format!("{}; printf %s \"$A\"", assignment("A", Path::new(path)));
            let read = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(read.stdout).unwrap(), path, "{script}");
        }
        assert_eq!(assignment("A", Path::new("/run/x/b.sock")), "A=/run/x/b.sock");
        let here = std::env::current_dir().unwrap();
        let named = assignment("A", Path::new("sub/b.sock"));
        assert!(named.contains(&format!("{}/sub/b.sock", here.display())), "{named}");
    }
}
