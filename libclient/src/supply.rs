//! Answers recalls: exports again, by the arena or by the application's callback, and sends the fds.
//! Must never hold more new exports than the window allows, nor wait while it keeps others from theirs.

use crate::common::{Places, Supply, SupplyFd};
use crate::connection::Connection;
use crate::limits::{SEND_SLICE, WINDOW_TIMEOUT};
use crate::notice::{Recall, RecallCallback};
use crate::poll::poll_one;
use fdbroker_protocol::message::SupplyItem;
use fdbroker_protocol::{ErrorCode, Kind, MAX_BATCH, Writer};
use fdbroker_scm::SendError;
use nix::poll::PollFlags;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The writer of supply messages, reused.
#[derive(Debug, Default)]
pub(crate) struct Supplier {
    writer: Writer,
}

/// Answers gathered for one message. Field order is drop order: fds are closed before their places are free.
#[derive(Default)]
struct Gathered<'a> {
    items: Vec<SupplyItem>,
    fds: Vec<SupplyFd>,
    places: Vec<Places<'a>>,
}

impl Supplier {
    /// Answers every recall, in as many messages as the window makes necessary.
    pub fn answer(
        &mut self,
        connection: &Connection,
        recalls: impl Iterator<Item = Recall>,
        callback: Option<&RecallCallback>,
    ) {
        let mut gathered = Gathered::default();
        for recall in recalls {
            let owner = connection.common.owner_of(recall.base).filter(|_| recall.base != 0);
            let fresh = owner.as_ref().is_none_or(|owner| owner.exports_are_fresh());
            let place = match fresh {
                false => None,
                true => match self.place(connection, &mut gathered) {
                    Some(place) => Some(place),
                    None => {
                        gathered.push(&recall, Err(ErrorCode::Again), None);
                        continue;
                    }
                },
            };
            let supply = match owner {
                Some(owner) => owner.supply(&recall),
                None => ask(callback, &recall),
            };
            gathered.push(&recall, supply, place);
            if gathered.items.len() == MAX_BATCH {
                self.send(connection, &mut gathered);
            }
        }
        self.send(connection, &mut gathered);
    }

    /// A place in the window. Before waiting for one, what was gathered is sent, which frees its places.
    fn place<'a>(
        &mut self,
        connection: &'a Connection,
        gathered: &mut Gathered<'a>,
    ) -> Option<Places<'a>> {
        let window = &connection.common.window;
        window.take(1, Instant::now()).or_else(|| {
            self.send(connection, gathered);
            window.take(1, Instant::now() + WINDOW_TIMEOUT)
        })
    }

    fn send(&mut self, connection: &Connection, gathered: &mut Gathered<'_>) {
        let Gathered { items, fds, places } = std::mem::take(gathered);
        if items.is_empty() {
            return;
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(SupplyFd::as_fd).collect();
        self.writer.start(Kind::Supply, 0);
        items.iter().for_each(|item| {
            self.writer.push(item);
        });
        let bytes = self.writer.finish(items.len(), borrowed.len());
        send_reading(connection, bytes, &borrowed);
        drop(borrowed);
        drop(fds);
        drop(places);
    }
}

/// Sends on the event socket. While that is full it reads the request socket if nobody else does: the broker
/// may have stopped reading until this client reads.
fn send_reading(connection: &Connection, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let patience = Duration::from_millis(connection.facts.recall_timeout_ms.into());
    let until = Instant::now() + patience.max(SEND_SLICE);
    loop {
        let wanted = match fdbroker_scm::send(connection.events.as_fd(), bytes, fds) {
            Ok(()) => return,
            Err(SendError::WouldBlock) => PollFlags::POLLOUT,
            Err(SendError::TooManyRefs) => PollFlags::empty(),
            Err(error) => return connection.kill(&format!("supply: {error}")),
        };
        if Instant::now() >= until {
            // The broker now counts this owner as silent; it asks again.
            return log::warn!("a supply could not be sent within {patience:?}");
        }
        connection.read_if_nobody_does();
        poll_one(connection.events.as_fd(), wanted, SEND_SLICE);
        if !connection.is_usable() {
            return;
        }
    }
}

fn ask(callback: Option<&RecallCallback>, recall: &Recall) -> Result<Supply, ErrorCode> {
    let callback = callback.ok_or(ErrorCode::NotSupported)?;
    let answered = catch_unwind(AssertUnwindSafe(|| callback(recall)));
    let answer = answered.unwrap_or_else(|_| {
        log::error!("the recall callback panicked; the recall is answered INTERNAL");
        Err(ErrorCode::Internal)
    })?;
    Ok(Supply {
        fd: SupplyFd::Fresh(answer.fd),
        fd_offset: answer.fd_offset,
        size_bytes: answer.size_bytes,
        owner_allocation_id: answer.owner_allocation_id,
    })
}

impl<'a> Gathered<'a> {
    fn push(
        &mut self,
        recall: &Recall,
        supply: Result<Supply, ErrorCode>,
        place: Option<Places<'a>>,
    ) {
        let mut item = SupplyItem {
            slot: recall.id.slot.into(),
            generation: recall.id.generation.into(),
            code: 0.into(),
            reserved: [0; 6],
            owner_allocation_id: recall.owner_allocation_id.into(),
            fd_offset: 0.into(),
            size_bytes: 0.into(),
        };
        match supply {
            Ok(supply) if supply.owner_allocation_id == recall.owner_allocation_id => {
                item.fd_offset = supply.fd_offset.into();
                item.size_bytes = supply.size_bytes.into();
                self.fds.push(supply.fd);
                self.places.extend(place);
            }
            // Other memory stands at the address now.
            Ok(supply) => {
                item.code = (ErrorCode::Stale as u16).into();
                item.owner_allocation_id = supply.owner_allocation_id.into();
            }
            Err(code) => item.code = (code as u16).into(),
        }
        self.items.push(item);
    }
}

impl SupplyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            SupplyFd::Fresh(fd) => fd.as_fd(),
            SupplyFd::Shared(fd) => fd.as_fd(),
        }
    }
}
