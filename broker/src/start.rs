//! From settings to a running broker: limits, directories, key and page, threads, sockets, in the
//! one order that is safe. Must never let a client connect before all of it stands.

use crate::classify::Classifier;
use crate::closers::{CloseFn, Closers, WakeFn};
use crate::generation_page::{self, Opened, PageError};
use crate::inherited::Inherited;
use crate::kernel;
use crate::listeners::{DirectoryLock, DirectoryRule, ListenError, Listener, prepare_directory};
use crate::notify::Manager;
use crate::replies::Identity;
use crate::server::{Parts, Server};
use crate::settings::{ListenerSettings, Mode, Settings, parent};
use crate::signals::Signals;
use crate::tokens::Source;
use fdbroker_core::{Core, Former, Now};
use mio::{Poll, Waker};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Why the daemon did not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A directory or socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The node key or the generation page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The core refuses its configuration.
    #[error("the settings do not work together: {0}; correct the value named")]
    Settings(fdbroker_core::ConfigError),
    /// The system refuses something.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RunError {
    move |error| RunError::Os { what, source: error.into() }
}

/// Serves until SIGTERM, SIGINT or the end of `until_eof`; `ready` is called once clients can
/// connect.
///
/// Call it from the main thread before others start: it blocks SIGTERM, SIGINT and SIGHUP for
/// itself and the threads it starts, ignores SIGPIPE, raises the soft RLIMIT_NOFILE and, as a
/// service, makes the process not dumpable.
///
/// # Errors
/// See [`RunError`]; each says what to do.
pub fn run(settings: Settings, ready: impl FnOnce()) -> Result<(), RunError> {
    // First: their numbers must not have become something else's.
    let ready_fd = settings.ready_fd.map(kernel::adopt).transpose();
    let ready_fd = ready_fd.map_err(os("use the fd of --ready-fd"))?;
    let until_eof = settings.until_eof.map(kernel::adopt).transpose();
    let until_eof = until_eof.map_err(os("use the fd of --until-eof"))?;
    let signals = Signals::block().map_err(os("block signals"))?;
    kernel::ignore_sigpipe();
    raise_fd_limit(settings.table_fds)?;
    if let Err(errno) = kernel::grow_fd_table(signals.as_fd(), settings.table_fds) {
        log::warn!("the fd table could not be grown in advance: {errno}");
    }
    if settings.mode == Mode::Service {
        nix::sys::prctl::set_dumpable(false).map_err(os("make the process not dumpable"))?;
    }
    let outside = Outside {
        signals,
        until_eof,
        manager: Manager::of_this_process(),
        inherited: Inherited::take().map_err(os("use the fds of the service manager"))?,
    };
    // Released last, when everything else has ended.
    let (_lock, mut server) = prepare(settings, outside, Arc::new(drop))?;
    log_start(&server.settings);
    say_ready(ready_fd);
    server.manager.say_ready(&server.settings.summary());
    ready();
    let result = server.run().map_err(os("wait for events"));
    log::info!("ended; {} clients were connected", server.connections.len());
    result
}

/// What a process has from those around it.
pub(crate) struct Outside {
    pub signals: Signals,
    pub until_eof: Option<OwnedFd>,
    pub manager: Manager,
    pub inherited: Inherited,
}

/// Everything up to the listening sockets. Nothing here depends on limits or signals of the
/// process, so tests make servers of their own by it.
pub(crate) fn prepare(
    mut settings: Settings,
    outside: Outside,
    close: CloseFn,
) -> Result<(DirectoryLock, Server), RunError> {
    let Outside { signals, until_eof, manager, mut inherited } = outside;
    let directory_mode = if settings.mode == Mode::Service { 0o755 } else { 0o700 };
    let admin_directory = settings.admin_directory().to_owned();
    prepare_directory(&admin_directory, 0o700, DirectoryRule::Administrator)?;
    for listener in &settings.listeners {
        prepare_directory(parent(&listener.path), directory_mode, DirectoryRule::Clients)?;
    }
    let lock = DirectoryLock::take(&admin_directory)?;
    let Opened { key, mut page, live } =
        generation_page::open(&admin_directory, settings.core.max_slots)?;
    settings.core.first_generation = page.first_generation();
    let former = Former { live: &live, kept: &[] };
    let now = Now(kernel::monotonic_us());
    let core = Core::after_crash(settings.core.clone(), former, now).map_err(RunError::Settings)?;
    let classifier = Classifier::new().map_err(os("open /proc/self/fdinfo (mount /proc)"))?;
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id = boot_id.map_err(os("read the boot id (mount /proc)"))?;
    let identity = Identity { node: fdbroker_protocol::node_id(&boot_id), key };

    let poll = Poll::new().map_err(os("make an epoll instance"))?;
    let closers = start_closers(&poll, close)?;
    page.show_alive().map_err(os("start the liveness thread"))?;

    let (admin, listeners) = open_listeners(&settings, &mut inherited)?;
    let parts = Parts {
        listeners,
        admin,
        page,
        identity,
        classifier,
        signals,
        until_eof,
        core,
        poll,
        closers,
        manager,
    };
    let server = Server::new(settings, parts)
        .map_err(os("watch the sockets (--until-eof must be a pipe or a socket)"))?;
    Ok((lock, server))
}

/// The sockets that the service manager has bound, and for the other places new ones.
fn open_listeners(
    settings: &Settings,
    inherited: &mut Inherited,
) -> Result<(Listener, Vec<Listener>), ListenError> {
    let mut take = |path: &Path| {
        let found = inherited.listeners.iter().position(|(bound, _)| is_same_place(bound, path))?;
        Some(Listener::adopt(path, inherited.listeners.swap_remove(found).1))
    };
    let admin = take(&settings.admin_socket)
        .unwrap_or_else(|| Listener::bind(&settings.admin_socket, 0o600))?;
    kernel::refuse_rights(admin.as_fd(), settings.kernel);
    let open =
        |it: &ListenerSettings| take(&it.path).unwrap_or_else(|| Listener::bind(&it.path, it.mode));
    let listeners = settings.listeners.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    for (path, _) in &inherited.listeners {
        log::warn!(
            "the service manager's socket {} is not served: name it in [[listener]] or as admin_socket",
            path.display()
        );
    }
    Ok((admin, listeners))
}

/// Whether two paths name the same socket, whatever way they take.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    a == b || identity(a).is_some_and(|found| identity(b) == Some(found))
}

fn start_closers(poll: &Poll, close: CloseFn) -> Result<Closers, RunError> {
    let waker = Waker::new(poll.registry(), Source::Closers.token()).map_err(os("make a waker"))?;
    let wake: WakeFn = Arc::new(move || {
        if let Err(error) = waker.wake() {
            log::error!("closed fds are reported late: {error}");
        }
    });
    Closers::start(close, wake).map_err(os("start the closer threads"))
}

fn raise_fd_limit(table_fds: u64) -> Result<(), RunError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(os("read RLIMIT_NOFILE"))?;
    if soft == table_fds {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, table_fds, hard).map_err(os("set RLIMIT_NOFILE"))
}

fn log_start(settings: &Settings) {
    log::info!(
        "{}, administrators {}; node cap {} fds, table {} fds, {} clients",
        settings.summary(),
        settings.admin_socket.display(),
        settings.core.node.fds,
        settings.table_fds,
        settings.core.max_clients,
    );
}

fn say_ready(fd: Option<OwnedFd>) {
    if let Some(fd) = fd
        && let Err(error) = std::fs::File::from(fd).write_all(b"READY\n")
    {
        log::warn!("nobody reads --ready-fd: {error}");
    }
}
