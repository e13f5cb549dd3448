//! From settings to a running broker: limits, directories, key and page, threads, sockets, in the
//! one order that is safe. Must never let a client connect before all of it stands.

use crate::clients::pods::{Pods, UNREAD};
use crate::fds::classify::{self, Classifier};
use crate::fds::closers::Closers;
use crate::fds::jobs::{Calls, Process};
use crate::handover::arrived::{Arrivals, Arrived};
use crate::handover::takeover::Takeover;
use crate::handover::{self, TakeoverError};
use crate::kept::found::{Found, FoundAll, Stored};
use crate::kept::store::CrashStore;
use crate::log::LogThread;
use crate::manager::inherited::Inherited;
use crate::manager::notify::Manager;
use crate::node::directories::{DirectoryRule, parent, prepare_directory};
use crate::node::error::ListenError;
use crate::node::generation_page::{self, GenerationPage, Opened, PageError};
use crate::node::listeners::Listener;
use crate::node::lock::{DirectoryLock, Remains};
use crate::node::side::{Identity, NodeSide};
use crate::node::signals::Signals;
use crate::node::warden::Warden;
use crate::readiness::{Source, register};
use crate::server::parts::{Parts, Server};
use crate::settings::{ListenerSettings, Mode, Settings};
use crate::{clock, kernel};
use fdbroker_core::{Core, Deposit, Former, FormerLife, FormerSlot, Kept, KeptGroup};
use fdbroker_protocol::{AllocationId, NodeKey};
use mio::Poll;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::HashSet;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Everybody may connect: what a connection sees depends on its user.
const VIEW_SOCKET_MODE: u32 = 0o666;

/// Why the daemon did not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A directory or socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The node key or the generation page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// Another broker did not hand over.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// The core refuses its configuration.
    #[error("the settings do not work together: {0}; correct the value named")]
    Settings(fdbroker_core::ConfigError),
    /// This user or its cgroup has as many processes and threads as it may.
    #[error(
        "cannot {what}: {source}; this user may have {most} processes and threads (RLIMIT_NPROC; ulimit -u, LimitNPROC= of systemd), \
         and its cgroup pids.max (TasksMax=): raise the limit that is reached"
    )]
    Tasks {
        /// What was attempted, a verb first.
        what: &'static str,
        /// RLIMIT_NPROC.
        most: u64,
        /// What the system call says.
        source: io::Error,
    },
    /// The system refuses something.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was attempted, a verb first.
        what: &'static str,
        /// What the system call says.
        source: io::Error,
    },
}

fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RunError {
    move |error| RunError::Os { what, source: error.into() }
}

/// Of a thread or process.
fn no_task<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RunError {
    let most = getrlimit(Resource::RLIMIT_NPROC).map_or(u64::MAX, |(soft, _)| soft);
    move |error| match error.into() {
        source if source.raw_os_error() == Some(libc::EAGAIN) => {
            RunError::Tasks { what, most, source }
        }
        source => RunError::Os { what, source },
    }
}

/// Serves until SIGTERM, SIGINT or the end of `until_eof`; `ready` is called once clients can
/// connect.
///
/// Call it from the main thread before others start: it blocks SIGTERM, SIGINT and SIGHUP for
/// itself and the threads it starts, ignores SIGPIPE and SIGXFSZ, raises the soft RLIMIT_NOFILE
/// and, as a service, makes the process not dumpable.
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
    kernel::ignore_signals_of_writes();
    raise_fd_limit(settings.table_fds)?;
    if let Err(errno) = kernel::grow_fd_table(signals.as_fd(), settings.table_fds) {
        log::warn!("the fd table could not be grown in advance: {errno}");
    }
    // Before there is another thread.
    let warden = match settings.mode {
        // Nobody else may enter its directories.
        Mode::Private => Warden::default(),
        Mode::Service => Warden::start().unwrap_or_else(|error| {
            log::warn!(
                "the process that keeps the sockets in their places cannot be started: {error}"
            );
            Warden::default()
        }),
    };
    // After the table has grown. Until the end: what is said of it is read, or given up.
    let _log = LogThread::start().map_err(no_task("start a thread for the log"))?;
    if settings.mode == Mode::Service {
        nix::sys::prctl::set_dumpable(false).map_err(os("make the process not dumpable"))?;
    }
    let taken = if settings.takeover {
        Some(Takeover::ask(&settings.admin_socket, settings.table_fds)?)
    } else {
        None
    };
    let (takeover, arrived) = taken.unzip();
    let outside = Outside {
        signals,
        until_eof,
        warden,
        manager: Manager::of_this_process(),
        inherited: Inherited::take().map_err(os("use the fds of the service manager"))?,
        arrived,
    };
    let calls = real_calls(&settings);
    let mut server = prepare(settings, outside, calls)?;
    // What may be too much is there, but for a thread of a takeover.
    server.start_first_lane().map_err(no_task("start a process that looks at clients"))?;
    if let Some(takeover) = takeover {
        take_over(&mut server, takeover)?;
    }
    let short = server.store_short();
    if short > 0 {
        log::warn!(
            "the service manager's store lacks {short} entries for what may be kept: what finds no place would be lost in a crash; \
             raise FileDescriptorStoreMax= of the unit by {short}"
        );
    }
    if let Err(error) = server.settings.keep_as_good() {
        log::warn!("the configuration is not kept for a start with a broken one: {error}");
    }
    server.say_ready();
    say_ready(ready_fd);
    ready();
    let result = server.run().map_err(os("wait for events"));
    server.log_end();
    server.leave();
    result
}

