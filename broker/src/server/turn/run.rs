//! The loop: waits, notes what is ready, gives each ready client its turn, applies what the core
//! says. mio is edge-triggered: what is ready and not yet served is in a list here, so nothing is
//! forgotten and nobody starves. Must never block, but in the one wait.

use crate::clients::connection::{Blocked, client_id};
use crate::clock;
use crate::fds::jobs::Report;
use crate::kernel::is_readable;
use crate::limits::{READINESS_PER_WAKE, REPORTS_PER_CHORE, SOCKETS_PER_CHORE};
use crate::node::signals::Request;
use crate::readiness::Source;
use crate::server::parts::chores::Chore;
use crate::server::parts::{Ending, Server};
use crate::settings::assignment;
use fdbroker_core::{Comeback, DomainKey, Input, Note};
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::EventKind;
use mio::Events;
use mio::event::Event;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

impl Server {
    /// Serves until it is told to end.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(READINESS_PER_WAKE);
        let ending = loop {
            if let Some(ending) = self.ending {
                break ending;
            }
            let timeout = self.timeout();
            self.turn(&mut events, timeout)?;
        };
        self.manager.say_stopping("ending");
        if ending == Ending::Asked && self.manager.has_store() {
            match self.hand_to_store() {
                Ok(()) => return Ok(()),
                Err(error) => log::error!("clients do not go on after a restart: {error}"),
            }
        }
        if ending != Ending::HandedOver {
            self.log_lost_objects();
            self.say_goodbye();
            self.remove_places();
        }
        Ok(())
    }

    /// Waits until there is a lane, by which clients are let in.
    ///
    /// # Errors
    /// There can be no process for it.
    pub fn start_first_lane(&mut self) -> io::Result<()> {
        self.fds.closers().start_first()
    }

    /// Says that clients can connect.
    pub fn say_ready(&mut self) {
        let (summary, core) = (self.settings.summary(), &self.settings.core);
        log::info!(
            "{summary} {} (node cap {} fds, table {} fds, {} clients)",
            assignment("FDBROKER_ADMIN_SOCKET", &self.settings.admin_socket),
            core.node.fds,
            self.settings.table_fds,
            core.max_clients,
        );
        self.manager.say_ready(&summary);
        self.tell_of(&Note::of_node(EventKind::Started));
    }

    /// Says what kept objects end with this broker, if any do: its log is the only place where that
    /// can be read afterwards.
    fn log_lost_objects(&self) {
        let now = |resource| self.core.totals().usage(resource).0;
        let groups = now(Resource::KeptFds);
        if groups == 0 || self.kept.is_there() {
            return;
        }
        let bytes = now(Resource::KeptBytes) + now(Resource::KeptGpuBytes);
        let pinned = now(Resource::PermanentBytes);
        // What a job has put ends with the job: `fdbroker run` shows warnings.
        log::info!(
            "kept objects end with this broker: {groups} groups of {bytes} bytes, {pinned} bytes of them pinned; what \
             keeps them is a broker that takes over (--takeover), or a service manager that stores fds"
        );
    }

    /// Says that it has ended, and what there was to do at most.
    pub fn log_end(&self) {
        let (visited, bound) = fdbroker_core::work::most();
        log::info!(
            "ended; clients connected: {}; longest wake {} us, most records visited in a step {visited} of {bound}",
            self.connections.len(),
            self.waits.longest_wake_us(),
        );
    }

    /// Waits once, and does one wake's work.
    pub fn turn(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            // What was ready stays ready.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        self.now = clock::now();
        self.calls.begin_wake(self.now);
        for event in events.iter() {
            self.note(event);
        }
        self.wake();
        self.waits.note_wake(self.now);
        Ok(())
    }

    /// One wake's work: a long turn of a client, or a chore, or a few short turns and a chore. A
    /// client waits for no more than these.
    fn wake(&mut self) {
        self.fds.set_now(self.now);
        self.take_back_users();
        if clock::is_due(self.waiting.due(), self.now) {
            self.resume_paused();
        }
        self.tell_most_granted();
        if self.schedule.begin_wake() {
            self.serve_ready();
        }
        if self.schedule.begin_chore(self.connections.turns().is_empty()) {
            self.do_a_chore();
        }
        self.trim.note_names(self.core.now_in_node(Resource::ObjectNames), self.now);
        self.trim.run(self.now);
        self.expire_handshakes();
        self.note_debts();
        self.kept.drop_urgent(&mut self.fds);
        self.fds.flush();
        self.watch_lanes();
        if let Some((index, format)) = self.admin.take_takeover() {
            self.hand_over(index, format);
        }
        self.manager.tell(self.now);
    }

    /// One of the chores that have something to do, in turn.
    fn do_a_chore(&mut self) {
        if let Some(chore) = self.schedule.next_chore(|chore| self.is_waiting(chore)) {
            self.schedule.begin(chore);
            self.do_chore(chore);
        }
    }

    /// Whether there is something to do for it.
    fn is_waiting(&self, chore: Chore) -> bool {
        let is_due = |due| clock::is_due(due, self.now);
        match chore {
            Chore::Reports => self.fds.is_reported(),
            Chore::Core => is_due(self.core.poll_timeout()),
            Chore::InFlight => is_due(self.in_flight.due()),
            Chore::Files => is_due(self.fds.files_due()),
            Chore::Events => self.connections.eventful() > 0,
            Chore::Admins => {
                let may_turn_away = self.fds.closing().may_turn_away();
                self.admin.is_ready(may_turn_away) || is_due(self.admin.room_at())
            }
            Chore::Sockets => self.fds.is_retiring(),
            Chore::Kept => is_due(self.kept.due()),
            // The number of an ended client goes to no new one before its sockets are closed: their
            // events name it.
            Chore::Accept => {
                (self.door.is_due(self.now) || self.connections.lobby.is_ready())
                    && !self.fds.is_retiring()
                    && self.fds.closing().may_turn_away()
            }
        }
    }

    fn do_chore(&mut self, chore: Chore) {
        match chore {
            Chore::Reports => self.take_reports(),
            Chore::Core => self.poll_core(),
            Chore::InFlight => self.sweep_in_flight(),
            Chore::Files => self.measure_files(),
            Chore::Events => self.send_events(),
            Chore::Admins => self.serve_admins(),
            Chore::Sockets => self.retire_sockets(SOCKETS_PER_CHORE),
            Chore::Kept => {
                self.kept.work(&self.manager, &self.core, &mut self.fds, self.now);
            }
            Chore::Accept => {
                self.meet_callers();
                self.accept_clients();
            }
        }
    }

    fn poll_core(&mut self) {
        let mut effects = self.feedback.take_list();
        self.core.poll(self.now, &mut effects);
        self.note_comeback();
        self.settle(effects);
    }

    /// Says once what has become of all that was live before a crash.
    fn note_comeback(&mut self) {
        let Some(comeback) = self.core.take_comeback() else { return };
        let Comeback { named, without_owner, not_recallable, not_named } = comeback;
        let lost = comeback.lost();
        let level = if lost > 0 { log::Level::Warn } else { log::Level::Info };
        let pinned = self.core.now_in_node(Resource::PinnedBytes);
        log::log!(
            level,
            "the broker before was killed: {named} of its allocations were named again or kept, {lost} are lost \
             ({without_owner} whose owners have ended, {not_recallable} that cannot be exported again, \
             {not_named} that their owners did not name in time); clients still have {pinned} bytes of what has ended"
        );
    }

    /// Tells the core what some of the memfds that are held pin now. All are looked at in a round.
    fn measure_files(&mut self) {
        let held = self.core.totals().gauges.stored_fds;
        let measured = self.fds.look_at_files(held);
        if !measured.is_empty() {
            self.step(Input::Measured { files: &measured });
        }
    }

    /// Tells the core whose closes take long: nobody else's requests wait for those.
    fn watch_lanes(&mut self) {
        let news = self.fds.look_at_lanes();
        for lane in news.hung {
            self.journal.hang(lane.kind.job(), lane.uid, self.now);
            let domain = DomainKey { uid: lane.uid, ..DomainKey::NOBODYS };
            self.tell_of(&Note { domain, ..Note::of_node(EventKind::Hang) });
        }
        for (uid, slow) in news.slow {
            let domains = self.core.domains(0).map(|(_, domain, _)| domain.key);
            let own: Vec<_> = domains.filter(|domain| domain.uid == uid).collect();
            own.into_iter().for_each(|domain| self.step(Input::Slow { domain, slow }));
        }
    }

    fn take_reports(&mut self) {
        for _ in 0..REPORTS_PER_CHORE {
            let Some(report) = self.fds.next_report() else { break };
            match report {
                Report::Held(ticket) | Report::Arrived(ticket, _) => {
                    self.note_closed(ticket);
                }
                Report::Looked(uid, dmabufs) => {
                    dmabufs.into_iter().for_each(|device| self.classifier.learn(device));
                    self.go_on_with(uid);
                }
                Report::Retired(..) | Report::RetiredEvent(..) => self.note_closed_socket(report),
                Report::Dropped(uid) => self.note_dropped(uid),
                Report::Process(number, serial, process) => {
                    self.take_in(number, serial, process);
                    // It takes as long as all other reports of a chore together.
                    break;
                }
                Report::Caller(number, process) => self.meet_process(number, process),
                Report::Reread(found) => self.take_reloaded(found),
                Report::Carried(carrier) => self.kept.note_dropped(carrier),
                Report::Opened(number, opened) => self.note_opened(number, opened),
                Report::Replaced => self.note_replaced_closed(),
                Report::Refused(_) | Report::TurnedAway(_) | Report::Uncharged => {}
            }
        }
        self.resume_paused();
    }

    /// Turns of ready clients, as many as this wake has time for: one that has little to say leaves
    /// the rest to the next.
    fn serve_ready(&mut self) {
        while self.schedule.is_work_left() {
            let Some(client) = self.connections.next_turn() else { return };
            self.schedule.begin_turn();
            self.serve(client);
        }
    }

    /// Notes an event; what takes longer is done in the client's turn.
    fn note(&mut self, event: &Event) {
        match Source::from_token(event.token()) {
            Some(Source::Main(index)) => self.note_main(index, event),
            Some(Source::Event(index)) => self.note_event(index, event),
            Some(Source::Ahead(index)) => self.note_ahead(index),
            Some(Source::Caller(number)) => self.connections.lobby.note(number as u64),
            Some(Source::Process(index)) => self.note_process(index),
            Some(Source::Listener(number)) => self.door.note(number),
            Some(Source::AdminListener(number)) => self.admin.note_listener(number),
            Some(Source::Admin(index)) => self.admin.note(index),
            Some(Source::Closers) => self.fds.note_reports(),
            Some(Source::Signals) => self.note_signals(),
            Some(Source::Warden) => self.hear_warden(),
            Some(Source::UntilEof) => {
                // Nobody writes; only the end matters.
                if event.is_read_closed() || event.is_error() {
                    log::info!("ending: the other end of --until-eof is closed");
                    self.ending.get_or_insert(Ending::Alone);
                }
            }
            None => log::error!("an event with the unknown token {:?}", event.token()),
        }
    }

    fn note_main(&mut self, index: usize, event: &Event) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.lingering.is_some() {
            return self.finish_if_read(index);
        }
        // Nothing is watched before the facts about its process are there: then the event is of a
        // former connection of this number. A hello that is read so early is lost.
        if connection.socket.is_none() || !connection.is_known {
            return;
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.is_main_ready = true;
            connection.is_main_closed |= event.is_read_closed() || event.is_error();
        }
        match connection.blocked {
            // Its requests are not read, so its end would not be seen. Its turn ends it: many may
            // close at once.
            Some(_) if event.is_write_closed() => {
                connection.has_died = true;
                self.connections.enqueue(client_id(index));
            }
            Some(Blocked::Unread) if event.is_writable() => self.retry(client_id(index)),
            // Only the sweep can tell when others have read. The socket may be writable all the
            // time, so a try at each event would spin.
            Some(Blocked::InFlight) => {}
            _ => self.connections.enqueue(client_id(index)),
        }
    }

    fn note_event(&mut self, index: usize, event: &Event) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.event.is_none() {
            return;
        }
        connection.is_event_ready = true;
        if event.is_writable() && connection.pending_event.is_some() {
            self.flush_event(client_id(index));
        }
        self.connections.enqueue(client_id(index));
    }

    fn note_process(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let Some(pidfd) = &connection.pidfd else { return };
        // Asked again: the event may be of an earlier client of this number.
        if self.calls.time(connection.shares_as, 0, || is_readable(pidfd.as_fd())) {
            log::debug!("client {index} (pid {}) has died", connection.pid);
            connection.has_died = true;
            self.connections.enqueue(client_id(index));
        }
    }

    fn note_signals(&mut self) {
        while let Some(request) = self.node.next_request() {
            match request {
                Request::End => {
                    log::info!("ending: asked to by a signal");
                    self.ending.get_or_insert(Ending::Asked);
                }
                Request::Reload => self.reload(),
            }
        }
    }

    /// How long the wait may last; `None` = until something happens.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let is_work_left = !self.connections.turns().is_empty()
            || !self.returning.is_empty()
            || Chore::ALL.iter().any(|chore| self.is_waiting(*chore));
        if is_work_left || self.ending.is_some() {
            return Some(Duration::ZERO);
        }
        let due = [
            self.core.poll_timeout(),
            self.in_flight.due(),
            self.trim.due(),
            self.waiting.due(),
            self.calls.debts.due(),
            self.connections.handshakes().due(),
            self.connections.lobby.due(),
            self.door.due().filter(|_| self.fds.closing().may_turn_away()),
            self.admin.room_at(),
            self.manager.due(),
            self.kept.due(),
            self.fds.lanes_due(),
            self.fds.files_due(),
        ];
        let due = due.into_iter().flatten().min()?;
        Some(Duration::from_micros(due.0.saturating_sub(self.now.0)))
    }
}
