//! What a parked get wants, and the names at which it stands. A plain record; must never act by
//! itself.

use crate::books::ledger::Charge;
use crate::books::objects::names::{Name, NameScope};
use fdbroker_protocol::Resource;

/// What a parked get wants.
#[derive(Clone, Debug)]
pub struct Get {
    /// Whose names.
    pub scope: NameScope,
    /// In the order of the request.
    pub names: Box<[Name]>,
}

/// The names at which a parked get stands: it is looked at again when one of them is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It misses no name, and waits for something else.
    Nowhere,
    /// At the one of this index, because that is missing.
    At(usize),
    /// At all: it is short of a lease for each group, and whoever replaces them can seal them in
    /// fewer groups.
    Everywhere,
}

impl Get {
    /// What the domain is charged with while it is parked.
    pub fn charge(&self) -> Charge {
        let bytes = self.names.iter().map(|name| name.len() as u64).sum();
        Charge(Resource::MetadataBytes, bytes)
    }

    /// Those of the names at which it stands.
    pub fn names_at(&self, at: Standing) -> &[Name] {
        match at {
            Standing::Nowhere => &[],
            Standing::At(index) => &self.names[index..=index],
            Standing::Everywhere => &self.names,
        }
    }
}
