//! The warden: a small process that watches the places of the broker's sockets, and puts back what
//! somebody removes or replaces there. Must never be a thread of the broker: whoever may read a
//! directory can hold its lock for ever, so a call on it may never return, and the broker's end
//! would wait for it.

use crate::limits::{
    MENDS_AT_ONCE, PLACE_PAUSE, PLACE_PAUSE_MOST, PLACE_ROUND, WARDEN_MESSAGE, WARDEN_PATIENCE,
};
use crate::node::directories::{DirectoryRule, chmod, identity, parent, prepare_directory};
use crate::node::names::LINK_PREFIX;
use crate::node::shared_map::remove;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, fork, getpid, getppid, read, write};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

/// Where a socket is to stand, and what it is put back from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    pub path: PathBuf,
    /// Another name of the same socket, in the administrator's directory.
    pub link: PathBuf,
    /// Why there is none (errno); 0: there is one.
    pub unkept: i32,
    /// Device and inode of the socket.
    pub identity: (u64, u64),
    /// Of the socket, and of its directory.
    pub modes: [u32; 2],
    /// It goes when the broker ends.
    pub is_own: bool,
}

/// What was wrong with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    Missing,
    Replaced,
    /// Its mode, or that of its directory, lets users do less.
    Mode,
}

impl fmt::Display for Wrong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Wrong::Missing => "was removed",
            Wrong::Replaced => "was replaced",
            Wrong::Mode => "or its directory was closed to users",
        })
    }
}

/// What the warden says of the place with this number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// It was put back.
    Mended(usize, Wrong),
    /// It cannot be put back, for this reason.
    Away(usize, Wrong, String),
    /// Somebody else has put it back.
    Back(usize),
    /// All that is the broker's own is removed.
    Removed,
}

