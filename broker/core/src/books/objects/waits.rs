//! Requests that wait for names: each stands at the first name that it misses, or at all of them if
//! fewer groups of them would be enough. Those at a name that was sealed are woken, some a step,
//! the domains in turn. Must never look through all that wait.

use std::collections::{BTreeMap, BTreeSet};

use crate::books::objects::names::{Name, NameScope};
use crate::work::visit;

type Key = (NameScope, Name);

/// All of them, by arrival number.
#[derive(Debug, Default)]
pub struct Waits {
    at: BTreeSet<(NameScope, Name, u64)>,
    /// By domain: names that were sealed, and the arrival number from which on those who stand
    /// there are still to be woken.
    woken: BTreeMap<u32, BTreeMap<Key, u64>>,
    /// The domain that had the last turn.
    turn: u32,
}

impl Waits {
    /// A request stands at a name.
    pub fn enter(&mut self, scope: NameScope, name: &Name, seq: u64) {
        visit(1);
        self.at.insert((scope, Name::clone(name), seq));
    }

    /// It does not any more.
    pub fn leave(&mut self, scope: NameScope, name: &Name, seq: u64) {
        visit(1);
        self.at.remove(&(scope, Name::clone(name), seq));
    }

    fn first_at(&self, (scope, name): &Key, from: u64) -> Option<u64> {
        visit(1);
        let (of, first, seq) = self.at.range((*scope, Name::clone(name), from)..).next()?;
        (of == scope && first == name).then_some(*seq)
    }

    /// A name was sealed.
    pub fn wake(&mut self, domain: u32, scope: NameScope, name: &Name) {
        let key = (scope, Name::clone(name));
        if !self.at.is_empty() && self.first_at(&key, 0).is_some() {
            self.woken.entry(domain).or_default().insert(key, 0);
        }
    }

    /// Takes the next request that is to be woken.
    pub fn next_woken(&mut self) -> Option<u64> {
        loop {
            visit(1);
            let next = self.woken.range(self.turn.saturating_add(1)..).next();
            let domain = *next.or_else(|| self.woken.first_key_value())?.0;
            self.turn = domain;
            let names = self.woken.get_mut(&domain).expect("just found");
            let Some(((scope, name), from)) = names.pop_first() else {
                self.woken.remove(&domain);
                continue;
            };
            let Some(seq) = self.first_at(&(scope, Name::clone(&name)), from) else { continue };
            if let Some(names) = self.woken.get_mut(&domain) {
                names.insert((scope, name), seq + 1);
            }
            return Some(seq);
        }
    }

    /// Whether nobody is to be woken.
    pub fn is_idle(&self) -> bool {
        self.woken.is_empty()
    }

    /// Whether a request stands at a name, for the invariant checks.
    pub fn has(&self, scope: NameScope, name: &Name, seq: u64) -> bool {
        self.at.contains(&(scope, Name::clone(name), seq))
    }

    /// At how many names requests stand.
    pub fn len(&self) -> usize {
        self.at.len()
    }
}
