//! Many imports in one call: what is there is pinned, what is missing is claimed before anything is waited for, then
//! fetched by the message, then what others fetch is waited for.
//! Must never wait for another thread while others may wait for this one.

use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::cache::cached::{CachedImport, Imports};
use crate::cache::cold::Held;
use crate::cache::flight::Key;
use crate::cache::miss::{Importer, Slices};
use crate::cache::table::claims::{Claim, Look, Waiter};
use crate::error::Error;
use crate::limits::GATHER_MOST;
use fdbroker_protocol::{ErrorCode, Handle};
use std::collections::HashMap;

/// What is to be done for the handles of one call, by their places in it.
#[derive(Default)]
struct Plan<'a> {
    fetches: Vec<(usize, Claim<'a>)>,
    waits: Vec<(usize, Waiter<'a>)>,
    /// The same allocation as at an earlier place.
    repeats: Vec<(usize, usize)>,
}

type Outcome<'a> = Option<Result<CachedImport<'a>, Error>>;

impl<'a> Importer<'a, '_> {
    /// Imports any number; see [`crate::ImportCache::import_many`].
    pub fn import_many(&mut self, handles: &[Handle]) -> Result<Imports<'a>, Error> {
        let mut outcomes: Vec<Outcome<'a>> = Vec::with_capacity(handles.len());
        outcomes.extend(handles.iter().map(|handle| self.hit(handle)));
        if outcomes.iter().any(Option::is_none) {
            self.client.connection("import")?;
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

    /// Finds the thread that does each place that is no hit: this one or another. Nothing is waited for.
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
            let (mut refused, mut released) = (Vec::new(), Vec::new());
            let asked = client.acquire_each(&wanted, until, |index, granted| {
                let (place, claim) = claims[index].take().expect("each index comes once");
                match granted {
                    Err(error) if slices.allow_another(&error) => {
                        refused.push((place, claim, error))
                    }
                    granted => {
                        let handle = &handles[place];
                        outcomes[place] =
                            Some(self.take_one(claim, handle, granted, &mut released));
                        if released.len() >= GATHER_MOST {
                            Lease::release_many(released.drain(..));
                        }
                    }
                }
            });
            Lease::release_many(released.drain(..));
            if let Err(error) = asked {
                let left = claims.into_iter().flatten();
                left.for_each(|(place, _)| outcomes[place] = Some(Err(error.clone())));
            }
            let tries_again = !refused.is_empty() && slices.make_room(self.table);
            for (place, claim, error) in refused {
                match tries_again {
                    true => fetches.push((place, claim)),
                    false => outcomes[place] = Some(Err(error)),
                }
            }
        }
    }

    fn take_one(
        &mut self,
        claim: Claim<'a>,
        handle: &Handle,
        granted: Result<Grant, Error>,
        released: &mut Vec<Lease>,
    ) -> Result<CachedImport<'a>, Error> {
        let mut closed = Vec::new();
        let kept = self.take_in(claim, handle, granted?, &mut closed);
        released.extend(closed.into_iter().map(Held::close));
        CachedImport::new(self.table, kept?, handle)
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
