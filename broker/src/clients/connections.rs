//! The connections by number, with how many each user has. Must never let the two differ, nor give a number to two
//! connections of the same serial.

use crate::clients::connection::Connection;
use fdbroker_core::DomainKey;
use slab::Slab;
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;

/// Connections for which memory is taken at the start.
const EXPECTED: usize = 4096;

/// See the module.
#[derive(Default)]
pub struct Connections {
    by_number: Slab<Connection>,
    /// By uid; no entry = none.
    of_users: HashMap<u32, u32>,
    last_serial: u64,
}

impl Connections {
    /// None yet, at most `most`.
    pub fn new(most: usize) -> Self {
        Connections { by_number: Slab::with_capacity(most.min(EXPECTED)), ..Self::default() }
    }

    /// Those of another broker, by number, and the serial it gave last.
    pub fn restored(connections: Vec<(usize, Connection)>, last_serial: u64) -> Self {
        let mut of_users: HashMap<u32, u32> = HashMap::new();
        for (_, connection) in &connections {
            *of_users.entry(connection.domain.uid).or_default() += 1;
        }
        Connections { by_number: connections.into_iter().collect(), of_users, last_serial }
    }

    /// A new connection; its number.
    pub fn add(&mut self, socket: OwnedFd, domain: DomainKey, pid: u32) -> usize {
        self.last_serial += 1;
        *self.of_users.entry(domain.uid).or_default() += 1;
        self.by_number.insert(Connection::new(self.last_serial, socket, domain, pid))
    }

    /// Frees a number.
    pub fn remove(&mut self, number: usize) -> Option<Connection> {
        let connection = self.by_number.try_remove(number)?;
        let uid = connection.domain.uid;
        if let Some(count) = self.of_users.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_users.remove(&uid);
            }
        }
        Some(connection)
    }

    /// Frees all numbers.
    pub fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.of_users.clear();
        self.by_number.drain()
    }

    /// The connection with this number.
    pub fn get(&self, number: usize) -> Option<&Connection> {
        self.by_number.get(number)
    }

    /// The connection with this number, to be changed.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Connection> {
        self.by_number.get_mut(number)
    }

    /// All of them, by number.
    pub fn iter(&self) -> slab::Iter<'_, Connection> {
        self.by_number.iter()
    }

    /// How many there are, those included that have ended and linger.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// How many a user has, by all listeners.
    pub fn of_user(&self, uid: u32) -> u32 {
        self.of_users.get(&uid).copied().unwrap_or(0)
    }

    /// The serial given last.
    pub fn last_serial(&self) -> u64 {
        self.last_serial
    }

    /// Users that are counted.
    #[cfg(test)]
    pub fn users(&self) -> usize {
        self.of_users.len()
    }
}

impl Index<usize> for Connections {
    type Output = Connection;

    fn index(&self, number: usize) -> &Connection {
        &self.by_number[number]
    }
}

impl IndexMut<usize> for Connections {
    fn index_mut(&mut self, number: usize) -> &mut Connection {
        &mut self.by_number[number]
    }
}

impl<'a> IntoIterator for &'a Connections {
    type Item = (usize, &'a Connection);
    type IntoIter = slab::Iter<'a, Connection>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_number.iter()
    }
}

impl<'a> IntoIterator for &'a mut Connections {
    type Item = (usize, &'a mut Connection);
    type IntoIter = slab::IterMut<'a, Connection>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_number.iter_mut()
    }
}
