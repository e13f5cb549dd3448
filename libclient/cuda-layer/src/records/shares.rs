//! Memory that is shared by a handle of 64 bytes, by no number: registered once, until it is
//! freed. Must never end a registration by itself.

use super::{Ahead, Id, Records, UNTOLD};
use crate::result::CuMemHandle;

/// What becomes of a share.
#[derive(Debug, PartialEq, Eq)]
pub enum Share<R, E> {
    /// It has this registration.
    Known(R),
    /// To be exported and registered; [`Records::enter_share`] follows.
    New(Ahead<E>),
}

impl<R: Clone, E, L> Records<R, E, L> {
    /// Begins to share memory that [`Records::create`] has entered. `is_current`: whether the
    /// broker still knows a registration. `None`: nothing is known of the handle.
    pub fn begin_share(
        &mut self,
        handle: CuMemHandle,
        is_current: impl FnOnce(&R) -> bool,
    ) -> Option<Share<R, E>> {
        let id = *self.by_handle.get(&handle)?;
        let is_in_row = self.go_on_from(id);
        let known = self.record(id).share.as_ref().filter(|share| is_current(share)).cloned();
        Some(match known {
            Some(known) => Share::Known(known),
            None => Share::New(self.begin_new(id, handle, is_in_row)),
        })
    }

    /// Enters the registration of a share that was begun, and answers the one that counts: that of
    /// another thread that was faster, and then this one is to be ended. The record stays pinned.
    pub fn enter_share(
        &mut self,
        id: Id,
        registration: R,
        is_current: impl FnOnce(&R) -> bool,
    ) -> (R, Option<R>) {
        let record = self.record(id);
        match record.share.as_ref().filter(|share| is_current(share)) {
            Some(faster) => {
                let faster = faster.clone();
                record.ended = UNTOLD;
                (faster, Some(registration))
            }
            None => {
                record.share = Some(registration.clone());
                (registration, None)
            }
        }
    }

    /// Takes out the registration of memory that ends now, and pins the record:
    /// [`Records::end_close`] follows its end. `None`: it was never shared.
    pub fn begin_unshare(&mut self, handle: CuMemHandle) -> Option<(Id, R)> {
        let id = *self.by_handle.get(&handle)?;
        let record = self.record(id);
        let share = record.share.take()?;
        record.pins += 1;
        Some((id, share))
    }

    /// Whether this process shares memory, of which it knows the number, by such a registration.
    pub fn is_shared(&self, id: Id, is_it: impl FnOnce(&R) -> bool) -> bool {
        self.by_id.get(&id).and_then(|record| record.share.as_ref()).is_some_and(is_it)
    }
}
