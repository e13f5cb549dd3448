//! The places of a broker before it starts: what would keep it from serving, told before anything
//! is changed. The judge of a configuration looks. Must never change anything, nor refuse what
//! another user, such as the daemon's, may use.

use crate::node::directories::{DirectoryRule, check_directory, parent};
use crate::node::error::ListenError;
use crate::node::listeners::link_name;
use crate::node::names::OWN_FILES;
use crate::settings::derive::cap_key;
use crate::settings::effective::{Settings, caps_of};
use crate::settings::sockets::{ListenerSettings, Mode};
use crate::settings::untold::Untold;
use fdbroker_protocol::{NO_CAP, Resource, Scope};
use nix::sys::statfs::{PROC_SUPER_MAGIC, SYSFS_MAGIC, statfs};
use nix::unistd::Group;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

impl Settings {
    /// Looks at the places to be served.
    ///
    /// # Errors
    /// See [`ListenError`]: only faults that every user of the machine would meet.
    pub(crate) fn preflight(&self) -> Result<Untold, ListenError> {
        let mut untold = Untold::default();
        let admin = [(self.admin_socket.as_path(), DirectoryRule::Administrator)];
        let clients = self.listeners.iter().map(|it| (it.path.as_path(), DirectoryRule::Clients));
        // Where the broker's own files come to stand.
        let own = OWN_FILES.map(|name| place(&self.admin_socket.with_file_name(name)));
        let mut seen = Vec::from(own);
        for (socket, rule) in admin.into_iter().chain(clients) {
            look_at_directory(parent(socket), rule, &self.owners, &mut untold)?;
            let is_in_the_way =
                std::fs::symlink_metadata(socket).is_ok_and(|it| !it.file_type().is_socket());
            // What took the place of a service's socket, the daemon's start removes.
            let link = self.admin_socket.with_file_name(link_name(socket));
            if is_in_the_way && std::fs::symlink_metadata(link).is_err() {
                return Err(ListenError::NoSocket { path: socket.into() });
            }
            // The same place by another way: a link, or `..`.
            let place = place(socket);
            if seen.contains(&place) {
                return Err(ListenError::Twice { path: socket.into(), place });
            }
            let is_shut_in = self.mode == Mode::Service
                && rule == DirectoryRule::Clients
                && place.parent() == seen[0].parent();
            if is_shut_in {
                let problem = format!(
                    "users could not reach {}: it is the administrator's, closed to others",
                    socket.display()
                );
                let remedy =
                    "give the client socket and the administrator's a directory each".into();
                return Err(ListenError::Unsafe { path: parent(socket).into(), problem, remedy });
            }
            seen.push(place);
        }
        self.listeners.iter().try_for_each(|it| self.check_mode(it))?;
        untold.warnings = self.warnings();
        Ok(untold)
    }

    /// Whether the mode of the file can be given to a socket that is there.
    fn check_mode(&self, listener: &ListenerSettings) -> Result<(), ListenError> {
        let ListenerSettings { path, mode, .. } = listener;
        let found = std::fs::symlink_metadata(path).ok();
        let is_alike = |mode_now: u32| !listener.sets_mode || mode_now & 0o777 == *mode;
        match found.filter(|it| !is_alike(it.mode()) && !self.owners.contains(&it.uid())) {
            Some(found) if !self.owners.contains(&0) => {
                Err(ListenError::Mode { path: path.clone(), mode: *mode, owner: found.uid() })
            }
            _ => Ok(()),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let group = self.find_monitor_group().err();
        let dropped = self.dropped.iter().map(|path| {
            format!(
                "listener {} is not served: FDBROKER_SOCKET in the environment is served in its place; unset it",
                path.display()
            )
        });
        group.into_iter().chain(dropped).chain(self.idle_caps()).collect()
    }

    /// A line for each cap that somebody has set above one that bounds it.
    fn idle_caps(&self) -> impl Iterator<Item = String> {
        let is_set =
            |key: &str| self.lines.iter().any(|(of, _, origin)| of == key && *origin != "default");
        let wider = |scope| Scope::WIDEST_FIRST.into_iter().take_while(move |it| *it != scope);
        let caps = caps_of(self);
        let all =
            Scope::ALL.iter().flat_map(|scope| Resource::capped().map(move |it| (*scope, it)));
        all.filter_map(move |(scope, resource)| {
            let (key, cap) = (cap_key(scope, resource), caps[scope][resource]);
            let lower = |by: &Scope| caps[*by][resource] < cap;
            let by = wider(scope).find(lower).filter(|_| cap != NO_CAP && is_set(&key))?;
            let (other, bound) = (cap_key(by, resource), caps[by][resource]);
            Some(format!("{key} = {cap} is of no use: {other} = {bound} is lower; lower the one, or raise the other"))
        })
    }

    /// The number of the group whose members see all, if one is named; else why nobody does. A
    /// directory service may take long.
    pub(crate) fn find_monitor_group(&self) -> Result<Option<u32>, String> {
        let Some(name) = &self.monitor_group else { return Ok(None) };
        if let Ok(number) = name.parse() {
            return Ok(Some(number));
        }
        let cause = match Group::from_name(name) {
            Ok(Some(group)) => return Ok(Some(group.gid.as_raw())),
            Ok(None) => "it is not known here".into(),
            Err(error) => error.to_string(),
        };
        Err(format!("monitor_group {name}: {cause}; nobody sees all until a restart finds it"))
    }
}

fn look_at_directory(
    directory: &Path,
    rule: DirectoryRule,
    owners: &[u32],
    untold: &mut Untold,
) -> Result<(), ListenError> {
    let failed = |source| ListenError::Directory { path: directory.into(), source };
    let add = |to: &mut Vec<PathBuf>| {
        if !to.iter().any(|other| other == directory) {
            to.push(directory.into());
        }
    };
    match std::fs::symlink_metadata(directory) {
        Ok(found) => check_directory(directory, &found, rule, owners)?,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => add(&mut untold.unseen),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Err(_) => {
            let above = directory.ancestors().skip(1).find(|above| above.exists());
            if let Some(name) = above.and_then(kernels_own) {
                let text = format!("nobody can make a directory in {name}");
                return Err(failed(io::Error::new(io::ErrorKind::Unsupported, text)));
            }
            add(&mut untold.missing);
        }
    }
    Ok(())
}

/// The name of the file system there, if it is one whose directories the kernel alone makes.
fn kernels_own(directory: &Path) -> Option<&'static str> {
    match statfs(directory).ok()?.filesystem_type() {
        PROC_SUPER_MAGIC => Some("/proc"),
        SYSFS_MAGIC => Some("/sys"),
        _ => None,
    }
}

