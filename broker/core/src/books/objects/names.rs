//! The names of objects, by scope and in the order of their bytes: which object has a name, and
//! which are being made under it. Must never look at a group: whether one still lives is for others
//! to say.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::work::visit;
use serde::{Deserialize, Serialize};

/// The bytes of a name: shared by the table and the group.
pub type Name = Arc<[u8]>;

/// Whose names. A job's number is that of one domain alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NameScope {
    /// A domain's, by its number.
    Domain(u32),
    /// A job's, by its number.
    Job(u32),
}

/// An object: the slot of its group, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Slot.
    pub group: u32,
    /// Index.
    pub member: u16,
}

/// What a name leads to. Groups that have ended stay here until they are swept.
#[derive(Debug, Default)]
pub struct Entry {
    /// The object that was sealed last.
    pub sealed: Option<Place>,
    /// Those in the making, the oldest first; mostly none, and then without memory of its own.
    pub makers: Box<[Place]>,
}

impl Entry {
    fn remove_maker(&mut self, place: Place) {
        if self.makers.contains(&place) {
            self.makers = self.makers.iter().copied().filter(|maker| *maker != place).collect();
        }
    }
}

type Table = BTreeMap<Name, Entry>;

/// All names.
#[derive(Debug, Default)]
pub struct Names {
    scopes: BTreeMap<NameScope, Table>,
}

impl Names {
    /// What a name leads to.
    pub fn find(&self, scope: NameScope, name: &[u8]) -> Option<&Entry> {
        visit(1);
        self.scopes.get(&scope)?.get(name)
    }

    /// An object is made under a name; the name as it is shared.
    pub fn enter(&mut self, scope: NameScope, name: &[u8], place: Place) -> Name {
        visit(1);
        let table = self.scopes.entry(scope).or_default();
        let known = table.get_key_value(name).map(|(known, _)| Arc::clone(known));
        let name = known.unwrap_or_else(|| name.into());
        let entry = table.entry(Arc::clone(&name)).or_default();
        entry.makers = entry.makers.iter().copied().chain([place]).collect();
        name
    }

    /// The object in the making has the name from now on; the one that had it before.
    pub fn seal(&mut self, scope: NameScope, name: &[u8], place: Place) -> Option<Place> {
        visit(1);
        let entry = self.scopes.get_mut(&scope).and_then(|table| table.get_mut(name));
        let entry = entry.expect("it was entered");
        entry.remove_maker(place);
        entry.sealed.replace(place)
    }

    /// An object has the name no more, nor is made under it.
    pub fn leave(&mut self, scope: NameScope, name: &[u8], place: Place) {
        visit(1);
        let table = self.scopes.get_mut(&scope).expect("it was entered");
        let entry = table.get_mut(name).expect("it was entered");
        entry.remove_maker(place);
        entry.sealed.take_if(|sealed| *sealed == place);
        if entry.sealed.is_none() && entry.makers.is_empty() {
            table.remove(name);
        }
        if table.is_empty() {
            self.scopes.remove(&scope);
        }
    }

    /// The names of a scope that begin so, behind `after` if that is not empty, in order.
    pub fn with_prefix<'a>(
        &'a self,
        scope: NameScope,
        prefix: &'a [u8],
        after: &[u8],
    ) -> impl Iterator<Item = (&'a Name, &'a Entry)> + use<'a> {
        let from =
            if after >= prefix && !after.is_empty() { Excluded(after) } else { Included(prefix) };
        let table = self.scopes.get(&scope);
        let found = table.map(|table| table.range::<[u8], _>((from, Unbounded)));
        let found = found.into_iter().flatten().inspect(|_| visit(1));
        found.take_while(|(name, _)| name.starts_with(prefix))
    }

    /// Every name, for the invariant checks.
    pub fn all(&self) -> impl Iterator<Item = (NameScope, &Name, &Entry)> {
        let tables = self.scopes.iter();
        tables.flat_map(|(scope, table)| table.iter().map(|(name, entry)| (*scope, name, entry)))
    }
}
