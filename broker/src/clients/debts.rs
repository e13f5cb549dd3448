//! What users owe for socket calls that took long because of them: a message to or from a socket
//! that its user polls a million times, or has put a filter on, takes the loop milliseconds. Must
//! never read a clock, nor keep more than a bounded record of each user.
//!
//! A user pays for what its calls take of the loop's processor time beyond what is usual. It has a
//! debt when that is [`LONG_CALL_US`], at once or in many calls, and is away until the debt is
//! paid: nothing is read from it, nothing is sent to it. An example: a call of 55 ms by one user.
//! The first one may be a mishap, so the user is away for 20 times as long, 1.1 s. If it comes back
//! with the same, its second debt is 200 times as long, and put behind those of all others that
//! owe: a hundred users that do this have taken 5.5 s with their first calls and as much with their
//! second ones; from then on they have one part in 200 together, and each comes back every 18
//! minutes.
//!
//! Three long calls in separate minutes end the connections of a user, if most of the other users
//! that were served in such a minute had none: what the machine does to all is nobody's fault. Nor
//! is what is a hundredth of a user's own calls. Calls that carry fds do not count for it: they
//! wait for the kernel's collector of sockets, which whoever has sockets in flight keeps busy.
//!
//! A first long call is by the clock alone when another program has taken the processor away, so it
//! counts for nothing but a closer look: time counts as the processor's only as far as that is
//! certain. And a user of whom nothing is remembered has [`MOST_ALLOWED_US`] for what hits it by
//! chance: somebody else's timers can have an interrupt last 50 ms, in whosever call it comes. Such
//! interrupts hit the loop between its calls, too, where nobody but the machine can be long: what
//! they take there excuses [`EXCUSED_TIMES`] as much in calls, whosever they are. A user whose
//! timers do that on purpose, to have its calls excused, takes more of the loop with the timers.

use crate::clock;
use crate::limits::{
    DEBT_FACTOR, DEBT_FORGOTTEN, DEBTORS, EXCUSE_TIME, EXCUSED_TIMES, FIRST_DEBT_FACTOR,
    LONG_CALL_US, LONG_CALLS_APART, MOST_ALLOWED_US, MOST_LONG_CALLS, SHUT_OUT_TIME, SUSPECT_TIME,
    UNUSUAL_PART, USUAL_CALL_US, USUAL_CALL_US_PER_FD,
};
use fdbroker_core::{DomainKey, Now};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// A socket call that has returned.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub ended: Now,
    /// By the clock, which runs on while another program has the processor.
    pub took_us: u64,
    /// Of the processor's time, at least. Asked only for calls that took longer than usual.
    pub cpu_us: u64,
    pub fds: usize,
}

impl Call {
    /// Whether it took no longer than such calls do.
    pub fn is_usual(&self) -> bool {
        self.took_us <= USUAL_CALL_US + USUAL_CALL_US_PER_FD * self.fds as u64
    }
}

/// A user has a debt from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongCall {
    pub user: DomainKey,
    pub at: Now,
    pub us: u64,
    /// When it is paid.
    pub until: Now,
    /// None was remembered of the user.
    pub is_first: bool,
    /// Calls without fds were as long: what takes calls with fds long can be the kernel's collector
    /// of sockets, and then anybody's.
    pub is_its_own: bool,
}

/// What is remembered of a user.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Debtor {
    /// Time of usual calls that is not counted yet, and what may be beyond it.
    usual_us: u64,
    allowed_us: u64,
    /// What calls took beyond that since the last debt, by the clock and of the processor's time.
    beyond_us: u64,
    beyond_cpu_us: u64,
    /// The same of calls without fds.
    #[serde(skip)]
    own_cpu_us: u64,
    /// When a call was not usual for the last time.
    seen: Now,
    pub(crate) last_long: Option<Now>,
    pub(crate) away_until: Option<Now>,
    shut_out_until: Option<Now>,
    /// Long calls that count, and the last one.
    pub(crate) counted: u32,
    pub(crate) last_counted: Option<Now>,
}

impl Debtor {
    fn is_away(&self) -> bool {
        self.away_until.is_some() || self.shut_out_until.is_some()
    }

    fn due(&self) -> Option<Now> {
        self.away_until.into_iter().chain(self.shut_out_until).min()
    }
}

/// The debts for a successor, whose clock is the same.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedDebts {
    paid_at: Now,
    long_calls: u64,
    pub(crate) users: Vec<(DomainKey, Debtor)>,
}