/// The path without links, as far as there is a directory to follow, and without `..` beyond that.
fn place(socket: &Path) -> PathBuf {
    let mut place = PathBuf::new();
    for part in parent(socket).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
        if let Ok(found) = place.canonicalize() {
            place = found;
        }
    }
    place.join(socket.file_name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::args::Args;
    use crate::settings::config::ConfigFile;
    use crate::settings::{Environment, Host};
    use std::os::unix::fs::PermissionsExt;

    fn look(admin: &Path, listeners: &[&Path]) -> Result<Untold, ListenError> {
        let mut text = format!("admin_socket = {admin:?}\n");
        for path in listeners {
            text.push_str(&format!("[[listener]]\npath = {path:?}\n"));
        }
        let file = ConfigFile::parse(&text).unwrap();
        let host = Host { hard_fds: 4096, open_fds: 3, ..Host::of_this_process() };
        let settings = Settings::resolve(&Args::default(), &Environment::default(), file, &host);
        settings.unwrap().preflight()
    }

    #[test]
    fn preflight_when_directories_are_missing_then_said_and_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let (admin, clients) = (dir.path().join("a/b"), dir.path().join("c"));
        let untold = look(&admin.join("s"), &[&clients.join("s"), &clients.join("t")]).unwrap();
        assert_eq!(untold, Untold { missing: vec![admin, clients], ..Untold::default() });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn preflight_when_two_spellings_lead_to_one_place_then_refused_before_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let good = dir.path().join("admin/s");
        for other in ["new/../new/s", "./new/x/../s", "new/../admin/../new/s"] {
            let error = look(&good, &[&dir.path().join("new/s"), &dir.path().join(other)]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("a path of its own"), "{other}: {error}");
        }
    }

    #[test]
    fn preflight_when_all_is_there_then_nothing_is_left_to_say() {
        let dir = tempfile::tempdir().unwrap();
        let (admin, clients) = (dir.path().join("a"), dir.path().join("c"));
        for made in [&admin, &clients] {
            std::fs::create_dir(made).unwrap();
            std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(look(&admin.join("s"), &[&clients.join("s")]).unwrap(), Untold::default());
    }

    #[test]
    fn preflight_when_nobody_could_ever_serve_there_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [plain, open, real, link] =
            ["plain", "open", "real", "link"].map(|name| dir.path().join(name));
        std::fs::write(&plain, "").unwrap();
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::create_dir(&real).unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(real.join("taken"), "").unwrap();
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let good = dir.path().join("admin/s");
        for (path, part) in [
            (PathBuf::from("/proc/a/s"), "nobody can make a directory in /proc"),
            (PathBuf::from("/proc/1/a/b/s"), "nobody can make a directory in /proc"),
            (plain.join("s"), "it is no directory"),
            (plain.join("a/s"), "cannot use directory"),
            (open.join("s"), "others may write into it"),
            (real.join("taken"), "is no socket"),
        ] {
            for (admin, client) in [(&path, &good), (&good, &path)] {
                let error = look(admin, &[client]).unwrap_err().to_string();
                assert!(error.contains(part), "{part} in {error}");
            }
        }
        let key = good.with_file_name(OWN_FILES[0]);
        let error = look(&good, &[&key]).unwrap_err().to_string();
        assert!(error.contains("another file of this broker"), "{error}");
        let error = look(&good, &[&good.with_file_name("broker.sock")]).unwrap_err().to_string();
        assert!(error.contains("a directory each"), "{error}");
        let (by_one_way, by_another) = (real.join("s"), link.join("real/s"));
        let error = look(&good, &[&by_one_way, &by_another]).unwrap_err().to_string();
        assert!(error.contains("a path of its own"), "{error}");
    }
}
