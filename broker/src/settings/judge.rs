//! The one judge of a configuration: what the daemon does with it at its start, what
//! `--check-config` says, and what `systemctl reload` is refused for are one look. Beside it the
//! configuration of the last good start, which a broker serves with while its file is broken. Must
//! never serve by that one in silence.

use crate::limits::CONFIG_FILE_BYTES;
use crate::node::config_file::read_config;
use crate::node::directories::parent;
use crate::node::names::GOOD_CONFIG_NAME;
use crate::settings::args::Args;
use crate::settings::config::{ConfigError, ConfigFile};
use crate::settings::effective::{DEFAULT_CONFIG_FILE, MadeOf, Settings};
use crate::settings::outside::{Environment, Host};
use crate::settings::sockets::Mode;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

impl Settings {
    /// What a daemon serves with here: from flags and environment, and the file that they or the
    /// default name, with a look at the places.
    ///
    /// # Errors
    /// See [`ConfigError`]: the daemon would not serve with it.
    pub fn load(args: &Args, environment: &Environment, host: &Host) -> Result<Self, ConfigError> {
        let path = path_of_file(args, environment);
        let text = path.as_deref().map_or(Ok(String::new()), read_config);
        Self::judge(args, environment, host, path, text)
    }

    /// The same, or the settings of the last good start where the file is what is wrong; they know
    /// why ([`Settings::refused`]).
    ///
    /// # Errors
    /// That of the file, if there are no such settings, or they are no good either.
    pub fn load_or_last_good(
        args: &Args,
        environment: &Environment,
        host: &Host,
    ) -> Result<Self, ConfigError> {
        Self::load(args, environment, host).or_else(|error| {
            let good = last_good(args, environment, host);
            let settings = good.map(|good| Settings { refused: Some(error.to_string()), ..good });
            settings.ok_or(error)
        })
    }

    fn judge(
        args: &Args,
        environment: &Environment,
        host: &Host,
        path: Option<PathBuf>,
        text: io::Result<String>,
    ) -> Result<Self, ConfigError> {
        let named = path.as_deref().unwrap_or(Path::new(DEFAULT_CONFIG_FILE));
        let text = text.map_err(|source| ConfigError::Read { path: named.into(), source })?;
        let file = ConfigFile::of_text(named, &text)?;
        let mut settings = Self::resolve(args, environment, file.clone(), host)?;
        settings.config_file = path;
        settings.untold = settings.preflight()?;
        let (args, environment, host) = (args.clone(), environment.clone(), host.clone());
        settings.made_of = Some(Box::new(MadeOf { args, environment, file, text, host }));
        Ok(settings)
    }

    /// The file that the next start reads, if it is there. A private broker may have none.
    pub(crate) fn file_of_next_start(&self) -> Option<&Path> {
        let is_private = self.made_of.as_ref().is_none_or(|it| it.args.private.is_some());
        let default = (!is_private).then_some(Path::new(DEFAULT_CONFIG_FILE));
        self.config_file.as_deref().or(default)
    }

    /// Keeps the configuration for a start with a broken one. Of the node's broker alone: one that
    /// somebody started by hand is better refused.
    pub(crate) fn keep_as_good(&self) -> io::Result<()> {
        let kept = self.admin_directory().join(GOOD_CONFIG_NAME);
        let of_node = self.made_of.as_ref().filter(|_| self.mode == Mode::Service);
        let (Some(path), Some(made_of), None) = (&self.config_file, of_node, &self.refused) else {
            return Ok(());
        };
        let aside = kept.with_extension("new");
        let _ = std::fs::remove_file(&aside);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all((head(path) + &made_of.text).as_bytes())?;
        std::fs::rename(aside, kept)
    }
}

/// The file that is read, if there is one.
fn path_of_file(args: &Args, environment: &Environment) -> Option<PathBuf> {
    let default = || {
        let path = PathBuf::from(DEFAULT_CONFIG_FILE);
        (args.private.is_none() && path.exists()).then_some(path)
    };
    args.config.clone().or_else(|| environment.path("FDBROKER_CONFIG")).or_else(default)
}

/// The settings of the last good start with the same file. Where it names its directory itself,
/// that is known by its own line, if that is sound, or the socket that the service manager has
/// there.
fn last_good(args: &Args, environment: &Environment, host: &Host) -> Option<Settings> {
    // The broker that is to be taken over from serves on.
    let path = path_of_file(args, environment).filter(|_| !args.takeover)?;
    let file = ConfigFile { admin_socket: own_place(&path), ..ConfigFile::default() };
    let plain = Settings::resolve(args, environment, file, host).ok();
    let plain = plain.map(|settings| settings.admin_directory().to_owned());
    let bound = crate::manager::inherited::bound_paths();
    let bound = bound.iter().map(|socket| parent(socket).to_owned());
    let text = plain.into_iter().chain(bound).find_map(|directory| kept_in(&directory, &path))?;
    Settings::judge(args, environment, host, Some(path), Ok(text)).ok()
}

