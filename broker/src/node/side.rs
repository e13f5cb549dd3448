//! What the broker has of its node while it serves. Must never give its lock away before all else
//! has ended.

use crate::node::generation_page::GenerationPage;
use crate::node::lock::DirectoryLock;
use crate::node::mark::Mark;
use crate::node::namespace::Namespace;
use crate::node::signals::{Request, Signals};
use fdbroker_core::Now;
use fdbroker_protocol::NodeKey;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The broker's node and key, for replies.
#[derive(Debug)]
pub struct Identity {
    /// Number of the node, which handles name.
    pub node: u64,
    /// Seals and opens handles.
    pub key: NodeKey,
    /// When this process began to serve.
    pub began: Now,
}

pub struct NodeSide {
    identity: Identity,
    page: GenerationPage,
    namespace: Namespace,
    signals: Signals,
    until_eof: Option<OwnedFd>,
    /// The last field: released when the others have ended.
    lock: DirectoryLock,
}

impl NodeSide {
    /// From the start on.
    pub fn new(
        identity: Identity,
        page: GenerationPage,
        signals: Signals,
        until_eof: Option<OwnedFd>,
        lock: DirectoryLock,
    ) -> Self {
        let namespace = Namespace::of_this_process();
        NodeSide { identity, page, namespace, signals, until_eof, lock }
    }

    /// Gives up key and page for others.
    pub fn begin_anew(&mut self, key: NodeKey, page: GenerationPage) {
        (self.identity.key, self.page) = (key, page);
    }

    /// The broker's node and key.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The generation page, and the records beside it.
    pub fn page(&self) -> &GenerationPage {
        &self.page
    }

    /// As for [`GenerationPage::show_alive`].
    ///
    /// # Errors
    /// When the page's file cannot be written.
    pub fn show_alive(&mut self) -> io::Result<()> {
        self.page.show_alive()
    }

    /// As for [`DirectoryLock::note`].
    pub fn note_sockets(&self, sockets: &[Mark]) {
        self.lock.note(sockets);
    }

    /// Which ids stand for users that are not known here.
    pub fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// The fd that tells of signals.
    pub fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// What the next signal asks for. After one that asks for the end, a further one ends the
    /// process at once.
    pub fn next_request(&self) -> Option<Request> {
        let request = self.signals.read()?;
        if request == Request::End {
            self.signals.unblock();
        }
        Some(request)
    }

    /// The fd whose end is the broker's.
    pub fn until_eof(&self) -> Option<BorrowedFd<'_>> {
        self.until_eof.as_ref().map(AsFd::as_fd)
    }

    /// The lock of the administrator's directory.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}
