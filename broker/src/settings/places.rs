//! Which sockets the broker serves, and for which users. Must never make a socket wider than the
//! mode of service says.

use crate::limits::MAX_LISTENERS;
use crate::node::listeners::check_address;
use crate::settings::config::{ConfigError, ListenerSection};
use crate::settings::derive::Given;
use crate::settings::outside::{Environment, Host};
use crate::settings::sockets::{Isolate, ListenerSettings, Mode, admin_socket_of, view_socket_of};
use crate::settings::sources::{Lines, NONE, Sources, first};
use std::path::{Path, PathBuf};

pub(crate) struct Places {
    pub mode: Mode,
    pub listeners: Vec<ListenerSettings>,
    pub admin_socket: PathBuf,
    /// See [`crate::settings::Settings::viewing`].
    pub viewing: Vec<(u32, PathBuf)>,
    pub monitor_group: Option<String>,
    pub pods_cgroup: Option<String>,
    /// Listeners of the file that are not served, as the environment names a socket.
    pub dropped: Vec<PathBuf>,
}

impl Places {
    pub fn resolve(given: Given<'_>, host: &Host, lines: &mut Lines) -> Result<Self, ConfigError> {
        let Given { args, environment, set, file } = given;
        let private = args.private.as_ref().map(|dir| dir.join("fdbroker/broker.sock"));
        let is_private = private.is_some();
        let socket = Sources {
            flag: private.or_else(|| args.socket.clone()),
            environment: environment.path("FDBROKER_SOCKET"),
            set: None,
            file: None,
        };
        let listed = if set.listener.is_empty() { &file.listener } else { &set.listener };
        let is_explicit = socket.flag.is_some() || socket.environment.is_some();
        let (mode, default) = default_place(environment, host, is_private, is_explicit, listed);
        let default_socket_mode = if mode == Mode::Private { 0o600 } else { 0o666 };
        let settings = |it: &ListenerSection| {
            let mode = it.mode.unwrap_or(default_socket_mode);
            let sets_mode = it.mode.is_some();
            ListenerSettings {
                sets_mode,
                ..ListenerSettings::new(it.path.clone(), mode, it.isolate)
            }
        };
        let listed_ones: Vec<ListenerSettings> = listed.iter().map(settings).collect();
        let mut dropped = Vec::new();
        let (listeners, origin) = if is_explicit || listed.is_empty() {
            let (path, origin) = first(socket, default);
            // Whatever names the place, it is as narrow as the file has it.
            let isolate = listed.iter().find(|it| it.path == path).and_then(|it| it.isolate);
            if origin == "environment" {
                dropped.extend(listed.iter().map(|it| it.path.clone()).filter(|it| *it != path));
            }
            (vec![ListenerSettings::new(path, default_socket_mode, isolate)], origin)
        } else {
            (listed_ones.clone(), "file")
        };
        let admin_of = |listeners: &[ListenerSettings]| {
            let default = admin_socket_of(&listeners[0].path);
            let flag = if is_private { Some(default.clone()) } else { args.admin_socket.clone() };
            let admin = Sources {
                flag,
                environment: environment.path("FDBROKER_ADMIN_SOCKET"),
                set: set.admin_socket.clone(),
                file: file.admin_socket.clone(),
            };
            // The places in the environment are the node's broker's, and of no use to a private
            // one.
            first(admin, default)
        };
        // Those that a flag or the environment replaces, too: another start has none of these.
        if !listed_ones.is_empty() {
            let (admin, admin_origin) = admin_of(&listed_ones);
            check(&admin, admin_origin, &listed_ones, "file")?;
        }
        let (admin_socket, admin_origin) = admin_of(&listeners);
        check(&admin_socket, admin_origin, &listeners, origin)?;
        lines.push("admin_socket", &quoted(&admin_socket), admin_origin);
        for (index, listener) in listeners.iter().enumerate() {
            let key = format!("listener{index}");
            lines.push(&format!("{key}.path"), &quoted(&listener.path), origin);
            lines.push(&format!("{key}.mode"), &format!("0o{:o}", listener.mode), origin);
            let isolate = listener.isolate.map_or(NONE, |Isolate::Pod| "\"pod\"");
            lines.push(&format!("{key}.isolate"), &isolate, origin);
        }
        let viewing = viewing_sockets(mode, &admin_socket, &listeners);
        let monitors = Sources::of(set.monitor_group.clone(), file.monitor_group.clone());
        let (monitor_group, monitors_origin) = first(monitors, String::new());
        let monitor_group = Some(monitor_group).filter(|name| !name.is_empty());
        let shown = monitor_group.as_ref().map_or(NONE.into(), |name| format!("{name:?}"));
        lines.push("monitor_group", &shown, monitors_origin);
        let pods = Sources::of(set.pods_cgroup.clone(), file.pods_cgroup.clone());
        let (pods_cgroup, pods_origin) = first(pods, String::new());
        let pods_cgroup = Some(pods_cgroup).filter(|path| !path.is_empty());
        check_cgroup(pods_cgroup.as_deref())?;
        let shown = pods_cgroup.as_ref().map_or(NONE.into(), |path| quoted(Path::new(path)));
        lines.push("pods_cgroup", &shown, pods_origin);
        Ok(Places { mode, listeners, admin_socket, viewing, monitor_group, pods_cgroup, dropped })
    }
}

