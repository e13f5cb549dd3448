//! Fds in the closers, each until its closer reports it closed. Must never count one for a client
//! that is forgotten: such an fd is its domain's alone.

use crate::api::Ticket;
use crate::books::slots::Slots;
use rustc_hash::FxHashMap;

/// An fd in the closers.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    /// The domain it came from.
    pub domain: u32,
    /// The client charged for its place, by number and serial: once that is gone its domain alone
    /// is. `None`: it came without a place. [`crate::api::NONE`] and 0: its domain alone was
    /// charged from the beginning.
    pub client: Option<(u32, u64)>,
    /// Counted among the domain's refused ones: its close may hang.
    pub refused: bool,
}

/// The table of fds in the closers, by ticket, and the places that they take.
#[derive(Debug, Default)]
pub struct Closings {
    table: Slots<Closing>,
    /// How many places of each client they have, by its serial; 0 is of none.
    places: FxHashMap<u64, u64>,
}

impl Closings {
    /// An fd goes to the closers.
    pub fn begin(&mut self, closing: Closing) -> Ticket {
        if let Some((_, serial @ 1..)) = closing.client {
            *self.places.entry(serial).or_default() += 1;
        }
        Ticket(self.table.insert(closing).expect("fds are fewer than slots").0)
    }

    /// The fd of a ticket is closed; `None`: there is none.
    pub fn end(&mut self, ticket: Ticket) -> Option<Closing> {
        self.get(ticket)?;
        let closing = self.table.remove(ticket.0);
        let (_, serial) = closing.client.unwrap_or_default();
        if let Some(places) = self.places.get_mut(&serial) {
            *places -= 1;
            if *places == 0 {
                self.places.remove(&serial);
            }
        }
        Some(closing)
    }

    /// The fd of a ticket.
    pub fn get(&self, ticket: Ticket) -> Option<&Closing> {
        self.table.get(ticket.0, self.table.generation(ticket.0))
    }

    /// Fds that take places of the client with this serial.
    pub fn of_client(&self, serial: u64) -> u64 {
        self.places.get(&serial).copied().unwrap_or(0)
    }

    /// The client is forgotten: their places, as many as this gives, are its domain's.
    pub fn forget_client(&mut self, serial: u64) -> u64 {
        self.places.remove(&serial).unwrap_or(0)
    }

    /// How many fds are in the closers.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// All fds in the closers: as much work as there are.
    pub fn iter(&self) -> impl Iterator<Item = &Closing> {
        self.table.iter_from(0).map(|(_, closing)| closing)
    }

    /// Asserts that each client's are counted.
    pub fn check(&self) {
        let mut left = self.places.clone();
        let serials = self.iter().filter_map(|closing| closing.client).map(|(_, serial)| serial);
        for serial in serials {
            if let Some(places) = left.get_mut(&serial) {
                *places -= 1;
            }
        }
        assert!(left.values().all(|places| *places == 0), "places of fds that are closed");
    }
}