#[derive(Debug, Default)]
pub struct Debts {
    /// In a broker of one user nobody else has to wait.
    is_shared: bool,
    users: FxHashMap<DomainKey, Debtor>,
    /// When the debts of all are paid, one after the other.
    paid_at: Now,
    /// Until then the processor's time is to be known.
    suspects_until: Now,
    due: Option<Now>,
    long_calls: u64,
    news: Vec<LongCall>,
    /// Time in calls that is nobody's, as interrupts take as much between them, and until when.
    excused: (u64, Now),
    /// What a user of whom nothing is remembered may be beyond.
    first_allowed_us: u64,
}

impl Debts {
    /// Nobody owes anything. `is_shared`: by several users; else nobody ever will.
    pub fn new(is_shared: bool) -> Self {
        Debts { is_shared, first_allowed_us: MOST_ALLOWED_US, ..Debts::default() }
    }

    /// The same, in which nobody may be beyond what is usual at first.
    #[cfg(test)]
    pub fn strict() -> Self {
        Debts { first_allowed_us: 0, ..Debts::new(true) }
    }

    /// Whether nothing is remembered of anybody.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether the processor's time is to be known as exactly as can be.
    pub fn has_suspects(&self, now: Now) -> bool {
        now < self.suspects_until
    }

    /// Whether nothing is read from the user and nothing sent to it.
    pub fn is_away(&self, user: DomainKey) -> bool {
        // Nearly always empty: then nothing is hashed.
        !self.users.is_empty() && self.users.get(&user).is_some_and(Debtor::is_away)
    }

    /// Whether the user has had a long call: its sockets may be dear to close, too.
    pub fn has_owed(&self, user: DomainKey) -> bool {
        !self.users.is_empty() && self.users.get(&user).is_some_and(|it| it.last_long.is_some())
    }

    /// Until when the user gets no connection.
    pub fn shut_out_until(&self, user: DomainKey) -> Option<Now> {
        self.users.get(&user)?.shut_out_until
    }

    /// Long calls so far, and users that are away.
    pub fn counts(&self) -> (u64, u64) {
        let away = self.users.values().filter(|it| it.is_away()).count();
        (self.long_calls, away as u64)
    }

    /// The processor's time between calls in which the loop was held up: by interrupts.
    pub fn excuse(&mut self, us: u64, now: Now) {
        let excused_us = self.excused_us(now).saturating_add(us.saturating_mul(EXCUSED_TIMES));
        self.excused = (excused_us, clock::after(now, EXCUSE_TIME));
    }

    fn excused_us(&self, now: Now) -> u64 {
        if now < self.excused.1 { self.excused.0 } else { 0 }
    }

    /// Charges a call to its peer.
    pub fn note(&mut self, user: DomainKey, call: &Call) {
        if !self.is_shared || user == DomainKey::NOBODYS {
            return;
        }
        if call.is_usual() {
            if let Some(known) = self.users.get_mut(&user) {
                known.usual_us += call.took_us;
            }
            return;
        }
        let usual = USUAL_CALL_US + USUAL_CALL_US_PER_FD * call.fds as u64;
        let beyond_us = call.took_us - usual;
        let beyond_cpu_us = call.cpu_us.min(call.took_us).saturating_sub(usual);
        let excused_us = beyond_cpu_us.min(self.excused_us(call.ended));
        self.excused.0 -= excused_us;
        let (beyond_us, beyond_cpu_us) = (beyond_us - excused_us, beyond_cpu_us - excused_us);
        let known = self.entry(user);
        known.seen = call.ended;
        let allowed_us = known.allowed_us + known.usual_us / UNUSUAL_PART;
        known.usual_us %= UNUSUAL_PART;
        known.allowed_us = allowed_us.min(MOST_ALLOWED_US);
        known.beyond_us += beyond_us.saturating_sub(known.allowed_us);
        let counted_us = beyond_cpu_us.saturating_sub(known.allowed_us);
        known.beyond_cpu_us += counted_us;
        known.own_cpu_us += if call.fds == 0 { counted_us } else { 0 };
        known.allowed_us = known.allowed_us.saturating_sub(beyond_cpu_us);
        if known.beyond_cpu_us >= LONG_CALL_US {
            let us = std::mem::take(&mut known.beyond_cpu_us);
            known.beyond_us = 0;
            let is_its_own = std::mem::take(&mut known.own_cpu_us) >= LONG_CALL_US;
            self.owe(user, us, is_its_own, call.ended);
        } else if known.beyond_us >= LONG_CALL_US {
            known.beyond_us = 0;
            self.suspects_until = clock::after(call.ended, SUSPECT_TIME);
        }
    }

