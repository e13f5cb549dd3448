//! The configuration file: its keys, nothing else. Every key may be left out; an unknown one is an
//! error, so that a misspelt cap is never silently no cap. Must never hold a default: those are in
//! [`crate::settings`].

use crate::node::error::ListenError;
use crate::settings::sockets::Isolate;
use fdbroker_protocol::{ByResource, ByScope};
use serde::Deserialize;
use serde::de::Error as _;
use std::path::{Path, PathBuf};
use toml::Spanned;

mod caps_sections;

/// Every bit of a socket's mode: reading, writing and executing, for owner, group and others.
const MOST_MODE: u32 = 0o777;

/// Why the configuration cannot be used; each names the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read {path}: {source}; name a file that can be read, or none to use the defaults"
    )]
    Read {
        /// The configuration file.
        path: PathBuf,
        /// What reading it says.
        source: std::io::Error,
    },
    /// The file is no TOML or has an unknown key; the message names line and key. One line: each
    /// line is a record of the journal.
    #[error("{path}: {message}; correct the line, or remove it to use the default")]
    File {
        /// The configuration file.
        path: PathBuf,
        /// From the parser: the line and what was expected.
        message: String,
    },
    /// A place that cannot be served.
    #[error(transparent)]
    Place(#[from] ListenError),
    /// A flag or variable has a value that cannot be used.
    #[error("{name}: {problem}; {remedy}")]
    Value {
        /// The flag, variable or key.
        name: String,
        /// What is wrong with the value, as a part of a sentence.
        problem: String,
        /// What to do about it, as a part of a sentence.
        remedy: String,
    },
}

impl ConfigError {
    /// A value that cannot be used.
    pub fn value(
        name: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        ConfigError::Value { name: name.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: Option<$type>,)* }

        impl $name {
            /// This section with what it lacks taken from `below`.
            pub fn over(self, below: Self) -> Self {
                Self { $($field: self.$field.or(below.$field),)* }
            }
        }
    )* };
}

sections! {
    /// The section `[limits]`.
    LimitsSection {
        /// Size of the broker's own fd table.
        table_fds: u64,
        /// Most clients that are connected at once.
        max_clients: u32,
        /// Most isolation domains (listener and uid).
        max_domains: u32,
        /// Most requests of one client parked at once.
        max_parked_per_client: u32,
        /// Most refused fds of one domain whose close has not returned.
        max_refused_per_domain: u32,
        /// Most allocations: slots of the generation page.
        max_slots: u32,
        /// Deposit credits a client keeps.
        base_credits: u32,
        /// Most deposit credits of one client.
        max_credits: u32,
        /// Time an owner has to answer a recall, ms.
        recall_timeout_ms: u64,
        /// Time a kept allocation lives without its owner, ms.
        keep_ttl_ms: u64,
        /// Longest time a kept named object lives after its last use, ms.
        object_ttl_ms: u64,
        /// Time that owners have after a crash of the broker to name their allocations again, ms.
        grace_ms: u64,
        /// Time a new connection has for its hello, ms.
        handshake_timeout_ms: u64,
    }
}

/// A section `[[listener]]`: a socket for clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerSection {
    /// Path of the socket.
    pub path: PathBuf,
    /// Of the socket, written in octal: 0o666, at most 0o777.
    pub mode: Option<u32>,
    /// What tells domains apart there, beside the uid.
    pub isolate: Option<Isolate>,
}

/// The modes of a file alone, with where they stand: only the text tells 0o600 from 384.
#[derive(Deserialize)]
struct WrittenModes {
    #[serde(default)]
    listener: Vec<WrittenMode>,
}

#[derive(Deserialize)]
struct WrittenMode {
    mode: Option<Spanned<u32>>,
}

/// What `[caps.SCOPE]` sets, by scope and resource; absent = the default.
pub type CapsSections = ByScope<ByResource<Option<u64>>>;

/// The whole file; what is absent has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// Path of the administrator's socket.
    pub admin_socket: Option<PathBuf>,
    /// The group whose members see all, and change nothing.
    pub monitor_group: Option<String>,
    /// The cgroup in which the kubelet has those of pods.
    pub pods_cgroup: Option<String>,
    /// Users whose ranges in /etc/subuid are an engine's: its containers are users by themselves.
    pub subuid_pools: Option<Vec<String>>,
    /// What jobs keep (named objects with keep or pin) ends with them, where their end is told.
    pub end_with_job: Option<bool>,
    /// Log level by name: off, error, warn, info or debug.
    pub log: Option<String>,
    /// Sockets for clients, in the order of their listener numbers.
    pub listener: Vec<ListenerSection>,
    /// The sections `[caps.SCOPE]`.
    #[serde(deserialize_with = "caps_sections::deserialize")]
    pub caps: CapsSections,
    /// The section `[limits]`.
    pub limits: LimitsSection,
}

