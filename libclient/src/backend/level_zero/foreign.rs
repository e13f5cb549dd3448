//! Memory that somebody else in this process allocated, by address. Must never leave the driver's
//! own fd of it open, where the driver can close it.

use super::context::Context;
use super::device::check_window;
use super::fd;
use crate::api::client::Client;
use crate::backend::device::{ByAddress, Place};
use crate::deposit::{Deposit, DriverData};
use crate::error::Error;
use level_zero_sys::without_exporter;
use std::os::fd::{AsFd, OwnedFd};

impl ByAddress for Context {
    fn find(&self, at: u64) -> Result<Place, Error> {
        self.range(at)
    }

    fn export_at(&self, base: u64) -> Result<OwnedFd, Error> {
        Ok(self.export_any(base)?.fd)
    }

    fn complete(&self, client: &Client, place: Place, deposit: &mut Deposit) -> Result<(), Error> {
        check_window(client)?;
        // What the fd is must be known before the one that is sent is made.
        let first = self.export_any(place.base)?;
        deposit.facts.kind = fd::kind_of(first.fd.as_fd());
        deposit.driver_data = DriverData::new(&without_exporter(first.handle))?;
        // In host memory those bytes have had other uses, and it is in no pool.
        deposit.facts.fd_offset = if place.is_device { fd::offset_in(&first.handle) } else { 0 };
        Ok(())
    }
}
