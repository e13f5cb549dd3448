//! What is said to the service manager (sd_notify(3)): ready, reloading, stopping, alive, and fds
//! for its store. Without a service manager all of it is silence. Must never wait for the service
//! manager on the loop; only the end of the daemon may, for a bounded time. Nobody but the loop may
//! say that it turns: the watchdog is to find a loop that is stuck.

use crate::clock;
use crate::kernel;
use crate::limits::{MANAGER_PATIENCE, MANAGER_RETRY};
use fdbroker_core::Now;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use sd_notify::NotifyState;
use std::fmt::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct Manager {
    socket: Option<OwnedFd>,
    has_store: bool,
    /// Entries of its store; `None`: it does not say.
    store_entries: Option<u64>,
    /// How long the loop may not turn.
    watchdog: Option<Duration>,
    /// When it is to hear that the loop turns.
    next_alive: Now,
    /// Messages that it had no room for and must hear, in their order: a reload, and being ready.
    owed: Vec<Vec<u8>>,
    /// When to try these again.
    next_try: Now,
}

/// What a store could not be given.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The service manager has no room for messages now.
    #[error("the service manager is busy")]
    Busy,
    /// Anything else.
    #[error("the service manager cannot be reached: {0}")]
    Failed(fdbroker_scm::SendError),
}

impl Manager {
    /// The one that the environment names. It is ours when it started this very process, not one
    /// above it: children inherit the variables.
    pub fn of_this_process() -> Self {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let main_pid = get("SYSTEMD_EXEC_PID").and_then(|pid| pid.parse::<u32>().ok());
        let is_ours = main_pid.is_none_or(|pid| pid == std::process::id());
        let Some(path) = get("NOTIFY_SOCKET").filter(|_| is_ours) else { return Self::default() };
        let socket = match connect_to(&path) {
            Ok(socket) => Some(socket),
            Err(error) => {
                log::warn!("the service manager at {path} is not told anything: {error}");
                return Self::default();
            }
        };
        // systemd says from version 254 on how much it stores. Before, all that can be known is
        // that it is systemd; one without a store for this service closes what it is sent.
        let most = get("FDSTORE").map(|most| most.trim().parse::<u32>().map_or(0, u64::from));
        let has_store = most.map_or(main_pid.is_some(), |most| most > 0);
        Manager {
            socket,
            has_store,
            store_entries: most,
            watchdog: sd_notify::watchdog_enabled(),
            ..Self::default()
        }
    }

    /// A manager with a store, and the socket that it reads.
    #[cfg(test)]
    pub(crate) fn pair() -> (Self, std::os::unix::net::UnixDatagram) {
        let (its, ours) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        (Manager { socket: Some(ours.into()), has_store: true, ..Manager::default() }, its)
    }

