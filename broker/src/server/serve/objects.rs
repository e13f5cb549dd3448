//! Requests about named objects: hands them to the core. Before the core seals a group of host
//! memory, the loop looks whether that is sealed, and a lane opens it for readers. Must never add a
//! seal, nor answer a seal before readers can be given the memory, nor seal a group that outlives
//! this broker whose fd lies in no carrier.

use crate::clients::connection::index;
use crate::fds::classify::{self, Sealed};
use crate::kernel;
use crate::limits::WORK_PER_PAGE;
use crate::messages::objects::{self, Asked, Wish};
use crate::server::parts::Server;
use crate::server::parts::seals::Seal;
use fdbroker_core::{Body, ClientId, Core, GroupId, Input, Making, Now, RequestId, Touch};
use fdbroker_protocol::{ErrorCode, MemoryKind, Status, Writer};
use std::os::fd::RawFd;

impl Server {
    /// A request about objects.
    pub(super) fn serve_objects(&mut self, client: ClientId, asked: &Asked<'_>) {
        let (request, of_job) = (asked.request, asked.of_job);
        if asked.is_unknown {
            self.reply_failed(client, request, ErrorCode::Protocol.into());
            return self.settle_queues();
        }
        let body = match &asked.wish {
            Wish::Add(group, objects) => Body::AddObjects { group: *group, objects },
            Wish::Abort(group) => Body::AbortObjects { group: *group },
            Wish::Get(names, deadline) => Body::GetObjects { of_job, names, deadline: *deadline },
            Wish::Delete(objects) => Body::DeleteObjects { of_job, objects },
            Wish::Watch(prefix, wanted) => {
                Body::WatchObjects { of_job, prefix, is_wanted: *wanted }
            }
            Wish::Create(group) => {
                self.step(Body::CreateObjects { create: &group.create() }.by(client, request));
                return self.refuse_rest(client);
            }
            Wish::Touch(names, keep_us, pin) => {
                let touch = Touch { of_job, keep_us: *keep_us, pin: *pin, names };
                let groups = self.core.groups_to_keep(client, &touch);
                match self.kept.begin_keep(&groups, &self.core, &self.fds) {
                    Ok(()) => self.step(Body::TouchObjects { touch: &touch }.by(client, request)),
                    Err(status) => {
                        self.reply_failed(client, request, status);
                        self.settle_queues();
                    }
                }
                return self.kept.end_keep();
            }
            Wish::Seal(group) => return self.seal(client, request, *group),
            Wish::Stat(names) => {
                return self.answer_page(client, request, |writer, core, at| {
                    objects::write_stat(writer, core, client, at, (of_job, names)).map(drop)
                });
            }
            Wish::List(prefix, after) => {
                return self.answer_page(client, request, |writer, core, at| {
                    objects::write_list(writer, core, client, at, (of_job, prefix, after)).map(drop)
                });
            }
        };
        self.step(body.by(client, request));
    }

    /// Answers with a page of objects. `write` gets what it needs to know beside the request, or
    /// says why there is none.
    fn answer_page(
        &mut self,
        client: ClientId,
        request: RequestId,
        write: impl FnOnce(&mut Writer, &Core, (RequestId, Now, bool)) -> Result<(), Status>,
    ) {
        let at = (request, self.now, !self.kept.is_there());
        let written = write(&mut self.writer, &self.core, at);
        self.schedule.spend(WORK_PER_PAGE);
        match written {
            Ok(()) => self.send_written(client),
            Err(status) => self.reply_failed(client, request, status),
        }
        self.settle_queues();
    }

    // --- seals -----------------------------------------------------------------------------------

    /// Has the core seal a group, once its memory can be given to readers.
    fn seal(&mut self, client: ClientId, request: RequestId, group: GroupId) {
        let checked = match self.look_at_memory(client, group) {
            Ok(Sealed::ForReaders) => Ok(()),
            Ok(Sealed::ForWriters) => return self.wait_for_readers(client, request, group),
            Ok(Sealed::Busy) => Err(ErrorCode::SealedBusy.into()),
            Ok(Sealed::Unsound) => Err(ErrorCode::Protocol.into()),
            Err(status) => Err(status),
        };
        self.seal_objects(client, request, group, checked);
    }

    /// Whether the memory of a group in the making can be given to readers. Of device memory nobody
    /// can know: its maker's word counts. The core says what is wrong with a group that the client
    /// does not make.
    fn look_at_memory(&mut self, client: ClientId, group: GroupId) -> Result<Sealed, Status> {
        let Some(making) = self.core.making_of(client, group) else {
            return Ok(Sealed::ForReaders);
        };
        let Making { allocation, kind, end } = making;
        if kind != MemoryKind::Memfd {
            return Ok(Sealed::ForReaders);
        }
        let fd = self.fds.held(allocation.slot).ok_or(Status::from(ErrorCode::Internal))?;
        let found = classify::look_at_seals(fd, end);
        // It was written to since it was deposited.
        if let Some(file) = classify::file_of(kind, fd) {
            self.step(Input::Measured { files: &[(allocation.slot, file.pinned_bytes)] });
        }
        Ok(found)
    }

