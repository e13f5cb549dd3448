//! A state that another broker has handed over, with its fds: read, checked, taken apart. Must
//! never believe the state, nor close a client's fd on the calling thread.

use crate::fds::closers::Closers;
use crate::fds::jobs::{NOBODY, Report};
use crate::handover::state::{Fd, SavedListener, State};
use crate::handover::{RefusedState, carriers, ledger};
use crate::node::generation_page::{self, GenerationPage, PageError};
use crate::node::listeners::Listener;
use crate::node::lock::DirectoryLock;
use crate::settings::Settings;
use fdbroker_core::{Core, Lane, Now};
use fdbroker_protocol::NodeKey;
use nix::sys::socket::{getsockopt, sockopt::AcceptConn};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Fds taken out of carriers whose state cannot be read, to be closed: the largest table.
const MOST_UNKNOWN: usize = 1 << 20;

/// A state with its fds, as they came.
pub(crate) struct Arrived {
    pub state: State,
    pub fds: Arrivals,
}

/// Fds by their numbers. Fds that nobody takes are to be given to a closer.
#[derive(Default)]
pub(crate) struct Arrivals(Vec<Option<OwnedFd>>);

impl FromIterator<OwnedFd> for Arrivals {
    fn from_iter<I: IntoIterator<Item = OwnedFd>>(fds: I) -> Self {
        Arrivals(fds.into_iter().map(Some).collect())
    }
}

impl Arrivals {
    /// The fd with this number, once.
    pub fn take(&mut self, number: Fd) -> Result<OwnedFd, RefusedState> {
        let fd = self.0.get_mut(number as usize).and_then(Option::take);
        fd.ok_or_else(|| RefusedState::Broken(format!("fd {number} is named twice or missing")))
    }

    /// The fd with this number, if one is named.
    pub fn take_if(&mut self, number: Option<Fd>) -> Result<Option<OwnedFd>, RefusedState> {
        number.map(|number| self.take(number)).transpose()
    }

    /// Keeps an fd that is of no use any more, to be closed with the others.
    pub fn put_back(&mut self, fd: OwnedFd) {
        self.0.push(Some(fd));
    }

    /// Takes the fds out of carriers whose state cannot be read. Listening sockets among them end
    /// here and now: they are in the way of new ones.
    pub fn add_carriers(&mut self, carriers: Vec<OwnedFd>, table_fds: u64) {
        let most = usize::try_from(table_fds).unwrap_or(usize::MAX);
        let (fds, _) = carriers::receive(&carriers, most.min(MOST_UNKNOWN));
        self.add(Arrivals(fds));
        self.0.extend(carriers.into_iter().map(Some));
    }

    /// Takes the fds of a state that is refused after all. Listening sockets among them end here
    /// and now.
    pub fn add(&mut self, other: Arrivals) {
        let is_listening = |fd: &OwnedFd| getsockopt(fd, AcceptConn).unwrap_or(false);
        let fds = other.0.into_iter().flatten();
        self.0.extend(fds.filter(|fd| !is_listening(fd)).map(Some));
    }

    /// Gives what is left to the closer that may take its time.
    pub fn close_by(&mut self, closers: &mut Closers) {
        for fd in self.0.drain(..).flatten() {
            closers.close(fd, NOBODY, Lane::Refused, Report::Uncharged);
        }
        closers.flush();
    }
}

impl Arrived {
    /// Reads a state and takes its fds out of their carriers. When it is refused, the fds that came
    /// are in `left`, and so are the carriers.
    pub fn read(
        ledger: OwnedFd,
        carriers: Vec<OwnedFd>,
        table_fds: u64,
        left: &mut Arrivals,
    ) -> Result<Self, RefusedState> {
        let state = ledger::read(ledger);
        let wanted = state.as_ref().map_or(0, |state| state.fds as usize);
        let state = state.and_then(|state| match wanted as u64 {
            // It has the page at least. Without an fd in a carrier it would be complete each time
            // that it is handed out.
            0 => Err(RefusedState::Broken("it names no fd".into())),
            wanted_fds if wanted_fds > table_fds => Err(RefusedState::TableFull { wanted }),
            _ => Ok(state),
        });
        let state = match state {
            Ok(state) => state,
            Err(refused) => {
                left.add_carriers(carriers, table_fds);
                return Err(refused);
            }
        };
        let (fds, result) = carriers::receive(&carriers, wanted);
        let mut fds = Arrivals(fds);
        fds.0.extend(carriers.into_iter().map(Some));
        match result {
            Ok(()) => Ok(Arrived { state, fds }),
            Err(refused) => {
                left.add(fds);
                Err(refused)
            }
        }
    }

    /// The parts of the state that must stand before there is a server. `settings` are changed to
    /// go with it.
    pub fn core(
        &mut self,
        settings: &mut Settings,
        node: u64,
        now: Now,
    ) -> Result<(Core, NodeKey, GenerationPage), RefusedState> {
        let state = &mut self.state;
        if state.node != node {
            return Err(RefusedState::Elsewhere);
        }
        for SavedListener { path, .. } in &state.listeners {
            if settings.listeners.iter().all(|now| now.path != *path) {
                return Err(RefusedState::Listener { path: path.clone() });
            }
        }
        let page = generation_page::resume(
            settings.admin_directory(),
            self.fds.take(state.page)?,
            state.page_slots,
            state.incarnation,
        );
        let page_error = |PageError { source, .. }| RefusedState::Read(source);
        let (key, page) = page.map_err(page_error)?.ok_or(RefusedState::Elsewhere)?;
        if settings.core.max_slots != state.page_slots {
            log::warn!(
                "limits.max_slots stays {} until a start without clients to go on with",
                state.page_slots
            );
            settings.core.max_slots = state.page_slots;
        }
        settings.core.first_generation = page.first_generation();
        let saved = state.core.take().ok_or_else(|| broken("no state of core", 0))?;
        let core = Core::restore(settings.core.clone(), saved, now).map_err(RefusedState::Core)?;
        Ok((core, key, page))
    }

    /// The lock of the directory, from a broker that still has it.
    pub fn lock(&mut self) -> Option<DirectoryLock> {
        self.fds.take(self.state.lock?).ok().map(DirectoryLock::adopt)
    }

    /// What the broker before ends with.
    pub fn until_eof(&mut self) -> Option<OwnedFd> {
        self.fds.take(self.state.until_eof?).ok()
    }

    /// The listener that was served at `path`, with its hold on it, if it still stands there or can
    /// be put back from `links`.
    pub fn listener(&mut self, path: &Path, links: Option<&Path>) -> Option<Listener> {
        let State { administration, listeners, .. } = &self.state;
        let saved: &SavedListener =
            administration.iter().chain(listeners).find(|saved| saved.path == path)?;
        let identity = saved.identity;
        let socket = self.fds.take(saved.socket?).ok()?;
        let mut listener = Listener::adopt(path, socket, identity).ok()?;
        listener.keep(links);
        (listener.stands_at(identity) || listener.is_kept()).then_some(listener)
    }
}

/// A state that contradicts itself.
pub(crate) fn broken(what: &str, number: u64) -> RefusedState {
    RefusedState::Broken(format!("{what} {number}"))
}
