//! Answers recalls: exports again, by the arena or by the application's callback, and sends the
//! fds. Must never hold more new exports than the window allows, and never wait: what is in the way
//! is said, and tried again.

use crate::books::roles::{Supply, SupplyFd};
use crate::books::window::Places;
use crate::limits::{SEND_SLICE, WINDOW_TIMEOUT};
use crate::notice::{Recall, RecallCallback};
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::wire::connection::Connection;
use fdbroker_protocol::message::SupplyItem;
use fdbroker_protocol::{ErrorCode, Kind, MAX_BATCH, Writer};
use fdbroker_scm::SendError;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Recalls to be answered, and answers to be sent, of one connection.
#[derive(Debug, Default)]
pub(crate) struct Supplier {
    writer: Writer,
    recalls: VecDeque<Recall>,
    gathered: Gathered,
    stuck: Option<Stuck>,
}

/// What keeps the answers back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// All places of the export window are taken; a kick tells when one is free.
    Window,
    /// The event socket is full.
    Socket,
    /// Too many fds of this user are in flight, and no event tells when fewer are.
    InFlight,
}

#[derive(Clone, Copy, Debug)]
struct Stuck {
    obstacle: Obstacle,
    since: Instant,
    /// How long to bear it.
    patience: Duration,
}

/// Answers gathered for one message. Field order is drop order: fds are closed before their places
/// are free.
#[derive(Debug, Default)]
struct Gathered {
    items: Vec<SupplyItem>,
    fds: Vec<Arc<OwnFd>>,
    places: Vec<Places>,
}

impl Supplier {
    /// Recalls to answer; `advance` does it.
    pub fn add(&mut self, recalls: impl Iterator<Item = Recall>) {
        self.recalls.extend(recalls);
    }

    /// Whether everything is answered.
    pub fn is_idle(&self) -> bool {
        self.recalls.is_empty() && self.gathered.items.is_empty()
    }

    /// Whether room on the event socket is what it waits for.
    pub fn waits_for_room(&self) -> bool {
        self.stuck.is_some_and(|stuck| stuck.obstacle == Obstacle::Socket)
    }

    /// Whether an answer could not be sent: the broker may have stopped reading until this client
    /// reads.
    pub fn waits_for_the_broker(&self) -> bool {
        self.stuck.is_some_and(|stuck| stuck.obstacle != Obstacle::Window)
    }

    /// When to try again without an event.
    pub fn within(&self) -> Option<Duration> {
        self.stuck.map(|stuck| match stuck.obstacle {
            Obstacle::Window => stuck.patience.saturating_sub(stuck.since.elapsed()),
            // The kernel calls a socket writable later than a send would succeed.
            Obstacle::Socket | Obstacle::InFlight => SEND_SLICE,
        })
    }

    /// Answers as many as can be answered now, in as many messages as the window makes necessary.
    pub fn advance(&mut self, connection: &Connection, callback: Option<&RecallCallback>) {
        loop {
            let is_full = self.gathered.items.len() == MAX_BATCH;
            let Some(recall) = self.recalls.front().copied().filter(|_| !is_full) else {
                if !self.gathered.items.is_empty() && !self.send(connection) {
                    return;
                }
                if self.is_idle() {
                    return;
                }
                continue;
            };
            connection.look_away();
            let owner = connection.common.owner_of(recall.base).filter(|_| recall.base != 0);
            let fresh = owner.as_ref().is_none_or(|owner| owner.exports_are_fresh());
            let place = if fresh {
                match connection.common.window.take_for_recall() {
                    Some(place) => Some(place),
                    // Those gathered hold some of the places: sent first.
                    None if !self.gathered.items.is_empty() => match self.send(connection) {
                        true => continue,
                        false => return,
                    },
                    None if self.bears(Obstacle::Window, WINDOW_TIMEOUT) => return,
                    None => {
                        connection.common.window.end_recalls();
                        self.recalls.pop_front();
                        self.gathered.push(&recall, Err(ErrorCode::Again), None);
                        continue;
                    }
                }
            } else {
                None
            };
            self.stuck = None;
            let supply = match owner {
                Some(owner) => owner.supply(&recall),
                None => ask(callback, &recall),
            };
            self.recalls.pop_front();
            let is_gone = match &supply {
                Ok(supply) => !supply.is_of(&recall),
                Err(code) => *code == ErrorCode::Stale,
            };
            if is_gone {
                // So says its owner: it is not named to another broker.
                connection.common.holdings.note_gone(recall.id);
            }
            self.gathered.push(&recall, supply, place);
        }
    }

