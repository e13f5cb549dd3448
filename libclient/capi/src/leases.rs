//! The leases of a C program by token: a token is never used twice, so that a second release is an
//! error. Must never hold its lock during a callback or a wait.

use fdbroker_client::layer::lock;
use fdbroker_client::{Error, ErrorCode, Lease};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// All leases of a context by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    leases: HashMap<u64, Held>,
    /// The broker's number of a lease to its token: notices name leases by the broker's number.
    tokens: HashMap<u64, u64>,
    /// The same of leases that the broker of the moment has refused, by their numbers at the broker
    /// before, until the program has been told.
    refused: HashMap<u64, u64>,
    /// The numberings of which these two are.
    numbering: u64,
    /// Numbers of the last revoked leases without a token: of the import cache, or of an acquire
    /// under way.
    revoked: VecDeque<(u64, ErrorCode)>,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    /// The program knows that it was refused.
    is_told: bool,
}

/// An end overtakes a grant by the time between two threads; meanwhile so many others can end that
/// the cache has.
const REVOKED_KEPT: usize = 256;

impl Leases {
    /// Keeps a lease; answers its token, which is never 0.
    ///
    /// # Errors
    /// The notice of its end has come before: nobody could have been told which lease it was of. It
    /// is given back.
    pub fn insert(&self, lease: Lease) -> Result<u64, Error> {
        let mut table = lock(&self.table);
        let number = lease.number();
        if let Some((_, code)) = table.revoked.iter().find(|(revoked, _)| *revoked == number) {
            let code = *code;
            drop(table);
            return Err(Error::new(code, "acquire: the allocation ended meanwhile".to_owned()));
        }
        table.last += 1;
        let token = table.last;
        table.tokens.insert(number, token);
        table.leases.insert(token, Held { lease, is_told: false });
        Ok(token)
    }

    /// Takes a lease out; its drop gives it back.
    pub fn take(&self, token: u64) -> Result<Lease, Error> {
        let mut table = lock(&self.table);
        let held = table.leases.remove(&token).ok_or_else(|| unknown("release", token))?;
        let number = held.lease.number();
        // After a reconnect the lease may have another number, and another lease its former one.
        let Table { tokens, refused, .. } = &mut *table;
        for numbers in [tokens, refused] {
            if numbers.get(&number) == Some(&token) {
                numbers.remove(&number);
            }
        }
        Ok(held.lease)
    }

    /// Runs `act` on a lease that stays here.
    pub fn with<T>(
        &self,
        what: &str,
        token: u64,
        act: impl FnOnce(&mut Lease) -> T,
    ) -> Result<T, Error> {
        let mut table = lock(&self.table);
        let held = table.leases.get_mut(&token).ok_or_else(|| unknown(what, token))?;
        Ok(act(&mut held.lease))
    }

    /// The number of leases that are not given back.
    pub fn len(&self) -> usize {
        lock(&self.table).leases.len()
    }

    /// Gives all leases back, 253 per message.
    pub fn release_all(&self) {
        let leases = std::mem::take(&mut lock(&self.table).leases);
        Lease::release_many(leases.into_values().map(|held| held.lease));
    }

    /// The broker is lost: its numbers are void, and what it has revoked is refused by the next
    /// one.
    pub fn disconnected(&self) {
        lock(&self.table).revoked.clear();
    }

    /// The token of a lease of whose end a notice tells by its number; 0 when the program does not
    /// have it.
    pub fn token_of_revoked(&self, number: u64, code: ErrorCode) -> u64 {
        let mut table = lock(&self.table);
        table.renumber();
        // A refusal is told before anything that the broker says of the lease that has this number
        // now.
        if let Some(token) = table.refused.remove(&number) {
            table.leases.get_mut(&token).expect("it has a number").is_told = true;
            return token;
        }
        if let Some(token) = table.tokens.get(&number) {
            return *token;
        }
        if table.revoked.len() == REVOKED_KEPT {
            table.revoked.pop_front();
        }
        table.revoked.push_back((number, code));
        0
    }

    /// The token of the lease with this number at the broker; 0 when the program has no such lease.
    pub fn token_of(&self, number: u64) -> u64 {
        let mut table = lock(&self.table);
        table.renumber();
        table.tokens.get(&number).copied().unwrap_or(0)
    }
}

impl Table {
    /// Looks the broker's numbers up again when a broker that came back has given others.
    fn renumber(&mut self) {
        let now = self.leases.values().next().map(|held| held.lease.numberings());
        let Some(now) = now.filter(|now| *now != self.numbering) else { return };
        self.numbering = now;
        self.tokens.clear();
        self.refused.clear();
        for (token, Held { lease, is_told }) in &self.leases {
            match lease.was_refused() {
                false => drop(self.tokens.insert(lease.number(), *token)),
                true if !is_told => drop(self.refused.insert(lease.number(), *token)),
                true => {}
            }
        }
    }
}

fn unknown(what: &str, token: u64) -> Error {
    fdbroker_client::layer::given_back(format!("{what} lease {token}: no such lease"))
}