    /// The record of a user. If there are too many, one that matters least goes.
    fn entry(&mut self, user: DomainKey) -> &mut Debtor {
        if self.users.len() >= DEBTORS && !self.users.contains_key(&user) {
            let matters =
                |(_, it): &(&DomainKey, &Debtor)| (it.is_away(), it.last_long.is_some(), it.seen);
            let least = self.users.iter().min_by_key(matters).map(|(user, _)| *user);
            least.and_then(|least| self.users.remove(&least));
        }
        // It has had usual calls before: an interrupt that hits it is no reason to put it away.
        let allowed_us = self.first_allowed_us;
        self.users.entry(user).or_insert_with(|| Debtor { allowed_us, ..Debtor::default() })
    }

    fn owe(&mut self, user: DomainKey, us: u64, is_its_own: bool, now: Now) {
        self.long_calls = self.long_calls.saturating_add(1);
        let time_us = us.saturating_mul(DEBT_FACTOR);
        self.paid_at = Now(self.paid_at.max(now).0.saturating_add(time_us));
        let paid_at = self.paid_at;
        let Some(known) = self.users.get_mut(&user) else { return };
        let is_first = known.last_long.is_none_or(|last| clock::after(last, DEBT_FORGOTTEN) < now);
        if is_first {
            (known.counted, known.last_counted) = (0, None);
        }
        let first_us = us.saturating_mul(FIRST_DEBT_FACTOR);
        let until = if is_first { Now(now.0.saturating_add(first_us)) } else { paid_at };
        let until = known.away_until.map_or(until, |former| former.max(until));
        (known.last_long, known.away_until) = (Some(now), Some(until));
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
        self.news.push(LongCall { user, at: now, us, until, is_first, is_its_own });
    }

    /// A debt that nobody has heard of yet.
    pub fn take_news(&mut self) -> Option<LongCall> {
        self.news.pop()
    }

    /// Whether the connections of the user are to end for this call. `served`: the users that were
    /// served in the minute before.
    pub fn is_too_much(
        &mut self,
        call: &LongCall,
        served: impl Iterator<Item = DomainKey>,
    ) -> bool {
        let apart = u64::try_from(LONG_CALLS_APART.as_micros()).unwrap_or(u64::MAX);
        let since = Now(call.at.0.saturating_sub(apart));
        let (mut others, mut alike) = (0, 0);
        for user in served.filter(|user| *user != call.user) {
            others += 1;
            let last = self.users.get(&user).and_then(|it| it.last_long);
            alike += usize::from(last.is_some_and(|last| last >= since));
        }
        let Some(known) = self.users.get_mut(&call.user) else { return false };
        let is_apart = known.last_counted.is_none_or(|last| last <= since);
        if !call.is_its_own || !is_apart || 2 * alike >= others {
            return false;
        }
        (known.counted, known.last_counted) = (known.counted + 1, Some(call.at));
        if known.counted < MOST_LONG_CALLS {
            return false;
        }
        known.counted = MOST_LONG_CALLS - 1;
        let until = clock::after(call.at, SHUT_OUT_TIME);
        known.shut_out_until = Some(until);
        self.find_due();
        true
    }

    /// When a user comes back.
    pub fn due(&self) -> Option<Now> {
        self.due
    }

    /// The users that are away no longer.
    pub fn take_back(&mut self, now: Now) -> Vec<DomainKey> {
        let mut back = Vec::new();
        for (user, known) in &mut self.users {
            if clock::is_due(known.due(), now) {
                known.away_until.take_if(|until| *until <= now);
                known.shut_out_until.take_if(|until| *until <= now);
                back.extend((!known.is_away()).then_some(*user));
            }
        }
        self.find_due();
        // They are looked at closely at first.
        self.suspects_until = self.suspects_until.max(clock::after(now, SUSPECT_TIME));
        back
    }

    fn find_due(&mut self) {
        self.due = self.users.values().filter_map(Debtor::due).min();
    }

    /// What a successor goes on with.
    pub fn save(&self) -> SavedDebts {
        let owed = self.users.iter().filter(|(_, it)| it.last_long.is_some());
        let users = owed.map(|(user, it)| (*user, *it)).collect();
        SavedDebts { paid_at: self.paid_at, long_calls: self.long_calls, users }
    }

    /// Goes on with the debts of another broker.
    pub fn restore(&mut self, saved: &SavedDebts) {
        (self.paid_at, self.long_calls) = (saved.paid_at, saved.long_calls);
        self.users.extend(saved.users.iter().take(DEBTORS).copied());
        self.find_due();
    }
}

#[cfg(test)]
#[path = "../../tests/unit/debts.rs"]
mod tests;