/// The other broker lets go, and this one has its place.
fn take_over(server: &mut Server, takeover: Takeover) -> Result<(), RunError> {
    takeover.confirm()?;
    let clients = server.take_place().map_err(no_task("start the liveness thread"))?;
    takeover.finish();
    log::info!("clients taken over: {clients}");
    Ok(())
}

/// What a process has from those around it.
pub(crate) struct Outside {
    pub signals: Signals,
    pub until_eof: Option<OwnedFd>,
    pub warden: Warden,
    pub manager: Manager,
    pub inherited: Inherited,
    /// From the broker that is taken over from.
    pub arrived: Option<Arrived>,
}

/// Everything up to the listening sockets. Nothing here depends on limits or signals of the
/// process, so tests make servers of their own by it. A broker that is taken over from can still go
/// on as if nothing had been: the liveness word and the sockets' paths are its own.
pub(crate) fn prepare(
    mut settings: Settings,
    outside: Outside,
    calls: Calls,
) -> Result<Server, RunError> {
    let Outside { signals, until_eof, warden, manager, mut inherited, arrived } = outside;
    let is_takeover = arrived.is_some();
    // What it does not tell shows in what follows.
    settings.untold.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    prepare_directories(&settings)?;
    let classifier = Classifier::new().map_err(os("open /proc/self/fd (mount /proc)"))?;
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id = boot_id.map_err(os("read the boot id (mount /proc)"))?;
    let node = fdbroker_protocol::node_id(&boot_id);
    let poll = Poll::new().map_err(os("make an epoll instance"))?;
    let closers = start_closers(&poll, calls)?;

    let mut left = Arrivals::default();
    let mut arrived = match arrived {
        None => handover::store::arrived(&mut inherited, &manager, settings.table_fds, &mut left),
        arrived => arrived,
    };
    let (lock, starting, mut remains) = match arrived.as_mut().and_then(Arrived::lock) {
        // Who has handed it over may live, and go on.
        Some(lock) => (lock, None, Remains::NONE),
        None => {
            let directory = settings.admin_directory();
            let shown = || generation_page::shown(directory);
            let (lock, start, remains) = DirectoryLock::take_at_start(directory, shown)?;
            (lock, Some(start), remains)
        }
    };
    remains.links = (settings.mode == Mode::Service).then(|| settings.admin_directory().into());
    let restored = match &mut arrived {
        None => None,
        Some(state) => match state.core(&mut settings, node, clock::now()) {
            Ok(restored) => Some(restored),
            Err(refused) if is_takeover => return Err(TakeoverError::State(refused).into()),
            Err(refused) => {
                handover::store::log_refused(&refused);
                left.add(arrived.take().map(|arrived| arrived.fds).unwrap_or_default());
                None
            }
        },
    };
    let stored = Stored {
        fds: std::mem::take(&mut inherited.kept),
        strays: std::mem::take(&mut inherited.strays),
    };
    let (kept, mut found) = CrashStore::open(&manager, stored, settings.table_fds);
    found.unknown.drain(..).for_each(|fd| left.put_back(fd));
    let mut is_anew = restored.is_none();
    let (core, key, page) = match restored {
        Some(restored) => restored,
        None => begin(&mut settings, &found)?,
    };
    let (admin, listeners) = open_listeners(&settings, &mut inherited, arrived.as_mut(), &remains)?;
    let viewers = open_viewing(&settings, arrived.as_mut(), &remains);
    settings.monitor_gid = settings.find_monitor_group().ok().flatten();
    let until_eof = until_eof.or_else(|| arrived.as_mut().and_then(Arrived::until_eof));
    let identity = Identity { node, key, began: clock::now() };
    let parts = Parts {
        listeners,
        admin,
        viewers,
        node: NodeSide::new(identity, page, signals, until_eof, lock),
        classifier,
        core,
        poll,
        closers,
        warden,
        manager,
        kept,
    };
    let mut server = Server::new(settings, parts)
        .map_err(os("watch the sockets (--until-eof must be a pipe or a socket)"))?;
    if let Some(mut arrived) = arrived {
        match server.go_on(&mut arrived) {
            Ok(()) => {}
            Err(refused) if is_takeover => return Err(TakeoverError::State(refused).into()),
            Err(refused) => {
                handover::store::log_refused(&refused);
                let (core, key, page) = begin(&mut server.settings, &found)?;
                server.begin_anew(core, key, page);
                is_anew = true;
            }
        }
        left.add(arrived.fds);
    }
    left.add(inherited.unused().collect());
    if is_anew {
        server.know_former();
    }
    server.settle_kept(found.whole, left);
    if !is_takeover {
        server.take_place().map_err(no_task("start the liveness thread"))?;
    }
    // From here on others see that this broker is alive.
    drop(starting);
    Ok(server)
}

