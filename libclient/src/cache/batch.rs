//! Many imports in one call: what is there is pinned, what is missing is claimed before anything is
//! waited for, then fetched by the message, then what others fetch is waited for. Must never wait
//! for another thread while others may wait for this one.

use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::cache::cached::{CachedImport, Imports};
use crate::cache::cold::Held;
use crate::cache::flight::Key;
use crate::cache::miss::{Importer, Slices};
use crate::cache::opened::Opener;
use crate::cache::table::claims::{Claim, Look, Waiter};
use crate::error::Error;
use crate::map::{Access, AtFork, Mapping};
use crate::requests::acquire::{Handed, acquire_each};
use fdbroker_protocol::{ErrorCode, Handle};
use std::collections::HashMap;
use std::os::fd::AsFd;

/// What is to be done for the handles of one call, by their places in it.
#[derive(Default)]
struct Plan<'a> {
    fetches: Vec<(usize, Claim<'a>)>,
    waits: Vec<(usize, Waiter<'a>)>,
    /// The same allocation as at an earlier place.
    repeats: Vec<(usize, usize)>,
}

/// Grants each of which begins where the one before ends, in one file.
#[derive(Default)]
struct Row<'a>(Vec<(usize, Claim<'a>, Grant)>);

impl Row<'_> {
    fn goes_on_with(&self, grant: &Grant) -> bool {
        self.0.last().is_some_and(|(.., last)| last.is_followed_by(grant))
    }

    /// All of it, mapped by one call. `None`: there is but one, or they do not fit; then each is
    /// mapped by itself.
    fn map(&self, access: Access) -> Option<Mapping> {
        let [(.., first), .., (.., last)] = &self.0[..] else { return None };
        let (begin, end) =
            (first.info.facts.fd_offset, last.info.facts.fd_offset + last.info.facts.size_bytes);
        let len = usize::try_from(end - begin).ok()?;
        Mapping::new(first.fd.as_fd(), begin, len, access, AtFork::Leave).ok()
    }
}

type Outcome<'a> = Option<Result<CachedImport<'a>, Error>>;

