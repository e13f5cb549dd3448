//! What goes out to administrators and users that look: answers, events, the end. Must cost a grant
//! nothing while nobody watches.

use crate::admin::chosen::Chosen;
use crate::admin::comer::Comer;
use crate::admin::side::Sent;
use crate::admin::view::place_of;
use crate::admin::watch::{Watch, unix_us};
use crate::fds::jobs::Report;
use crate::fds::table::Retiring;
use crate::readiness::{Source, watch};
use crate::server::parts::Server;
use fdbroker_protocol::Kind;
use std::os::fd::OwnedFd;

impl Server {
    /// The administrator's connection `index` is told what happens from now on, after the events
    /// since `since_us`, if that is said; `false`: as many are as may be.
    pub(super) fn start_watch(
        &mut self,
        index: usize,
        chosen: Chosen,
        since_us: Option<u64>,
    ) -> bool {
        let Some(comer) = self.admin.comer(index) else { return true };
        // Before the past is looked at, which takes a while.
        let (may_watch, left) = self.admin.may_watch(index);
        self.retire_viewer(left);
        if !may_watch {
            return false;
        }
        let mut watch = Watch::new(comer.rights.sight, chosen);
        if let Some(since_us) = since_us {
            let past = self.past.iter();
            watch.begin_with(past.filter(|(event, _)| event.unix_us.get() >= since_us));
        }
        self.admin.set_watch(index, watch);
        self.note_watchers();
        true
    }

    /// Watchers have come or gone.
    pub(super) fn note_watchers(&mut self) {
        self.admin.count_watches();
    }

    /// One message of events for a watcher; `false`: the connection is to end.
    pub(super) fn send_events_to_watcher(&mut self, index: usize) -> bool {
        let watch = self.admin.watch(index);
        let mut events = watch.map(|watch| watch.take(unix_us())).unwrap_or_default();
        for event in &mut events {
            event.listener = place_of(&self.settings.listeners, event.listener.get());
        }
        self.writer.start(Kind::AdminEvents, 0).push(&events[..]).finish(events.len(), 0);
        self.send_admin(index)
    }

    /// Ends a connection. In an administrator's no fds can lie: the kernel refuses them, or drops
    /// them where they are not received.
    pub(crate) fn end_admin(&mut self, index: usize) {
        let ended = self.admin.end(index);
        self.retire_viewer(ended);
    }

    /// A lane closes what any user may have put there.
    pub(super) fn retire_viewer(&mut self, ended: Option<(OwnedFd, Comer)>) {
        let Some((socket, Comer { uid, payer: user, .. })) = ended else { return };
        let report = Report::TurnedAway(uid);
        self.fds.retire(Retiring { socket, uid, user, report, is_at_end: false });
    }

    /// Sends the message in the writer. `false`: the connection is to end.
    pub(super) fn send_admin(&mut self, index: usize) -> bool {
        let sent = self.admin.send(index, self.writer.written(), &mut self.calls);
        self.is_open_after(index, sent)
    }

    pub(super) fn is_open_after(&self, index: usize, sent: Sent) -> bool {
        match sent {
            Sent::Done => true,
            Sent::Kept => self.watch_admin(index),
            Sent::Gone => false,
        }
    }

    /// Watches for room while an answer waits for it.
    pub(super) fn watch_admin(&self, index: usize) -> bool {
        let Some(socket) = self.admin.socket(index) else { return false };
        watch(&self.poll, socket, Source::Admin(index), self.admin.is_pending(index)).is_ok()
    }
}