impl News {
    /// Puts it into the log.
    pub fn log(&self, path: &Path) {
        let path = path.display();
        match self {
            News::Mended(_, wrong) => log::warn!(
                "the socket {path} {wrong}, and is as it was again: see who may write into its directory, and mount that into \
                 containers for reading alone"
            ),
            News::Away(_, wrong, why) => log::warn!(
                "the socket {path} {wrong}, and cannot be put back ({why}), so that no new clients come: put its directory in \
                 order, then restart the broker and, of the service manager, its sockets"
            ),
            News::Back(_) => log::info!("the socket {path} is as it was again"),
            News::Removed => {}
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Order {
    /// Of all links in this directory those of other places go.
    Watch(PathBuf, Vec<Place>),
    Remove,
}

/// The warden as the broker has it.
#[derive(Debug, Default)]
pub struct Warden {
    socket: Option<OwnedFd>,
    places: Vec<Place>,
    /// By place: its socket is not there, and cannot be put back.
    away: Vec<bool>,
}

impl Warden {
    /// Starts the process. Call it before other threads are started.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = fdbroker_scm::seqpacket_pair()?;
        let broker = getpid();
        // SAFETY: the process has one thread, by the contract of `start::run`, so that the child
        // may go on like any program.
        match unsafe { fork() }? {
            ForkResult::Parent { .. } => Ok(Warden { socket: Some(ours), ..Warden::default() }),
            ForkResult::Child => {
                let _ = std::panic::catch_unwind(|| {
                    close_all_but(&theirs);
                    let _ = prctl::set_name(c"fdbroker-warden");
                    // It may have ended before the signal was set.
                    let is_set = prctl::set_pdeathsig(Signal::SIGKILL).is_ok();
                    (is_set && getppid() == broker).then(|| keep(&theirs))
                });
                // SAFETY: ends the process; what the broker had goes on there.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// Has it watch these places; `directory` is the administrator's.
    pub fn watch(&mut self, directory: &Path, places: Vec<Place>) {
        self.away = vec![false; places.len()];
        self.places = places;
        let order = Order::Watch(directory.into(), self.places.clone());
        if !self.socket.as_ref().is_some_and(|socket| send(socket, &order)) {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.socket = None;
        self.places.iter_mut().for_each(|place| place.unkept = Errno::ECHILD as i32);
        log::warn!(
            "nobody watches the places of the broker's sockets: the process that does cannot be had, or has ended; restart the broker"
        );
    }

    /// To be waited for, if there is one.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// What it has said, with the number and the path of the place.
    pub fn next_news(&mut self) -> Option<(usize, News, PathBuf)> {
        let report = match receive(self.socket.as_ref()?) {
            Ok(report) => report,
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            Err(_) => {
                self.lose();
                return None;
            }
        };
        let (number, is_away) = match &report {
            News::Mended(number, _) | News::Back(number) => (*number, false),
            News::Away(number, ..) => (*number, true),
            News::Removed => return None,
        };
        *self.away.get_mut(number)? = is_away;
        Some((number, report, self.places[number].path.clone()))
    }

    /// How many sockets are not at their places.
    pub fn away(&self) -> usize {
        self.away.iter().filter(|is_away| **is_away).count()
    }

    /// How many cannot be put back, and why the first one cannot (errno).
    pub fn unkept(&self) -> (usize, i32) {
        let mut unkept = self.places.iter().map(|place| place.unkept).filter(|errno| *errno != 0);
        let first = unkept.next();
        (unkept.count() + usize::from(first.is_some()), first.unwrap_or(0))
    }

    /// Has it remove what goes with the broker, and ends it. `None`: there is no warden.
    /// Some(false): it does not say in time that it has.
    pub fn remove_all(&mut self) -> Option<bool> {
        let socket = self.socket.take()?;
        let mut is_done = false;
        while !is_done && send(&socket, &Order::Remove) && wait(&[socket.as_fd()], WARDEN_PATIENCE)
        {
            while let Ok(report) = receive::<News>(&socket) {
                is_done |= report == News::Removed;
            }
        }
        Some(is_done)
    }
}

fn send(socket: &OwnedFd, what: &impl Serialize) -> bool {
    let bytes = postcard::to_allocvec(what).unwrap_or_default();
    write(socket, &bytes) == Ok(bytes.len())
}

fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> nix::Result<T> {
    let mut bytes = vec![0; WARDEN_MESSAGE];
    let length = read(socket, &mut bytes)?;
    postcard::from_bytes(&bytes[..length]).map_err(|_| Errno::EPIPE)
}

/// Whether one of them has something to read within so long.
fn wait(fds: &[BorrowedFd<'_>], patience: Duration) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::NONE);
    poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
}

/// The broker's fds must end with the broker.
fn close_all_but(socket: &OwnedFd) {
    let kept = socket.as_raw_fd().unsigned_abs();
    for (first, last) in [(3, kept.saturating_sub(1)), (kept + 1, u32::MAX)] {
        // SAFETY: nothing that uses one of these fds runs again in this process.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdin(&null);
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
}

/// The process: watches until the broker has ended, or until it is to remove all.
fn keep(socket: &OwnedFd) -> Option<()> {
    while !wait(&[socket.as_fd()], Duration::MAX) {}
    let Ok(Order::Watch(directory, places)) = receive(socket) else { return None };
    remove_links_but(&directory, &places);
    // Without events there are the rounds.
    let events = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok();
    let mut told = vec![None; places.len()];
    let mut mends = 0;
    loop {
        events.iter().for_each(|events| arm(events, &places));
        // After that, so that nothing is missed in between.
        let mended = places.iter().zip(&mut told).enumerate();
        let mended = mended.filter_map(|(number, (place, told))| {
            look_at(number, place, told).map(|report| {
                send(socket, &report);
                matches!(report, News::Mended(..))
            })
        });
        let mended = mended.filter(|is_mended| *is_mended).count() > 0;
        let fds = events.iter().map(AsFd::as_fd).chain([socket.as_fd()]);
        let is_event = wait(&fds.collect::<Vec<_>>(), PLACE_ROUND);
        // Whoever undoes it again and again is answered ever more slowly, until there was a quiet
        // round.
        mends = if mended { mends + 1 } else { mends * u32::from(is_event) };
        let longer = 1 << (mends / MENDS_AT_ONCE).min(16);
        let pause = (PLACE_PAUSE * longer).min(PLACE_PAUSE_MOST);
        // However many events there are in the meantime, they are one.
        if wait(&[socket.as_fd()], pause) {
            let Ok(Order::Remove) = receive(socket) else { return None };
            remove_own(&places);
            send(socket, &News::Removed);
            return Some(());
        }
    }
}

/// Watches the directories for one event each: a flood of them is no more work than one.
fn arm(events: &Inotify, places: &[Place]) {
    // What the former ones said.
    while events.read_events().is_ok_and(|events| !events.is_empty()) {}
    let what = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    for place in places {
        let flags = what | AddWatchFlags::IN_ONESHOT | AddWatchFlags::IN_ONLYDIR;
        // The rounds find what is not watched.
        let _ = events.add_watch(parent(&place.path), flags);
    }
}

/// What there is to say of a place; `told`: why it was away, and cannot be put back, the last time.
fn look_at(number: usize, place: &Place, told: &mut Option<(Wrong, String)>) -> Option<News> {
    let Some(wrong) = wrong_with(place) else {
        return told.take().map(|_| News::Back(number));
    };
    match mend(place) {
        Ok(()) => {
            *told = None;
            Some(News::Mended(number, wrong))
        }
        Err(error) => {
            let now = (wrong, error.to_string());
            let is_new = told.as_ref() != Some(&now);
            *told = Some(now.clone());
            is_new.then_some(News::Away(number, wrong, now.1))
        }
    }
}

fn wrong_with(place: &Place) -> Option<Wrong> {
    let Ok(found) = std::fs::symlink_metadata(&place.path) else { return Some(Wrong::Missing) };
    if (found.dev(), found.ino()) != place.identity {
        return Some(Wrong::Replaced);
    }
    let directory = std::fs::symlink_metadata(parent(&place.path)).ok()?;
    let is_closed = |(mode, wanted): (u32, u32)| mode & wanted != wanted;
    let modes = [found.mode(), directory.mode()].into_iter().zip(place.modes);
    { modes }.any(is_closed).then_some(Wrong::Mode)
}

fn mend(place: &Place) -> io::Result<()> {
    if place.unkept != 0 {
        return Err(io::Error::from_raw_os_error(place.unkept));
    }
    let [mode, directory_mode] = place.modes;
    open_to(&place.link, mode)?;
    let directory = parent(&place.path);
    match std::fs::symlink_metadata(directory).map(|found| found.mode() & 0o022 & !directory_mode) {
        Err(_) => {}
        Ok(0) => open_to(directory, directory_mode)?,
        // Else it would not be safe to serve from.
        Ok(_) => chmod(directory, directory_mode)?,
    }
    prepare_directory(directory, directory_mode, DirectoryRule::Clients)
        .map_err(io::Error::other)?;
    if identity(&place.path) == Some(place.identity) {
        return Ok(());
    }
    let aside = place.link.with_extension("new");
    remove(&aside)?;
    std::fs::hard_link(&place.link, &aside)?;
    // In one step, whatever stands there. A directory can only be moved away: it may be full.
    match std::fs::rename(&aside, &place.path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            set_aside(&place.path)?;
            std::fs::rename(&aside, &place.path)
        }
        renamed => renamed,
    }
}

/// Gives users back what a mode does not let them do any more. An administrator may let them do
/// more.
fn open_to(path: &Path, wanted: u32) -> io::Result<()> {
    let mode = std::fs::symlink_metadata(path)?.mode() & 0o7777;
    if mode & wanted == wanted { Ok(()) } else { chmod(path, mode | wanted) }
}

/// Moves a directory that is in the way to a name beside it.
pub fn set_aside(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", u64::from_ne_bytes(crate::kernel::random()?)));
    std::fs::rename(path, name)
}

fn remove_own(places: &[Place]) {
    for place in places.iter().filter(|place| place.is_own) {
        if identity(&place.path) == Some(place.identity) {
            let _ = remove(&place.path);
        }
        let _ = remove(&place.link);
    }
}

/// Removes what brokers before this one have left: of a killed one, or of one with other sockets.
fn remove_links_but(directory: &Path, places: &[Place]) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_link = entry.file_name().to_string_lossy().starts_with(LINK_PREFIX);
        if is_link && !places.iter().any(|place| place.link == path) {
            let _ = remove(&path);
        }
    }
}
