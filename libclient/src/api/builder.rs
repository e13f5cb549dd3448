//! Settings of a client, before it connects. Must never connect by itself or read a file.

use crate::env::{Variable, number};
use crate::error::Error;
use crate::notice::{Notice, Recall, RecallAnswer};
use crate::serve::session::Settings;
use crate::start::Absent;
use crate::sync::low_half;
use crate::wire::handshake::{Caller, default_socket_path, named_socket};
use fdbroker_protocol::ErrorCode;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;

/// Settings for a connection; see [`crate::Client::builder`].
#[derive(Debug)]
#[must_use = "nothing happens until `connect`"]
pub struct ClientBuilder {
    pub(super) settings: Settings,
    /// `None`: as the environment says.
    max_held_fds: Option<u32>,
    /// `None`: as `FDBROKER_START` says.
    start: Option<bool>,
    is_named: bool,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let named = named_socket();
        let is_named = named.is_some();
        let caller = Caller {
            socket: named.unwrap_or_else(default_socket_path),
            name: command_name(),
            own_fds: 1,
            max_held_fds: 0,
            key: low_half(RandomState::new().hash_one(std::process::id())) | 1,
        };
        let (on_notice, on_recall) = (None, None);
        let settings = Settings { caller, on_notice, on_recall, reconnect: true, dispatch: false };
        ClientBuilder { settings, max_held_fds: None, start: None, is_named }
    }
}

impl ClientBuilder {
    /// The broker's socket. Default: [`default_socket_path`].
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.caller.socket = path.into();
        self.is_named = true;
        self
    }

    /// Whether to start a broker where there is none, for all programs of this user on the node
    /// that ask for one, or those of the scheduler's job: the program `fdbroker` does it, which is
    /// found by `FDBROKER_PROGRAM`, beside the library or on PATH. It ends some seconds after its
    /// last client and what is kept, or by `fdbroker stop`. Where a socket is named or a service is
    /// installed (/run/fdbroker is there) none is started: connecting waits for that one until its
    /// deadline. A process with more rights than its user (AT_SECURE) starts none. Default:
    /// `FDBROKER_START`, else no.
    pub fn start(mut self, start: bool) -> Self {
        self.start = Some(start);
        self
    }

    /// A name for display, cut to 16 bytes. Default: the command's.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.caller.name = name.into();
        self
    }

    /// Fds of shared memory this client will hold by itself: 1 for a memfd arena, and the export
    /// window, that is how many exports may be on their way to the broker at once. Charged to it.
    /// Default: 1.
    pub fn own_fds(mut self, count: u32) -> Self {
        self.settings.caller.own_fds = count;
        self
    }

    /// The most fds that the broker is to hold for this client, beside its caps; 0: no bound of its
    /// own. With as many held the broker closes the one that was used least recently, and recalls
    /// it when it is wanted. What cannot be recalled stays, and is refused beyond the bound
    /// (NO_QUOTA). Default: `FDBROKER_MAX_HELD`, else 0.
    pub fn max_held_fds(mut self, count: u32) -> Self {
        self.max_held_fds = Some(count);
        self
    }

    /// Told every notice, on the library thread. It must not block: a blocking call of this library
    /// answers NOT_SUPPORTED there; dropping leases, imports and buffers is fine.
    pub fn on_notice(mut self, callback: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        self.settings.on_notice = Some(Box::new(callback));
        self
    }

    /// Exports registered memory again when the broker recalls it, on the library thread, under the
    /// same rules. `Err(STALE)`: the memory is no longer there; any other code: not now. Arenas
    /// answer for themselves. Without it nothing else can be registered as recallable.
    pub fn on_recall(
        mut self,
        callback: impl Fn(&Recall) -> Result<RecallAnswer, ErrorCode> + Send + Sync + 'static,
    ) -> Self {
        self.settings.on_recall = Some(Box::new(callback));
        self
    }

    /// Whether to look for a broker again when the connection is lost. Default: yes.
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.settings.reconnect = reconnect;
        self
    }

    /// Whether the application serves events itself, without a library thread:
    /// [`crate::Client::event_fd`] says when, [`crate::Client::dispatch`] does it, and so does
    /// every call that waits, so that ranks that recall from each other cannot deadlock. Callbacks
    /// run on the thread that serves, never two at once. Between calls nobody serves: dispatch when
    /// the fd is readable, or recalls go unanswered. Default: no.
    pub fn dispatch(mut self, dispatch: bool) -> Self {
        self.settings.dispatch = dispatch;
        self
    }
}

impl ClientBuilder {
    /// The settings, with what the environment says of those that were not given.
    pub(super) fn resolve(mut self) -> Result<(Settings, Absent), Error> {
        self.settings.caller.max_held_fds = match self.max_held_fds {
            Some(count) => count,
            None => max_held_of_environment()?,
        };
        let socket = &self.settings.caller.socket;
        let absent = Absent::decide(self.start, self.is_named, socket)?;
        Ok((self.settings, absent))
    }
}

fn max_held_of_environment() -> Result<u32, Error> {
    match Variable::of_process("FDBROKER_MAX_HELD") {
        Some(variable) => variable.read("a number of fds, 0 for no limit", number),
        None => Ok(0),
    }
}

/// The command's name, without its path.
fn command_name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(|path| path.file_name());
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