    /// A seal waits until a lane has opened its memory; so does what its client says behind it.
    fn wait_for_readers(&mut self, client: ClientId, request: RequestId, group: GroupId) {
        let connection = &mut self.connections[index(client)];
        connection.waits_for_seal = true;
        let (serial, uid) = (connection.serial, connection.domain.uid);
        self.seals.wait(uid, Seal { client, serial, request, group });
        self.start_seals();
    }

    fn start_seals(&mut self) {
        while let Some((uid, seal)) = self.seals.next() {
            if !self.is_there(seal) {
                continue;
            }
            let making = self.core.making_of(seal.client, seal.group);
            let held = making.and_then(|making| self.fds.held(making.allocation.slot));
            match held.map(|fd| fd.try_clone_to_owned()) {
                Some(Ok(duplicate)) => {
                    let number = self.seals.begin(uid, seal);
                    self.fds.closers().open(duplicate, uid, number);
                }
                Some(Err(_)) => self.end_seal(seal, Err(ErrorCode::Again.into())),
                None if making.is_some() => self.end_seal(seal, Err(ErrorCode::Internal.into())),
                // The core says why not: its memory was revoked.
                None => self.end_seal(seal, Ok(())),
            }
        }
    }

    /// A lane has opened the memory of a seal for readers, or could not.
    pub(crate) fn note_opened(&mut self, number: u64, opened: Result<RawFd, i32>) {
        let opened = opened.and_then(|fd| kernel::adopt(fd).map_err(|_| libc::EBADF));
        let Some(seal) = self.seals.end(number).filter(|seal| self.is_there(*seal)) else {
            // Given up meanwhile, or its client has gone.
            if let Ok(fd) = opened {
                self.fds.close_replaced(fd);
                self.seals.note_replaced();
            }
            return self.start_seals();
        };
        let making = self.core.making_of(seal.client, seal.group);
        match (opened, making) {
            (Ok(fd), Some(Making { allocation, .. })) => {
                let uid = self.connections[index(seal.client)].domain.uid;
                if self.fds.replace_held(allocation.slot, fd, uid) {
                    self.seals.note_replaced();
                }
                self.end_seal(seal, Ok(()));
            }
            (Err(libc::EWOULDBLOCK), _) => {
                let what = "a seal is refused: somebody has a lease (F_SETLEASE) on its memory";
                self.log_bad_client(seal.client, &what);
                self.end_seal(seal, Err(ErrorCode::SealedBusy.into()));
            }
            // Its permissions forbid it: the maker has changed them.
            (Err(_), _) => self.end_seal(seal, Err(ErrorCode::NotPermitted.into())),
            (Ok(fd), None) => {
                self.fds.close_replaced(fd);
                self.seals.note_replaced();
                self.end_seal(seal, Ok(()));
            }
        }
        self.start_seals();
    }

    /// The fd that was held before a seal is closed.
    pub(crate) fn note_replaced_closed(&mut self) {
        self.seals.note_closed();
        self.start_seals();
    }

    /// Whether the client of a seal is still connected.
    fn is_there(&self, seal: Seal) -> bool {
        let connection = self.connections.find(seal.client, seal.serial);
        connection.is_some_and(|it| it.socket.is_some())
    }

    fn end_seal(&mut self, seal: Seal, checked: Result<(), Status>) {
        if !self.is_there(seal) {
            return;
        }
        let Seal { client, request, group, .. } = seal;
        self.seal_objects(client, request, group, checked);
        self.connections[index(client)].waits_for_seal = false;
        self.connections.enqueue(client);
    }

    /// Answers AGAIN to all seals that wait: a successor knows nothing of them.
    pub(crate) fn give_up_seals(&mut self) {
        for seal in self.seals.take_all() {
            self.end_seal(seal, Err(ErrorCode::Again.into()));
        }
    }

    // --- answers ---------------------------------------------------------------------------------

    /// Has the core seal a group; `checked`: what was found of its memory.
    pub(crate) fn seal_objects(
        &mut self,
        client: ClientId,
        request: RequestId,
        group: GroupId,
        checked: Result<(), Status>,
    ) {
        let begun = checked.and_then(|()| {
            let kept = self.core.group_to_keep(client, group);
            self.kept.begin_keep(kept.as_slice(), &self.core, &self.fds)
        });
        self.step(Body::SealObjects { group, checked: begun }.by(client, request));
        self.kept.end_keep();
    }
}