fn prepare_directories(settings: &Settings) -> Result<(), ListenError> {
    let directory_mode = if settings.mode == Mode::Service { 0o755 } else { 0o700 };
    prepare_directory(settings.admin_directory(), 0o700, DirectoryRule::Administrator)?;
    for listener in &settings.listeners {
        prepare_directory(parent(&listener.path), directory_mode, DirectoryRule::Clients)?;
    }
    Ok(())
}

/// A core without clients: a first one, or one after a broker that was killed; of `found` it has
/// what was live.
fn begin(
    settings: &mut Settings,
    found: &FoundAll,
) -> Result<(Core, NodeKey, GenerationPage), RunError> {
    let directory = settings.admin_directory();
    let Opened { key, page, former } = generation_page::open(directory, settings.core.max_slots)?;
    settings.core.first_generation = page.first_generation();
    let is_live = |slot: &&FormerSlot| matches!(slot.life, FormerLife::Live { .. });
    let alive: HashSet<AllocationId> = former.iter().filter(is_live).map(|slot| slot.id).collect();
    if alive.is_empty() && !found.whole.is_empty() {
        log::warn!(
            "all {} kept allocations and groups of objects that the service manager stores are given up: by {} none of them lives              (they have all ended just now, or node.key, generations or records there were removed or damaged)",
            found.whole.len(),
            settings.admin_directory().display(),
        );
    }
    let file_of =
        |deposit: &Deposit, found: &Found| classify::file_of(deposit.facts.kind, found.fd.as_fd());
    let kept = found.whole.iter().filter_map(|found| {
        let mut kept = found.allocation().filter(|kept| alive.contains(&kept.id))?;
        kept.deposit.file = file_of(&kept.deposit, found);
        Some(kept)
    });
    let mut kept: Vec<Kept> = kept.collect();
    let groups = found.whole.iter().filter_map(|found| {
        let mut kept = found.group().filter(|kept| alive.contains(&kept.id))?;
        kept.deposit.file = file_of(&kept.deposit, found);
        Some(kept)
    });
    let mut groups: Vec<KeptGroup<'_>> = groups.collect();
    tell_of_high_slots(found, settings.core.max_slots);
    // Where nobody knows which versions were given, they begin above all that a broker with lower
    // generations can have given.
    let unknown = u64::from(page.first_generation() - 1) << 32;
    let last_version = found.last_version.unwrap_or(unknown);
    let slots = &former[..];
    let doubtful = Former { slots, kept: &kept, groups: &groups, last_version }.doubtful();
    for (id, why) in &doubtful {
        log::error!("what was kept as {id} before the crash is given up: it {why}");
    }
    let doubtful: HashSet<AllocationId> = doubtful.into_iter().map(|(id, _)| id).collect();
    kept.retain(|kept| !doubtful.contains(&kept.id));
    groups.retain(|kept| !doubtful.contains(&kept.id));
    let begin = |kept: &[Kept], groups: &[KeptGroup<'_>]| {
        let former = Former { slots, kept, groups, last_version };
        Core::after_crash(settings.core.clone(), former, clock::now())
    };
    let core = match begin(&kept, &groups) {
        Err(error) if !kept.is_empty() || !groups.is_empty() => {
            log::error!("kept allocations and objects of before the crash are given up: {error}");
            begin(&[], &[])
        }
        core => core,
    };
    let core = core.map_err(RunError::Settings)?;
    let kept = core.allocations(0..u32::MAX).filter(|it| it.record.owner().is_none());
    match kept.filter(|it| !settings.serves(it.domain)).count() {
        0 => {}
        count => log::warn!(
            "{count} kept allocations are of a [[listener]] whose path is not served any more: no client \
             reaches them until it is; `fdbroker ls` shows them, and `fdbroker revoke` ends them"
        ),
    }
    page.take_up(&former, &core);
    Ok((core, key, page))
}