/// For users of a node to look at what is their own: one beside each listener, of several in a
/// directory beside the first. A private broker has one user, who has the administrators' socket.
fn viewing_sockets(
    mode: Mode,
    admin: &Path,
    listeners: &[ListenerSettings],
) -> Vec<(u32, PathBuf)> {
    if mode == Mode::Private {
        return Vec::new();
    }
    let mut all: Vec<(u32, PathBuf)> = Vec::new();
    for (number, listener) in (0..).zip(listeners) {
        let path = view_socket_of(&listener.path);
        let is_taken = all.iter().any(|(_, other)| *other == path)
            || path == admin
            || check_address(&path).is_err();
        if !is_taken {
            all.push((number, path));
        }
    }
    all
}

/// Refuses what no machine can serve: too many places, relative ones in a file, paths that no
/// socket can have, and one place twice.
fn check(
    admin: &Path,
    admin_origin: &str,
    listeners: &[ListenerSettings],
    origin: &str,
) -> Result<(), ConfigError> {
    if listeners.len() > MAX_LISTENERS {
        let problem = format!("{} of them, at most {MAX_LISTENERS} are served", listeners.len());
        return Err(ConfigError::value("[[listener]]", problem, "remove some"));
    }
    // By default it is beside the first listener.
    let admin_origin = if admin_origin == "default" { origin } else { admin_origin };
    check_path("admin_socket", admin, admin_origin)?;
    for (at, listener) in listeners.iter().enumerate() {
        check_path("listener", &listener.path, origin)?;
        let name = format!("listener {}", listener.path.display());
        let same = listeners[..at].iter().find(|other| other.number == listener.number);
        let problem = match same {
            Some(other) if other.path == listener.path => {
                "another listener has the same path".to_owned()
            }
            Some(other) => format!("its number is that of {} by chance", other.path.display()),
            None if listener.path == admin => "admin_socket has the same path".to_owned(),
            None if listeners.iter().any(|it| view_socket_of(&it.path) == listener.path) => {
                "the socket by which users look at what is their own has the same path".to_owned()
            }
            None => continue,
        };
        return Err(ConfigError::value(name, problem, "give each a path of its own"));
    }
    Ok(())
}

fn check_cgroup(path: Option<&str>) -> Result<(), ConfigError> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
    let is_whole = |path: &str| path.strip_prefix('/').is_some_and(|it| it.split('/').all(is_part));
    match path.filter(|path| !is_whole(path)) {
        None => Ok(()),
        Some(path) => Err(ConfigError::value(
            "pods_cgroup",
            format!("`{path}` is no cgroup below the root"),
            "write its whole path below the mount of cgroups, such as /kubelet.slice/kubelet-kubepods.slice",
        )),
    }
}

fn check_path(key: &str, path: &Path, origin: &str) -> Result<(), ConfigError> {
    let refuse = |problem: String, remedy: &str| {
        Err(ConfigError::value(format!("{key} {}", path.display()), problem, remedy))
    };
    // A flag is read in the directory of the user that gives it. A file and a variable have no
    // directory of their own.
    if path.is_relative() && origin != "flag" {
        return refuse("the path is relative".into(), "write the whole path, from / on");
    }
    if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return refuse("the path names a directory".into(), "add the name of the socket");
    }
    match check_address(path) {
        Ok(()) => Ok(()),
        Err(problem) => refuse(problem, "use a shorter directory, without control characters"),
    }
}

/// Root and users without a runtime directory serve the node; any other user serves himself, unless
/// a place is named.
fn default_place(
    environment: &Environment,
    host: &Host,
    is_private: bool,
    is_explicit: bool,
    listed: &[ListenerSection],
) -> (Mode, PathBuf) {
    let node = PathBuf::from("/run/fdbroker/broker.sock");
    match environment.path("XDG_RUNTIME_DIR") {
        _ if is_private => (Mode::Private, node),
        Some(dir) if host.euid != 0 && !is_explicit && listed.is_empty() => {
            (Mode::Private, dir.join("fdbroker/broker.sock"))
        }
        _ => (Mode::Service, node),
    }
}

/// A path as a basic string of TOML (toml.io, 1.0), which escapes control characters otherwise than
/// Rust.
fn quoted(path: &Path) -> String {
    let mut text = String::from('"');
    for character in path.to_string_lossy().chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            control if control.is_control() => {
                text.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_when_a_path_is_relative_then_only_a_flag_may_give_it() {
        let path = PathBuf::from("a/b.sock");
        let admin = admin_socket_of(&path);
        let listeners = [ListenerSettings::new(path, 0o600, None)];
        for (origin, is_good) in [("flag", true), ("environment", false), ("file", false)] {
            assert_eq!(check(&admin, "default", &listeners, origin).is_ok(), is_good, "{origin}");
        }
    }

    #[test]
    fn check_when_a_listener_has_the_place_of_the_socket_for_looking_then_refused() {
        let new = |path: &str| ListenerSettings::new(path.into(), 0o600, None);
        let (good, taken) = ([new("/a/s"), new("/b/s")], [new("/a/s"), new("/a/view.sock")]);
        let problem =
            |all| check(Path::new("/c/s"), "default", all, "file").map_err(|it| it.to_string());
        assert_eq!(problem(&good), Ok(()));
        assert!(problem(&taken).unwrap_err().contains("by which users look"));
    }

    #[test]
    fn quoted_when_a_path_has_strange_characters_then_toml_reads_it_back() {
        for path in ["/run/a b/ä.sock", "/x/\"\\\u{19}\u{7f}\u{85}\n\t'"] {
            let file: toml::Table = format!("path = {}", quoted(Path::new(path))).parse().unwrap();
            assert_eq!(file["path"].as_str(), Some(path));
        }
    }
}
