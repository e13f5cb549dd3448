//! What the client and the thread that serves share: settings, books, the connection of the moment.
//! Must never wait.

use crate::books::common::Common;
use crate::notice::{NoticeCallback, RecallCallback};
use crate::wire::connection::{Connection, ENDED_HERE, Facts};
use crate::wire::handshake::Caller;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The settings of a client, complete.
pub(crate) struct Settings {
    pub caller: Caller,
    pub on_notice: Option<NoticeCallback>,
    pub on_recall: Option<RecallCallback>,
    pub reconnect: bool,
    pub dispatch: bool,
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Session {
    pub settings: Settings,
    pub common: Arc<Common>,
    pub last: LastFacts,
    stopping: AtomicBool,
    current: RwLock<Arc<Connection>>,
}

/// What the broker said last, to be read without a lock: a forked child may ask too.
#[derive(Debug)]
pub(crate) struct LastFacts {
    pub node: AtomicU64,
    pub incarnation: AtomicU64,
    pub client: AtomicU32,
}

impl LastFacts {
    fn of(facts: &Facts) -> Self {
        LastFacts {
            node: facts.node.into(),
            incarnation: facts.incarnation.into(),
            client: facts.client.into(),
        }
    }

    fn set(&self, facts: &Facts) {
        self.node.store(facts.node, Ordering::Relaxed);
        self.incarnation.store(facts.incarnation, Ordering::Relaxed);
        self.client.store(facts.client, Ordering::Relaxed);
    }
}

impl Session {
    /// Over the first connection.
    pub fn new(settings: Settings, common: Arc<Common>, first: Arc<Connection>) -> Self {
        let (last, stopping) = (LastFacts::of(&first.facts), AtomicBool::new(false));
        Session { settings, common, last, stopping, current: RwLock::new(first) }
    }

    /// The connection of the moment, dead or alive.
    pub fn current(&self) -> Arc<Connection> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, connection: Arc<Connection>) {
        self.last.set(&connection.facts);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = connection;
        if self.is_stopping() {
            // The client was dropped meanwhile, and may have ended the one before.
            self.current().kill(ENDED_HERE);
        }
    }

    /// Ends all connections, now and later.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // What still waits for others to go with.
        self.current().flush_queued();
        self.kill_all();
        self.common.wake.kick();
    }

    /// Ends the connection of the moment, and the one that is to be the next.
    pub fn kill_all(&self) {
        self.current().kill(ENDED_HERE);
        if let Some(next) = self.common.holdings.line() {
            next.kill(ENDED_HERE);
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("caller", &self.caller)
            .field("reconnect", &self.reconnect)
            .field("dispatch", &self.dispatch)
            .finish_non_exhaustive()
    }
}