impl ConfigFile {
    /// From the text of this file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn of_text(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse(text).map_err(|error| ConfigError::File {
            path: path.into(),
            message: in_one_line(text, &error),
        })
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// The parser's: it names line, column and key.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let file = toml::from_str(text)?;
        let written: WrittenModes = toml::from_str(text)?;
        for mode in written.listener.into_iter().filter_map(|listener| listener.mode) {
            let literal = text.get(mode.span()).unwrap_or_default();
            // chmod(1) takes octal digits without a mark, TOML takes them for a decimal number: 600
            // is 0o1130.
            if !literal.starts_with("0o") || mode.into_inner() > MOST_MODE {
                return Err(toml::de::Error::custom(format!(
                    "mode = {literal} is no mode of a socket: it is written in octal, from 0o0 to 0o777, such as 0o660"
                )));
            }
        }
        Ok(file)
    }

    /// From `--set` flags: each is one line of a file.
    ///
    /// # Errors
    /// [`ConfigError::Value`] naming the flag.
    pub fn from_set_flags(flags: &[String]) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        for flag in flags {
            let one = Self::parse(flag).map_err(|error| {
                let problem = error.message().to_owned();
                let remedy = "write KEY=VALUE with a key of the configuration file, such as \
                              limits.max_clients=64";
                ConfigError::value(format!("--set {flag}"), problem, remedy)
            })?;
            all = one.over(all);
        }
        Ok(all)
    }

    /// This file with what it lacks taken from `below`.
    pub fn over(self, below: Self) -> Self {
        ConfigFile {
            admin_socket: self.admin_socket.or(below.admin_socket),
            monitor_group: self.monitor_group.or(below.monitor_group),
            pods_cgroup: self.pods_cgroup.or(below.pods_cgroup),
            subuid_pools: self.subuid_pools.or(below.subuid_pools),
            end_with_job: self.end_with_job.or(below.end_with_job),
            log: self.log.or(below.log),
            listener: if self.listener.is_empty() { below.listener } else { self.listener },
            caps: ByScope::from_fn(|scope| {
                let (above, below) = (self.caps[scope], below.caps[scope]);
                ByResource::from_fn(|resource| above[resource].or(below[resource]))
            }),
            limits: self.limits.over(below.limits),
        }
    }
}

/// What the parser says, with the line that it means.
fn in_one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(" ");
    let before = error.span().and_then(|span| text.get(..span.start));
    let Some(number) = before.map(|before| before.matches('\n').count()) else { return message };
    let line = text.lines().nth(number).unwrap_or_default().trim();
    format!("line {}, `{line}`: {message}", number + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_when_a_key_is_unknown_then_its_name_and_line_are_told() {
        for (text, key, line) in [
            ("[limits]\nmax_clinets = 3\n", "max_clinets", "line 2"),
            ("[caps.node]\n\nfsd = 1\n", "fsd", "line 3"),
            ("[[listener]]\npath = \"/x\"\nmod = 1\n", "mod", "line 3"),
            ("colour = 1\n", "colour", "line 1"),
        ] {
            let error = ConfigFile::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{key}`")), "{error}");
            assert!(error.contains(line), "{error}");
        }
    }

    #[test]
    fn of_text_when_it_is_wrong_then_one_line_with_its_number_and_text() {
        for text in ["log = \"info\"\n[caps.node]\nfdz = 1\n", "a = \"\"\"x\n\n", "[\n", "\n= 1"] {
            let error = ConfigFile::of_text(Path::new("/etc/x"), text).unwrap_err();
            let said = error.to_string();
            assert!(said.starts_with("/etc/x: line ") && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn parse_when_a_mode_is_not_octal_or_has_too_many_bits_then_refused() {
        let parse = |mode: &str| {
            ConfigFile::parse(&format!("[[listener]]\npath = \"/x\"\nmode = {mode}\n"))
        };
        for mode in ["0o0", "0o600", "0o6_6_0", "0o777"] {
            assert!(parse(mode).is_ok(), "{mode}");
        }
        for mode in ["999", "600", "438", "0", "0x1b6", "0b1", "0o1000", "0o1777"] {
            let error = parse(mode).unwrap_err().to_string();
            assert!(error.contains(&format!("mode = {mode} is no mode")), "{error}");
            assert!(error.contains("such as 0o660"), "{error}");
        }
        let flag = r#"listener=[{path="/x",mode=600}]"#.to_owned();
        let error = ConfigFile::from_set_flags(&[flag]).unwrap_err().to_string();
        assert!(error.contains("mode = 600 is no mode"), "{error}");
    }

    #[test]
    fn parse_when_empty_then_nothing_is_set() {
        assert_eq!(ConfigFile::parse("").unwrap(), ConfigFile::default());
    }

    #[test]
    fn parse_when_whole_then_every_section_is_read() {
        let text = "admin_socket = \"/a/admin.sock\"\nlog = \"debug\"\n\
            [[listener]]\npath = \"/a/b.sock\"\nmode = 0o660\nisolate = \"pod\"\n[[listener]]\npath = \"/c/d.sock\"\n\
            [caps.node]\nfds = 100\n[caps.client]\nopen_leases = 5\n[limits]\nmax_slots = 16\n";
        let file = ConfigFile::parse(text).unwrap();
        assert_eq!(file.listener.len(), 2);
        assert_eq!(file.listener[0].mode, Some(0o660));
        let isolate: Vec<_> = file.listener.iter().map(|it| it.isolate).collect();
        assert_eq!(isolate, [Some(Isolate::Pod), None]);
        assert_eq!(file.caps.node.fds, Some(100));
        assert_eq!(file.caps.client.open_leases, Some(5));
        assert_eq!(file.limits.max_slots, Some(16));
    }

    #[test]
    fn from_set_flags_when_repeated_then_the_last_wins_and_a_bad_key_is_named() {
        let set = |flags: &[&str]| {
            ConfigFile::from_set_flags(&flags.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>())
        };
        let file = set(&["limits.max_slots=1", "caps.node.fds=7", "limits.max_slots=2"]).unwrap();
        assert_eq!((file.limits.max_slots, file.caps.node.fds), (Some(2), Some(7)));
        let error = set(&["limits.max_slot=1"]).unwrap_err().to_string();
        assert!(error.contains("--set limits.max_slot=1: unknown field `max_slot`"), "{error}");
    }
}