    /// The same with so many entries in its store.
    #[cfg(test)]
    pub(crate) fn with_entries(self, entries: u64) -> Self {
        Manager { store_entries: Some(entries), ..self }
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether fds can be given to it, to be handed to the next start.
    pub fn has_store(&self) -> bool {
        self.has_store
    }

    /// Entries of its store beside so many others. It drops what does not fit, and tells no one.
    /// One that does not say how many it has is an older systemd: then the unit has enough.
    pub fn entries_left(&self, others: u64) -> usize {
        let left = self.store_entries.unwrap_or(u64::MAX).saturating_sub(others);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// How many entries its store lacks to have so many. One that does not say how many it has is
    /// an older systemd.
    pub fn entries_short_of(&self, wanted: u64) -> u64 {
        let most = self.store_entries.filter(|_| self.has_store);
        most.map_or(0, |most| wanted.saturating_sub(most))
    }

    /// When it is to hear something.
    pub fn due(&self) -> Option<Now> {
        let alive = self.watchdog.map(|_| self.next_alive);
        alive.into_iter().chain((!self.owed.is_empty()).then_some(self.next_try)).min()
    }

    /// Tells it what is left to be told, and that the loop turns: twice in the time that it allows.
    pub fn tell(&mut self, now: Now) {
        if self.say_again() {
            self.next_try = clock::after(now, MANAGER_RETRY);
        }
        if let Some(most) = self.watchdog
            && self.next_alive <= now
        {
            self.say(&[NotifyState::Watchdog]);
            self.next_alive = clock::after(now, most / 2);
        }
    }

    /// Clients are served; `status` is one line for people. The service manager ends a service
    /// whose start or reload is not said to be over, so what it has no room for is [said
    /// later](Self::tell).
    pub fn say_ready(&mut self, status: &str) {
        self.say_surely(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The configuration is being read again; [`say_ready`](Self::say_ready) ends it.
    pub fn say_reloading(&mut self) {
        // READY of this reload ends an earlier start or reload, too.
        self.owed.clear();
        let now = NotifyState::MonotonicUsec(kernel::monotonic_us().into());
        self.say_surely(&[NotifyState::Reloading, now]);
    }

    fn say_surely(&mut self, states: &[NotifyState<'_>]) {
        self.owed.push(message(states));
        self.say_again();
    }

    /// Says what the service manager had no room for. `true`: some of it is left.
    fn say_again(&mut self) -> bool {
        while let Some(first) = self.owed.first() {
            match self.send(first, &[], Duration::ZERO) {
                Ok(()) => {}
                Err(StoreError::Busy) => return true,
                Err(error) => log::warn!("it is not told of a start or a reload: {error}"),
            }
            self.owed.remove(0);
        }
        false
    }

    /// The end has begun.
    pub fn say_stopping(&self, status: &str) {
        self.say(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Says what may be lost.
    fn say(&self, states: &[NotifyState<'_>]) {
        if let Err(error) = self.send(&message(states), &[], Duration::ZERO) {
            log::debug!("it was not told {states:?}: {error}");
        }
    }

    /// Gives `fd` to the store under `name` (short, without colons), waiting at most for
    /// `patience`.
    ///
    /// # Errors
    /// [`StoreError::Busy`]: later.
    pub fn store(
        &self,
        name: &str,
        fd: BorrowedFd<'_>,
        patience: Duration,
    ) -> Result<(), StoreError> {
        // A carrier looks ended to poll(2): the service manager must not drop it for that.
        let states =
            [NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")];
        self.send(&message(&states), &[fd], patience)
    }

    /// Has the store close all that it has under `name`.
    ///
    /// # Errors
    /// [`StoreError::Busy`]: later.
    pub fn remove(&self, name: &str, patience: Duration) -> Result<(), StoreError> {
        let states = [NotifyState::FdStoreRemove, NotifyState::FdName(name)];
        self.send(&message(&states), &[], patience)
    }

    fn send(
        &self,
        message: &[u8],
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(), StoreError> {
        use fdbroker_scm::SendError;
        let Some(socket) = &self.socket else { return Ok(()) };
        let sent = fdbroker_scm::send_timeout(socket.as_fd(), message, fds, Some(patience));
        sent.map_err(|error| match error {
            SendError::WouldBlock | SendError::TooManyRefs | SendError::TimedOut => {
                StoreError::Busy
            }
            error => StoreError::Failed(error),
        })
    }

    /// Waits until the service manager has dealt with all that was said to it before. `false`: not
    /// in time.
    pub fn wait_until_heard(&self) -> bool {
        let Some(socket) = &self.socket else { return true };
        let Ok((mine, its)) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC) else {
            return false;
        };
        let barrier = message(&[NotifyState::Custom("BARRIER=1")]);
        let patience = Some(MANAGER_PATIENCE);
        let sent =
            fdbroker_scm::send_timeout(socket.as_fd(), &barrier, &[its.as_fd()], patience).is_ok();
        drop(its);
        let mut end = [PollFd::new(mine.as_fd(), PollFlags::empty())];
        let timeout = PollTimeout::try_from(MANAGER_PATIENCE).unwrap_or(PollTimeout::MAX);
        sent && poll(&mut end, timeout).is_ok_and(|ready| ready > 0)
    }
}

/// One assignment per line, as sd_notify(3) has it.
fn message(states: &[NotifyState<'_>]) -> Vec<u8> {
    let mut text = String::new();
    for state in states {
        let _ = writeln!(text, "{state}");
    }
    text.into_bytes()
}

/// `path` as NOTIFY_SOCKET has it: absolute, or `@` and an abstract name.
fn connect_to(path: &str) -> nix::Result<OwnedFd> {
    let address = match path.strip_prefix('@') {
        Some(name) => UnixAddr::new_abstract(name.as_bytes())?,
        None => UnixAddr::new(Path::new(path))?,
    };
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    connect(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    fn next(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn say_when_reloading_then_with_the_time_of_the_monotonic_clock() {
        let (mut manager, its) = Manager::pair();
        let before = kernel::monotonic_us();
        manager.say_reloading();
        let said = next(&its);
        let time = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().trim_end();
        assert!((before..=kernel::monotonic_us()).contains(&time.parse().unwrap()), "{said}");
    }

    #[test]
    fn store_when_the_manager_does_not_read_then_busy_and_no_wait() {
        let (manager, its) = Manager::pair();
        let fd = nix::sys::eventfd::EventFd::new().unwrap();
        let refused =
            (0..100_000).find_map(|_| manager.store("x", fd.as_fd(), Duration::ZERO).err());
        assert!(matches!(refused, Some(StoreError::Busy)), "{refused:?}");
        assert_eq!(next(&its), "FDSTORE=1\nFDNAME=x\nFDPOLL=0\n");
    }

    #[test]
    fn say_when_the_manager_has_no_room_then_a_reload_and_its_end_are_said_in_order_later() {
        let (mut manager, its) = Manager::pair();
        manager.say_ready("first");
        while manager.remove("x", Duration::ZERO).is_ok() {}
        manager.say_ready("second");
        manager.say_reloading();
        manager.say_ready("third");
        assert!(manager.say_again());
        let mut heard = vec![next(&its)];
        while heard.last().is_some_and(|last| last != "READY=1\nSTATUS=third\n") {
            manager.say_again();
            heard.push(next(&its));
        }
        assert!(!manager.say_again());
        heard.retain(|said| !said.starts_with("FDSTOREREMOVE"));
        let [first, reload, _third] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!(first, "READY=1\nSTATUS=first\n");
        assert!(reload.starts_with("RELOADING=1\n"), "{reload}");
    }

    #[test]
    fn entries_short_of_when_the_store_is_too_small_then_what_it_lacks() {
        // As the unit has it, and as somebody has set it.
        let wanted = crate::limits::store_entries(1 << 20);
        let short = |entries| Manager::pair().0.with_entries(entries).entries_short_of(wanted);
        assert_eq!((short(384), short(140)), (0, 244));
        assert_eq!(Manager::pair().0.entries_short_of(wanted), 0, "it does not say");
    }

    #[test]
    fn manager_when_there_is_none_then_silence() {
        let mut manager = Manager::default();
        manager.say_ready("x");
        manager.tell(Now(1));
        assert!(manager.wait_until_heard() && !manager.has_store());
        assert!(manager.due().is_none());
    }
}