/// What was kept in slots that there are no more has ended.
fn tell_of_high_slots(found: &FoundAll, max_slots: u32) {
    let id = |found: &Found| {
        let allocation = found.allocation().map(|kept| kept.id);
        allocation.or_else(|| found.group().map(|kept| kept.id))
    };
    let ended = found.whole.iter().filter_map(id).filter(|id| id.slot >= max_slots).count();
    if ended > 0 {
        log::warn!(
            "{ended} kept allocations and groups of objects of before the crash are given up: limits.max_slots = \
             {max_slots} is lower than it was then; set it as high as before to keep such"
        );
    }
}

/// The sockets that the service manager has bound or another broker served, and for the other
/// places new ones.
fn open_listeners(
    settings: &Settings,
    inherited: &mut Inherited,
    mut arrived: Option<&mut Arrived>,
    remains: &Remains,
) -> Result<(Listener, Vec<Listener>), ListenError> {
    let links = remains.links.as_deref();
    let mut take = |path: &Path| {
        let mut bound = inherited.listeners.iter();
        match bound.position(|(bound, _)| is_same_place(bound, path)) {
            Some(found) => {
                let socket = inherited.listeners.swap_remove(found).1;
                Some(Listener::adopt(path, socket, None).map(|mut listener| {
                    listener.keep(links);
                    listener
                }))
            }
            None => arrived.as_mut()?.listener(path, links).map(Ok),
        }
    };
    let admin = take(&settings.admin_socket)
        .unwrap_or_else(|| Listener::bind(&settings.admin_socket, 0o600, remains))?;
    kernel::refuse_rights(admin.as_fd(), settings.kernel);
    let open = |it: &ListenerSettings| {
        let Some(taken) = take(&it.path) else { return Listener::bind(&it.path, it.mode, remains) };
        let listener = taken?;
        // The judge has refused what cannot be.
        if it.sets_mode
            && let Err(error) = listener.set_mode(it.mode)
        {
            log::error!("its mode stays as it is: {error}");
        }
        Ok(listener)
    };
    let listeners = settings.listeners.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    // Connections have this from them, until hello is answered.
    listeners.iter().for_each(|listener| kernel::refuse_rights(listener.as_fd(), settings.kernel));
    for (path, _) in &inherited.listeners {
        log::warn!(
            "the service manager's socket {} is not served: name it in [[listener]] or as admin_socket",
            path.display()
        );
    }
    Ok((admin, listeners))
}

/// The sockets for users that look: another broker's, or new ones. A service manager has none of
/// them: whoever looks does not start a broker. One that cannot be had is nobody's loss but theirs
/// that look.
fn open_viewing(
    settings: &Settings,
    mut arrived: Option<&mut Arrived>,
    remains: &Remains,
) -> Vec<(u32, Listener)> {
    let mut listeners = Vec::new();
    for (number, path) in &settings.viewing {
        let former_one =
            arrived.as_mut().and_then(|arrived| arrived.listener(path, remains.links.as_deref()));
        match former_one.map_or_else(|| Listener::bind(path, VIEW_SOCKET_MODE, remains), Ok) {
            Ok(listener) => {
                kernel::refuse_rights(listener.as_fd(), settings.kernel);
                listeners.push((*number, listener));
            }
            Err(error) => log::warn!("users cannot look at what is their own: {error}"),
        }
    }
    listeners
}

/// Whether two paths name the same socket, whatever way they take.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    a == b || identity(a).is_some_and(|found| identity(b) == Some(found))
}

/// What lanes do in a daemon.
pub(crate) fn real_calls(settings: &Settings) -> Calls {
    let pods = Pods::new(settings.pods_cgroup.as_deref());
    let roots_own = pods.directories().into();
    let process = move |cgroup: Option<&[u8]>, stat: &[u8]| {
        let pod = cgroup.ok_or(UNREAD).and_then(|text| pods.of_text(text));
        let (pod, outside) = pod.map_or_else(|why| (None, why), |pod| (Some(pod), ""));
        Process { pod, outside, ..crate::clients::job::process(cgroup, stat) }
    };
    Calls { roots_own, ..Calls::real(process) }
}

fn start_closers(poll: &Poll, calls: Calls) -> Result<Closers, RunError> {
    let closers = Closers::new(calls).map_err(no_task("start a process for lanes"))?;
    register(poll, closers.as_fd(), Source::Closers).map_err(os("watch lanes"))?;
    Ok(closers)
}

fn raise_fd_limit(table_fds: u64) -> Result<(), RunError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(os("read RLIMIT_NOFILE"))?;
    if soft == table_fds {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, table_fds, hard).map_err(os("set RLIMIT_NOFILE"))
}

fn say_ready(fd: Option<OwnedFd>) {
    if let Some(fd) = fd
        && let Err(error) = std::fs::File::from(fd).write_all(b"READY\n")
    {
        log::warn!("nobody reads --ready-fd: {error}");
    }
}
