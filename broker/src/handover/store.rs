//! A planned restart by the service manager: what its store is given at the end of one process, and
//! what comes out of it at the start of the next. Must never leave in the store what has been taken
//! out of it: it would pin memory for ever.

use super::HandoverError;
use super::restore::{Arrivals, Arrived};
use super::save::Way;
use crate::limits::MANAGER_PATIENCE;
use crate::manager::inherited::{Inherited, names};
use crate::manager::notify::Manager;
use crate::server::parts::Server;
use std::os::fd::AsFd;

impl Server {
    /// Gives everything to the service manager's store. On an error nothing is there.
    pub(crate) fn hand_to_store(&mut self) -> Result<(), HandoverError> {
        let parcel = self.pack(Way::Store)?;
        let give = |name: &str, fd| self.manager.store(name, fd, MANAGER_PATIENCE);
        let mut given = give(names::LEDGER, parcel.ledger.as_fd());
        for carrier in &parcel.carriers {
            given = given.and_then(|()| give(names::CARRIER, carrier.as_fd()));
        }
        let heard = given.map_err(HandoverError::Store).and_then(|()| {
            match self.manager.wait_until_heard() {
                true => Ok(()),
                false => Err(HandoverError::Unheard),
            }
        });
        match &heard {
            Ok(()) => {
                log::info!(
                    "{} clients and {} fds go on in the service manager's store",
                    parcel.clients,
                    parcel.held
                );
                self.leave_places();
            }
            Err(_) => forget(&self.manager),
        }
        heard
    }
}

/// What an earlier process gave to the store. A state that is refused is named in the log; what came
/// of it is in `left`, to be closed.
pub(crate) fn arrived(
    inherited: &mut Inherited,
    manager: &Manager,
    table_fds: u64,
    left: &mut Arrivals,
) -> Option<Arrived> {
    let carriers = std::mem::take(&mut inherited.carriers);
    let ledger = inherited.ledger.take();
    if ledger.is_none() && carriers.is_empty() {
        return None;
    }
    // Its copies of the carriers' ends: what lies in them is taken out below.
    forget(manager);
    let Some(ledger) = ledger else {
        left.add_carriers(carriers, table_fds);
        return None;
    };
    match Arrived::read(ledger, carriers, table_fds, left) {
        Ok(arrived) => Some(arrived),
        Err(refused) => {
            log_refused(&refused);
            None
        }
    }
}

/// One line on why clients begin anew.
pub(crate) fn log_refused(refused: &super::RefusedState) {
    log::error!(
        "the state of the broker before this one is not gone on with: {refused}; starting as after a crash"
    );
}

fn forget(manager: &Manager) {
    for name in [names::LEDGER, names::CARRIER] {
        if let Err(error) = manager.remove(name, MANAGER_PATIENCE) {
            log::error!("the store of the service manager keeps `{name}`: {error}");
        }
    }
}
