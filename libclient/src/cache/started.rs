//! Imports under way that nobody waits for: started, tested now and then, cancelled or dropped.
//! Must never block, hold a claim between two tests, nor lose a grant: what is not kept is given
//! back.

use super::cached::{CachedImport, Imports};
use super::cold::Held;
use super::miss::Importer;
use super::opened::NoOpener;
use super::table::claims::Look;
use super::table::close_all;
use crate::books::due::Teller;
use crate::books::grant::Grant;
use crate::error::Error;
use crate::limits::AGAIN_FIRST;
use crate::requests::acquiring::Acquiring;
use crate::requests::started::{Exchange, Progress, Request, Work};
use fdbroker_protocol::Handle;
use std::time::Instant;

/// Imports under way; see [`crate::ImportCache::import_start`].
///
/// A test opens what has come; an opener ([`crate::ImportCache::set_opener`]) runs in it. The
/// errors are those of [`crate::ImportCache::import`]; all answer NOT_CONNECTED in a child of
/// fork(2).
pub type ImportRequest<'a> = Request<'a, Imports<'a>>;

/// How far an [`ImportRequest`] is.
pub type ImportProgress<'a> = Progress<'a, Imports<'a>>;

pub(super) struct Importing<'a> {
    importer: Importer<'a, NoOpener>,
    handles: Box<[Handle]>,
    /// What is missing, until all of it has come.
    acquire: Option<Exchange<Acquiring>>,
    /// The places of what `acquire` asks for.
    missing: Vec<usize>,
    /// Granted, while another thread imports the same.
    granted: Vec<(usize, Grant)>,
    outcomes: Vec<Option<Result<CachedImport<'a>, Error>>>,
}

impl<'a> Importing<'a> {
    /// Takes the hits, and starts to acquire the rest.
    pub(super) fn start(
        importer: Importer<'a, NoOpener>,
        handles: &[Handle],
    ) -> Result<Self, Error> {
        let hit = |handle: &Handle| {
            let pinned = importer.table.hit(handle, importer.mode.access)?;
            Some(CachedImport::new(importer.table, pinned, handle))
        };
        let outcomes: Vec<_> = handles.iter().map(hit).collect();
        let missing: Vec<usize> = (0..handles.len()).filter(|at| outcomes[*at].is_none()).collect();
        let wanted: Vec<Handle> = missing.iter().map(|at| handles[*at]).collect();
        let acquire = if wanted.is_empty() {
            None
        } else {
            let connection = importer.client.usable("acquire")?;
            Some(Acquiring::start(connection, &wanted, importer.deadline))
        };
        let (handles, granted) = (handles.into(), Vec::new());
        Ok(Importing { importer, handles, acquire, missing, granted, outcomes })
    }

    fn arrive(&mut self, place: usize, granted: Result<Grant, Error>) {
        let handle = self.handles[place];
        let grant = match granted {
            Ok(grant) => grant,
            Err(error) => return self.outcomes[place] = Some(Err(error)),
        };
        let pinned = match self.importer.table.look(&handle, self.importer.mode.access) {
            // Imported meanwhile: the grant is given back.
            Look::Found(pinned) => Ok(pinned),
            Look::Fetch(claim) => {
                let mut closed: Vec<Held> = Vec::new();
                let kept = self.importer.take_in(claim, &handle, grant, None, &mut closed);
                close_all(closed);
                kept
            }
            Look::Suspended => Err(Error::suspended(handle.id())),
            Look::Wait(_) if self.importer.deadline.has_passed() => {
                Err(Error::timed_out(format!("import {}: another thread imports it", handle.id())))
            }
            Look::Wait(_) => return self.granted.push((place, grant)),
        };
        let table = self.importer.table;
        let import = pinned.and_then(|pinned| CachedImport::new(table, pinned, &handle));
        self.outcomes[place] = Some(import);
    }
}

impl<'a> Work for Importing<'a> {
    type Outcome = Imports<'a>;

    fn advance(&mut self) -> Option<Imports<'a>> {
        if self.importer.client.is_forked_copy() {
            // The cache is the parent's.
            let outcomes = std::mem::take(&mut self.outcomes);
            std::mem::forget(outcomes);
            let forked = self.handles.iter().map(|_| Err(Error::forked("import")));
            return Some(forked.collect());
        }
        let connection = self.importer.client.current();
        let _handing_over = connection.hand_over();
        for (place, grant) in std::mem::take(&mut self.granted) {
            self.arrive(place, Ok(grant));
        }
        if let Some(mut acquire) = self.acquire.take() {
            let is_over = acquire.advance().is_some();
            for (index, outcome) in acquire.messages.take_arrived() {
                self.arrive(self.missing[index], outcome);
            }
            self.acquire = (!is_over).then_some(acquire);
        }
        if self.acquire.is_some() || !self.granted.is_empty() {
            return None;
        }
        let outcome = |one: Option<_>| one.expect("a hit, or it has arrived");
        Some(self.outcomes.drain(..).map(outcome).collect())
    }

    fn tell(&mut self, teller: &Teller) {
        self.acquire.iter_mut().for_each(|acquire| acquire.tell(teller));
    }

    fn goes_on_at(&self) -> Instant {
        match &self.acquire {
            Some(acquire) if self.granted.is_empty() => acquire.goes_on_at(),
            // Another thread imports the same.
            _ => Instant::now() + AGAIN_FIRST,
        }
    }
}

impl std::fmt::Debug for Importing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importing").field("acquire", &self.acquire).finish_non_exhaustive()
    }
}