/// The administrators' socket that a broken file names.
fn own_place(path: &Path) -> Option<PathBuf> {
    let text = read_config(path).ok()?;
    let line = text.lines().find(|line| line.trim_start().starts_with("admin_socket"))?;
    ConfigFile::parse(line).ok()?.admin_socket
}

/// What is kept in the directory of a start with the file `path`.
fn kept_in(directory: &Path, path: &Path) -> Option<String> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file: File = options.open(directory.join(GOOD_CONFIG_NAME)).ok()?;
    let mut text = String::new();
    let head = head(path);
    file.take((head.len() + CONFIG_FILE_BYTES) as u64).read_to_string(&mut text).ok()?;
    text.strip_prefix(&head).map(String::from)
}

/// The first line of what is kept: a comment that tells of which file it is.
fn head(path: &Path) -> String {
    format!("# The last good start had this as {path:?}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broker of a node that lives in `directory`, with its file.
    fn load(directory: &Path, text: &str, args: Args) -> Result<Settings, ConfigError> {
        let path = directory.join("fdbrokerd.toml");
        std::fs::write(&path, text).unwrap();
        let socket = Some(directory.join("c/s"));
        let args = Args { config: Some(path), socket, ..args };
        let host = Host { hard_fds: 4096, open_fds: 3, ..Host::of_this_process() };
        Settings::load_or_last_good(&args, &Environment::default(), &host)
    }

    #[test]
    fn load_or_last_good_when_the_file_breaks_then_the_settings_of_the_last_good_start_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let load = |text| load(dir.path(), text, Args::default());
        let fds = |settings: &Settings| settings.core.node.fds;
        assert!(load("fdz = 1\n").is_err(), "there was no good start");
        let good = load("[caps.node]\nfds = 99\n").unwrap();
        std::fs::create_dir(good.admin_directory()).unwrap();
        good.keep_as_good().unwrap();
        for (broken, part) in [
            ("[caps.node]\nfdz = 7\n", "line 2, `fdz = 7`: unknown field"),
            ("[caps.node]\nfds = 0\n", "0 lets nobody share"),
            ("[[listener]]\npath = \"/proc/a/s\"\nmode = 7\n", "written in octal"),
        ] {
            let served = load(broken).unwrap();
            assert_eq!(fds(&served), 99);
            let why = served.refused.clone().unwrap_or_default();
            assert!(why.contains(part), "{why}");
            served.keep_as_good().unwrap();
        }
        let mended = load("[caps.node]\nfds = 98\n").unwrap();
        assert_eq!((fds(&mended), &mended.refused), (98, &None));
    }

    #[test]
    fn load_or_last_good_when_the_broken_file_names_its_place_then_what_is_kept_there_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keep = |text: &str| {
            let good = load(dir.path(), text, Args::default()).unwrap();
            std::fs::create_dir_all(good.admin_directory()).unwrap();
            good.keep_as_good().unwrap();
        };
        keep("[caps.node]\nfds = 99\n");
        let place = format!("admin_socket = {:?}\n", dir.path().join("own/s"));
        let broken = place.clone() + "[caps.node]\nfds = 12z\n";
        assert!(load(dir.path(), &broken, Args::default()).is_err(), "of another place");
        keep(&(place + "[caps.node]\nfds = 98\n"));
        assert_eq!(load(dir.path(), &broken, Args::default()).unwrap().core.node.fds, 98);
    }

    #[test]
    fn load_or_last_good_when_it_was_another_files_or_is_for_a_takeover_then_refused() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let good = load(dir.path(), "", Args::default()).unwrap();
        std::fs::create_dir(good.admin_directory()).unwrap();
        good.keep_as_good().unwrap();
        let kept = good.admin_directory().join(GOOD_CONFIG_NAME);
        assert!(load(dir.path(), "[", Args { takeover: true, ..Args::default() }).is_err());
        std::fs::create_dir(other.path().join("c-admin")).unwrap();
        std::fs::copy(kept, other.path().join("c-admin").join(GOOD_CONFIG_NAME)).unwrap();
        assert!(load(other.path(), "[", Args::default()).is_err());
        assert!(load(dir.path(), "[", Args::default()).is_ok());
    }
}