impl<'a, O: Opener> Importer<'a, O> {
    /// Imports any number; see [`crate::ImportCache::import_many`].
    pub fn import_many(&mut self, handles: &[Handle]) -> Result<Imports<'a>, Error> {
        let mut outcomes: Vec<Outcome<'a>> = Vec::with_capacity(handles.len());
        outcomes.extend(handles.iter().map(|handle| self.hit(handle)));
        if outcomes.iter().any(Option::is_none) {
            self.client.connection("import", self.deadline)?;
            let plan = self.plan(handles, &mut outcomes);
            self.fetch_all(handles, plan.fetches, &mut outcomes);
            for (place, waiter) in plan.waits {
                outcomes[place] = Some(self.await_one(waiter, &handles[place]));
            }
            for (place, same) in plan.repeats {
                outcomes[place] = Some(match &outcomes[same] {
                    Some(Ok(first)) => first.again(&handles[place]),
                    Some(Err(error)) if error.code != ErrorCode::BadHandle => Err(error.clone()),
                    // Its offset may have been the reason.
                    _ => self.import(&handles[place]),
                });
            }
        }
        let outcome =
            |one: Outcome<'a>| one.expect("each place is hit, fetched, awaited or a repeat");
        Ok(outcomes.into_iter().map(outcome).collect())
    }

    fn hit(&self, handle: &Handle) -> Outcome<'a> {
        let pinned = self.table.hit(handle, self.mode.access)?;
        Some(CachedImport::new(self.table, pinned, handle))
    }

    /// Finds the thread that does each place that is no hit: this one or another. Nothing is waited
    /// for.
    fn plan(&self, handles: &[Handle], outcomes: &mut [Outcome<'a>]) -> Plan<'a> {
        let mut plan = Plan::default();
        let mut own: HashMap<Key, usize> = HashMap::new();
        for (place, handle) in handles.iter().enumerate() {
            if outcomes[place].is_some() {
                continue;
            }
            if let Some(same) = own.get(&Key::of(handle)) {
                plan.repeats.push((place, *same));
                continue;
            }
            match self.table.look(handle, self.mode.access) {
                Look::Found(pinned) => {
                    outcomes[place] = Some(CachedImport::new(self.table, pinned, handle));
                }
                Look::Wait(waiter) => plan.waits.push((place, waiter)),
                Look::Suspended => outcomes[place] = Some(Err(Error::suspended(handle.id()))),
                Look::Fetch(claim) => {
                    own.insert(claim.key(), place);
                    plan.fetches.push((place, claim));
                }
            }
        }
        plan
    }

    /// Fetches all that was claimed.
    fn fetch_all(
        &mut self,
        handles: &[Handle],
        mut fetches: Vec<(usize, Claim<'a>)>,
        outcomes: &mut [Outcome<'a>],
    ) {
        let mut slices = Slices::of(self.deadline);
        let client = self.client;
        while !fetches.is_empty() {
            let until = slices.next(self.table);
            let wanted: Vec<Handle> = fetches.iter().map(|(place, _)| handles[*place]).collect();
            let mut claims: Vec<_> = fetches.drain(..).map(Some).collect();
            let mut refused = Vec::new();
            let (mut row, mut released) = (Row::default(), Vec::new());
            let asked = client.connection("import", self.deadline).map(|connection| {
                acquire_each(&connection, &wanted, until, |handed| match handed {
                    Handed::End => {
                        released.extend(self.take_row(&mut row, handles, outcomes));
                        Lease::release_many(released.drain(..));
                    }
                    Handed::One(index, granted) => {
                        let (place, claim) = claims[index].take().expect("each index comes once");
                        match granted {
                            Err(error) if slices.allow_another(&error) => {
                                refused.push((place, claim, error));
                            }
                            Err(error) => outcomes[place] = Some(Err(error)),
                            Ok(grant) => {
                                if !(self.maps(&grant) && row.goes_on_with(&grant)) {
                                    released.extend(self.take_row(&mut row, handles, outcomes));
                                }
                                row.0.push((place, claim, grant));
                            }
                        }
                    }
                });
            });
            if let Err(error) = asked {
                let left = claims.into_iter().flatten();
                left.for_each(|(place, _)| outcomes[place] = Some(Err(error.clone())));
            }
            let errors = refused.iter().map(|(_, _, error)| error);
            let tries_again = !refused.is_empty() && slices.make_room(self.table, errors);
            for (place, claim, error) in refused {
                if tries_again {
                    fetches.push((place, claim))
                } else {
                    outcomes[place] = Some(Err(error))
                }
            }
        }
    }

    /// Maps what stands in a row by one mmap(2), and takes in each; the leases of what was closed
    /// for it.
    fn take_row(
        &mut self,
        row: &mut Row<'a>,
        handles: &[Handle],
        outcomes: &mut [Outcome<'a>],
    ) -> Vec<Lease> {
        let mut rest = row.map(self.mode.access);
        let mut closed = Vec::new();
        let count = row.0.len();
        for (at, (place, claim, grant)) in row.0.drain(..).enumerate() {
            let mapped = match &mut rest {
                // Whole pages, all of them inside.
                Some(mapping) if at + 1 < count => {
                    let bytes = usize::try_from(grant.info.facts.size_bytes).expect("mapped");
                    let behind = mapping.split_off(bytes);
                    rest.replace(behind)
                }
                last => last.take(),
            };
            let handle = &handles[place];
            let kept = self.take_in(claim, handle, grant, mapped, &mut closed);
            let import = kept.and_then(|kept| CachedImport::new(self.table, kept, handle));
            outcomes[place] = Some(import);
        }
        Held::close_each(closed)
    }

    fn await_one(
        &mut self,
        waiter: Waiter<'_>,
        handle: &Handle,
    ) -> Result<CachedImport<'a>, Error> {
        match self.wait(waiter, handle)? {
            Some(pinned) => CachedImport::new(self.table, pinned, handle),
            // The thread that fetched it failed, or it is gone again.
            None => self.import(handle),
        }
    }
}
