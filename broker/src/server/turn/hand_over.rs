//! This broker hands over to its successor: to the service manager's store, or to a broker that
//! asks. Must never let two brokers serve at once.

use crate::handover::HandoverError;
use crate::handover::ledger::FORMAT;
use crate::handover::packing::{Parcel, Way};
use crate::handover::store::forget;
use crate::handover::takeover::{expect, receive_step, say, send};
use crate::limits::MANAGER_PATIENCE;
use crate::manager::inherited::names;
use crate::server::parts::{Ending, Server};
use fdbroker_protocol::admin::{TakeoverOffer, step};
use fdbroker_protocol::{ErrorCode, Kind, Status};
use fdbroker_scm::RecvError;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Server {
    /// Gives everything to the service manager's store. On an error nothing is there.
    pub(super) fn hand_to_store(&mut self) -> Result<(), HandoverError> {
        let parcel = self.pack(Way::Store)?;
        let give = |name: &str, fd| self.manager.store(name, fd, MANAGER_PATIENCE);
        let mut given = give(names::LEDGER, parcel.ledger.as_fd());
        for carrier in &parcel.carriers {
            given = given.and_then(|()| give(names::CARRIER, carrier.as_fd()));
        }
        let heard = given.map_err(HandoverError::Store).and_then(|()| {
            if self.manager.wait_until_heard() { Ok(()) } else { Err(HandoverError::Unheard) }
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

impl Server {
    /// Hands over to the administrator's connection `index`, which speaks `format`; either it
    /// serves and this broker is to end, or everything goes on.
    pub(super) fn hand_over(&mut self, index: usize, format: u64) {
        let Some(socket) = self.admin.socket(index).and_then(|it| it.try_clone_to_owned().ok())
        else {
            return;
        };
        let has_store = self.manager.has_store();
        if let Err(status) = check_successor(&socket, format, has_store) {
            let bytes = self.writer.failed(1, status);
            let _ = fdbroker_scm::send(socket.as_fd(), bytes, &[]);
            return;
        }
        let result = self.pack(Way::Successor).map_err(|error| error.to_string());
        match result.and_then(|parcel| self.offer(socket.as_fd(), &parcel)) {
            Ok(()) => {
                log::info!("another broker has taken over; ending");
                self.leave_places();
                self.ending = Some(Ending::HandedOver);
            }
            Err(error) => {
                log::error!("no other broker has taken over, this one goes on: {error}");
                let bytes = self.writer.failed(1, ErrorCode::Internal.into());
                let _ = fdbroker_scm::send(socket.as_fd(), bytes, &[]);
                self.end_admin(index);
            }
        }
    }

    /// Waits for the successor, which itself waits for nothing. An error: this broker goes on.
    fn offer(&mut self, socket: BorrowedFd<'_>, parcel: &Parcel) -> Result<(), String> {
        let carriers = u32::try_from(parcel.carriers.len()).expect("bounded by MAX_CARRIERS");
        let offer = TakeoverOffer { carriers: carriers.into(), reserved: 0.into() };
        let mut fds = vec![parcel.ledger.as_fd()];
        fds.extend(parcel.carriers.iter().map(AsFd::as_fd));
        self.writer.start(Kind::AdminTakeoverOffer, 1).push(&offer);
        send(socket, self.writer.finish(0, fds.len()), &fds)?;
        expect(socket, step::READY)?;
        say(socket, step::GO)?;
        match receive_step(socket) {
            Ok(step::SERVING) => Ok(()),
            Err(RecvError::TimedOut) => {
                // It has everything and may serve at any moment.
                log::error!("the broker that takes over does not say that it serves");
                Ok(())
            }
            answer => {
                // It has died. It may have taken the liveness word.
                self.node.show_alive().map_err(|error| error.to_string())?;
                Err(format!("it has died ({answer:?})"))
            }
        }
    }
}

/// Whether a successor may take over that reads this format; `has_store`: the service manager
/// starts the next broker.
fn check_successor(socket: &OwnedFd, format: u64, has_store: bool) -> Result<(), Status> {
    let us = nix::unistd::geteuid().as_raw();
    let them = getsockopt(socket, PeerCredentials).map(|peer| peer.uid());
    if !them.is_ok_and(|uid| uid == us || uid == 0) {
        return Err(ErrorCode::NotPermitted.into());
    }
    if has_store {
        return Err(ErrorCode::Again.into());
    }
    if format == u64::from(FORMAT) {
        Ok(())
    } else {
        Err(Status::with_value(ErrorCode::NotSupported, FORMAT.into()))
    }
}
