//! The objects that a C program has got, by token: a token is never used twice, so that a second
//! release is an error. Must never hold its lock while an object is dropped.

use fdbroker_client::layer::lock;
use fdbroker_client::{Error, Object};
use std::collections::HashMap;
use std::sync::Mutex;

/// All objects of a context by their tokens.
#[derive(Debug, Default)]
pub(crate) struct ObjectTable {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    objects: HashMap<u64, Object>,
}

impl ObjectTable {
    /// Keeps an object; answers its token, which is never 0.
    pub fn insert(&self, object: Object) -> u64 {
        let mut table = lock(&self.table);
        table.last += 1;
        let token = table.last;
        table.objects.insert(token, object);
        token
    }

    /// Takes an object out; its drop gives it back.
    pub fn take(&self, token: u64) -> Result<Object, Error> {
        lock(&self.table).objects.remove(&token).ok_or_else(|| unknown("release", token))
    }

    /// A clone of one that stays here.
    pub fn find(&self, what: &str, token: u64) -> Result<Object, Error> {
        lock(&self.table).objects.get(&token).cloned().ok_or_else(|| unknown(what, token))
    }

    pub fn release_all(&self) {
        let objects = std::mem::take(&mut lock(&self.table).objects);
        drop(objects);
    }
}

fn unknown(what: &str, token: u64) -> Error {
    fdbroker_client::layer::given_back(format!("{what} object {token}: no such object"))
}