    /// Sends what is gathered. `false`: not now.
    fn send(&mut self, connection: &Connection) -> bool {
        let Gathered { items, fds, .. } = &self.gathered;
        let Some(borrowed) = fds.iter().map(|fd| fd.proved()).collect::<Option<Vec<_>>>() else {
            // None is sent in the place of another: the broker asks again, and hears why.
            connection.kill(CLOSED_HERE);
            self.give_up(connection);
            return true;
        };
        self.writer.start(Kind::Supply, 0);
        items.iter().for_each(|item| {
            self.writer.push(item);
        });
        let bytes = self.writer.finish(items.len(), borrowed.len());
        let socket = connection.events.proved().ok_or(SendError::PeerGone);
        let sent = socket.and_then(|socket| fdbroker_scm::send(socket, bytes, &borrowed));
        let obstacle = match sent {
            Ok(()) => None,
            Err(SendError::WouldBlock) => Some(Obstacle::Socket),
            Err(SendError::TooManyRefs) => Some(Obstacle::InFlight),
            Err(SendError::PeerGone) => {
                // The reader of the event socket finds its end, after the broker's last words.
                self.give_up(connection);
                return true;
            }
            Err(error) => {
                connection.kill(&format!("supply: {error}"));
                self.give_up(connection);
                return true;
            }
        };
        let patience = Duration::from_millis(connection.facts.recall_timeout_ms.into());
        if let Some(obstacle) = obstacle {
            if self.bears(obstacle, patience.max(SEND_SLICE)) {
                return false;
            }
            // The broker now counts this owner as silent; it asks again.
            log::warn!("a supply could not be sent within {patience:?}");
        }
        self.stuck = None;
        self.gathered = Gathered::default();
        true
    }

    /// The connection is over: nothing is answered any more.
    pub fn give_up(&mut self, connection: &Connection) {
        *self = Supplier::default();
        connection.common.window.end_recalls();
    }

    /// Notes what is in the way. Whether that has not lasted too long yet.
    fn bears(&mut self, obstacle: Obstacle, patience: Duration) -> bool {
        let before = self
            .stuck
            .filter(|stuck| (stuck.obstacle == Obstacle::Window) == (obstacle == Obstacle::Window));
        let since = before.map_or_else(Instant::now, |stuck| stuck.since);
        self.stuck = Some(Stuck { obstacle, since, patience });
        since.elapsed() < patience
    }
}

fn ask(callback: Option<&RecallCallback>, recall: &Recall) -> Result<Supply, ErrorCode> {
    let callback = callback.ok_or(ErrorCode::NotSupported)?;
    let answered = catch_unwind(AssertUnwindSafe(|| callback(recall)));
    let answer = answered.unwrap_or_else(|_| {
        log::error!("the recall callback panicked; the recall is answered INTERNAL");
        Err(ErrorCode::Internal)
    })?;
    Ok(Supply { fd: SupplyFd::Fresh(answer.fd), facts: answer.facts })
}

impl Gathered {
    fn push(&mut self, recall: &Recall, supply: Result<Supply, ErrorCode>, place: Option<Places>) {
        let mut item = SupplyItem {
            slot: recall.id.slot.into(),
            generation: recall.id.generation.into(),
            facts: recall.facts.into(),
            reserved: 0,
            code: 0.into(),
        };
        match supply {
            Ok(supply) if supply.is_of(recall) => {
                let fd = match supply.fd {
                    SupplyFd::Fresh(fd) => OwnFd::kept(fd).map(Arc::new),
                    SupplyFd::Shared(fd) => Ok(fd),
                };
                match fd {
                    Ok(fd) => {
                        item.facts = supply.facts.into();
                        self.fds.push(fd);
                        self.places.extend(place);
                    }
                    Err(error) => item.code = (error.code as u16).into(),
                }
            }
            // Other memory stands at the address now.
            Ok(supply) => {
                item.code = (ErrorCode::Stale as u16).into();
                item.facts = supply.facts.into();
            }
            Err(code) => item.code = (code as u16).into(),
        }
        self.items.push(item);
    }
}
