//! A planned restart by the service manager: one process gives its state to the store, and the next
//! one takes it out. Must never leave in the store what has been taken out of it: that would pin
//! memory for ever.

use crate::handover::arrived::{Arrivals, Arrived};
use crate::limits::MANAGER_PATIENCE;
use crate::manager::inherited::{Inherited, names};
use crate::manager::notify::Manager;

/// What an earlier process gave to the store. A state that is refused is named in the log; what
/// came of it is in `left`, to be closed.
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

/// Has the store drop a handed-over state.
pub(crate) fn forget(manager: &Manager) {
    for name in [names::LEDGER, names::CARRIER] {
        if let Err(error) = manager.remove(name, MANAGER_PATIENCE) {
            log::error!("the store of the service manager keeps `{name}`: {error}");
        }
    }
}
