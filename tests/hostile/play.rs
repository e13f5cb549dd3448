//! Plays a scenario: quiet phases and attacks in turn, newcomers while an attack is under way, and
//! the wait until everything is as before. Must never end a phase before the good client has
//! measured it.

use crate::attack::{ATTACKERS_PER_ROUND, Tally};
use crate::attacks::hung::HungServer;
use crate::daemon::{Counts, Daemon, Work};
use crate::growth::by_right_kib;
use crate::measure::{Pair, Phase, Pooled, median};
use crate::scenarios::Scenario;
use crate::support::peer::{Peer, Rank, Role};
use crate::users::User;
use fdbroker_protocol::ByCounter;
use std::time::{Duration, Instant};

/// How long the daemon may take to be as before: it waits one second for a hung close, and ten for
/// a hello.
const TIME_TO_SETTLE: Duration = Duration::from_secs(20);

/// How much the daemon's own memory may grow under attack: what clients park, and leases, are
/// bounded.
const MOST_PEAK_KIB: i64 = 48 * 1024;

/// How long the daemon may take to give memory back: it does so a second after clients have ended.
const TIME_TO_GIVE_BACK: Duration = Duration::from_secs(6);

/// How long one run is.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Rounds that count; one more goes before them.
    pub rounds: usize,
    pub phase: Duration,
    pub cpus: [usize; 2],
    /// Whether the times are judged. Else errors and leaks are, and other programs may run beside.
    pub is_timed: bool,
}

/// The result of a scenario.
#[derive(Default)]
pub struct Outcome {
    pub quiet: Vec<Phase>,
    pub attacked: Vec<Phase>,
    /// Of acquires with their releases, and of newcomers' joins: what is judged with --measure.
    pub grants: Pair,
    pub joins: Pair,
    /// Share of the time that the daemon was busy under attack.
    pub busy: f64,
    pub tally: Tally,
    /// What the daemon counted under attack.
    pub refusals: u64,
    pub evictions: u64,
    /// The most memory that it had then, beyond what it had before.
    pub peak_kib: i64,
    pub work: Work,
    pub errors: Vec<String>,
    pub leaks: Vec<String>,
    pub memory_kib: i64,
}

impl Outcome {
    /// What must not be, whatever else the processors do.
    pub fn wrong(&self) -> Vec<String> {
        [&self.errors[..], &self.leaks[..]].concat()
    }

    pub fn attack_p99_ns(&self) -> u64 {
        median(self.attacked.iter().map(|phase| phase.p99_ns))
    }

    /// Of the good client's p99 under attack to its quiet one.
    pub fn ratio(&self) -> f64 {
        let quiet = median(self.quiet.iter().map(|phase| phase.p99_ns));
        self.attack_p99_ns() as f64 / quiet.max(1) as f64
    }
}

/// One scenario from the start of the daemon to its end.
pub fn play(scenario: &Scenario, user: User, plan: Plan) -> Outcome {
    let mut outcome = Outcome::default();
    let daemon = Daemon::start(scenario.daemon, plan.cpus);
    let stage = Stage { scenario, user, plan, daemon: &daemon };
    if let Err(error) = stage.rounds(&mut outcome) {
        outcome.errors.push(format!("{error}; the daemon's log ends:\n{}", daemon.end_of_log()));
    }
    let _ = stage.settle(|counts| counts.uses.connections == 0);
    match daemon.end() {
        Ok(work) => outcome.work = work,
        Err(complaints) => outcome.errors.extend(complaints),
    }
    outcome
}

/// What stays the same for all rounds.
struct Stage<'a> {
    scenario: &'a Scenario,
    user: User,
    plan: Plan,
    daemon: &'a Daemon,
}

/// An attack under way. The fields end in their order: first the hung server, because its clients
/// cannot end while a call of theirs hangs.
struct Siege {
    _hung: Option<HungServer>,
    attackers: Vec<Peer>,
}

impl Siege {
    /// The attackers, who can end now.
    fn lifted(self) -> Vec<Peer> {
        self.attackers
    }
}

impl Stage<'_> {
    fn rounds(&self, outcome: &mut Outcome) -> Result<(), String> {
        let mut good = self.guest("good", User::Good)?;
        expect_ok(good.ask("touch")?)?;
        good.ask("measure 50 warm")?;
        expect_ok(good.ask("touch")?)?;
        let before = self.settled_counts();
        let memory = self.daemon.memory_kib();
        let deposits = self.daemon.counters().deposits;
        let mut busy = Duration::ZERO;
        for round in 0..=self.plan.rounds {
            // The first round warms up: its times do not count, but everything must be as before
            // after it.
            let is_measured = round > 0;
            let phase = if is_measured { self.plan.phase } else { self.plan.phase / 2 };
            // Where times are not judged, one quiet phase tells a standstill.
            if is_measured || self.plan.is_timed {
                let quiet = self.quiet(&mut good, phase, round)?;
                note_errors(&quiet, outcome);
                outcome.quiet.extend(is_measured.then_some(quiet));
            }
            let busy_before = self.daemon.busy();
            let attacked = self.attacked(&mut good, phase, round, memory, outcome)?;
            busy += self.daemon.busy().saturating_sub(busy_before);
            note_errors(&attacked, outcome);
            outcome.attacked.extend(is_measured.then_some(attacked));
            expect_ok(good.ask("touch")?)?;
            let is_as_before = |counts: &Counts| match self.scenario.is_crowded {
                true => counts.without_held() == before.without_held(),
                false => counts.is_as(before),
            };
            if let Err(counts) = self.settle(is_as_before) {
                outcome.leaks.push(difference(&before, &counts));
                return Ok(());
            }
        }
        outcome.busy =
            busy.as_secs_f64() / (self.plan.phase.as_secs_f64() * (self.plan.rounds as f64 + 0.5));
        let mut pair = |name: &str| -> Result<Pair, String> {
            let mut pooled = |pool: &str| {
                let line = good.ask(&format!("pooled {pool}{name}"))?;
                Pooled::parse(&line).ok_or(line)
            };
            Ok(Pair { quiet: pooled("quiet")?, attack: pooled("attack")? })
        };
        (outcome.grants, outcome.joins) = (pair("")?, pair("-joins")?);
        self.judge(outcome, memory, deposits);
        Ok(())
    }

    /// What the attackers got, and the memory that has not come back. `memory`, `deposits`: what
    /// there were before.
    fn judge(&self, outcome: &mut Outcome, memory: i64, deposits: u64) {
        let users = if self.scenario.own_users { self.scenario.attackers.into() } else { 1 };
        let by_right = by_right_kib(self.daemon.counters().deposits - deposits, users);
        let most = self.scenario.slack_kib + by_right;
        let until = Instant::now() + TIME_TO_GIVE_BACK;
        loop {
            outcome.memory_kib = self.daemon.memory_kib() - memory;
            if outcome.memory_kib <= most {
                break;
            }
            if Instant::now() > until {
                let more = outcome.memory_kib;
                outcome
                    .leaks
                    .push(format!("memory: {memory} KiB, and now {more} more; by right {most}"));
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let Tally { wrong, .. } = outcome.tally;
        if wrong > 0 {
            outcome.errors.push(format!("{wrong} wrong answers to the attackers"));
        }
        let peak = outcome.peak_kib;
        if peak > MOST_PEAK_KIB {
            outcome.errors.push(format!("the daemon's memory grew by {peak} KiB under attack"));
        }
    }

    /// The good client measures beside as many harmless processes as there are attackers.
    fn quiet(&self, good: &mut Peer, time: Duration, round: usize) -> Result<Phase, String> {
        let others = self.gang("", round, None)?;
        let phase = self.measured(good, time, pool("quiet", round))?;
        others.into_iter().try_for_each(|other| other.end().map(drop))?;
        Ok(phase)
    }

    /// The good client measures under attack, then newcomers come.
    fn attacked(
        &self,
        good: &mut Peer,
        time: Duration,
        round: usize,
        memory: i64,
        outcome: &mut Outcome,
    ) -> Result<Phase, String> {
        let hung = if self.scenario.needs_hung_file {
            Some(HungServer::start(
                self.daemon.dir(),
                self.plan.cpus[1],
                self.scenario.is_file_written,
            )?)
        } else {
            None
        };
        let victims = good.ask("handles")?;
        let counters = self.daemon.counters();
        let path = hung.as_ref().map(|server| format!("{} {}", server.path, self.user.uid()));
        let attackers = self.gang(self.scenario.name, round, Some((&path, &victims)))?;
        let siege = Siege { _hung: hung, attackers };
        self.daemon.place(self.plan.cpus);
        let phase = self.measured(good, time, pool("attack", round))?;
        if phase.count == 0 || phase.errors > 0 {
            // A daemon that hangs would not answer what is asked next either.
            let Phase { count, errors, texts, .. } = phase;
            return Err(format!("the good client: {errors} errors, {count} grants: {texts}"));
        }
        if self.user != User::Good {
            let newcomer = |error| format!("a newcomer: {error}");
            expect_ok(good.ask(self.scenario.newcomer)?).map_err(newcomer)?;
        }
        for number in 0..self.scenario.newcomers {
            let newcomer = |error| format!("a newcomer of another user: {error}");
            let mut guest = self.guest("good", User::Newcomer(number)).map_err(newcomer)?;
            expect_ok(guest.ask("touch")?).map_err(newcomer)?;
        }
        outcome.peak_kib = outcome.peak_kib.max(self.daemon.memory_kib() - memory);
        self.note_counters(&counters, outcome);
        for attacker in siege.lifted() {
            let last = attacker.end()?;
            let tally = Tally::parse(&last).ok_or(last)?;
            outcome.tally.wrong += tally.wrong;
            // The first round does not count.
            outcome.tally.tries += if round > 0 { tally.tries } else { 0 };
        }
        Ok(phase)
    }

    /// What has been counted since.
    fn note_counters(&self, since: &ByCounter<u64>, outcome: &mut Outcome) {
        let now = self.daemon.counters();
        outcome.refusals += now.refusals - since.refusals;
        outcome.evictions += now.evictions - since.evictions;
        for counter in self.scenario.never {
            let more = now[*counter] - since[*counter];
            if more > 0 {
                outcome.errors.push(format!("{more} {counter} under attack: there may be none"));
            }
        }
    }

    /// The good client's grants for so long, then (with --measure) newcomers of its user for a
    /// quarter of that.
    fn measured(&self, good: &mut Peer, time: Duration, pool: &str) -> Result<Phase, String> {
        let mut phase = |verb: &str, time: Duration, pool: &str| {
            let line = good.ask(&format!("{verb} {} {pool}", time.as_millis()))?;
            Phase::parse(&line).ok_or(line)
        };
        let grants = phase("measure", time, pool)?;
        // What a user's own attack leaves for its newcomers is its own affair. And where nobody new
        // finds the socket, none comes.
        let may_join = self.user != User::Good && self.scenario.newcomer != "touch";
        if self.plan.is_timed && may_join {
            let joins = phase("joins", time / 4, &format!("{pool}-joins"))?;
            if joins.errors > 0 {
                return Err(format!("{} newcomers: {}", joins.errors, joins.texts));
            }
        }
        Ok(grants)
    }

    /// A process with the real library, connected.
    fn guest(&self, part: &'static str, user: User) -> Result<Peer, String> {
        let role = Role { part, user, cpu: self.plan.cpus[1], rank: Rank::Measured };
        let mut guest = Peer::start(role);
        expect_ok(guest.ask(&self.daemon.socket().display().to_string())?)?;
        Ok(guest)
    }

    /// Starts the attackers, or with no name as many harmless processes, and waits until they are
    /// under way. `told`: the file of a hung server, and the good client's handles.
    fn gang(
        &self,
        name: &str,
        round: usize,
        told: Option<(&Option<String>, &str)>,
    ) -> Result<Vec<Peer>, String> {
        let (hung, victims) = told.unwrap_or((&None, ""));
        let start = |number: u32| {
            let user = match (hung, self.scenario.own_users) {
                // Root opens the file that only root may open; the attack then becomes the user
                // itself.
                (Some(_), _) => User::Root,
                (None, true) => User::Attacker(number),
                (None, false) => self.user,
            };
            let cpu = self.plan.cpus[1];
            let role = Role { part: "attacker", user, cpu, rank: Rank::Behind };
            let mut peer = Peer::start(role);
            peer.say(name);
            peer.say(&self.daemon.socket().display().to_string());
            peer.say(&(round as u64 * ATTACKERS_PER_ROUND + u64::from(number)).to_string());
            peer.say(hung.as_deref().unwrap_or_default());
            peer.say(victims);
            peer
        };
        let mut peers: Vec<Peer> = (0..self.scenario.attackers).map(start).collect();
        for peer in &mut peers {
            let line = peer.hear()?;
            if line != "under way" {
                return Err(format!("the attacker of {name:?} said {line:?}"));
            }
        }
        Ok(peers)
    }

    /// Waits until the counts are as wanted; returns the counts if they do not get there.
    fn settle(&self, is_good: impl Fn(&Counts) -> bool) -> Result<(), Box<Counts>> {
        let until = Instant::now() + TIME_TO_SETTLE;
        loop {
            let counts = self.daemon.counts();
            if is_good(&counts) {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Box::new(counts));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The counts, read until two readings agree.
    fn settled_counts(&self) -> Counts {
        let mut last = self.daemon.counts();
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(5));
            let now = self.daemon.counts();
            if now == last {
                break;
            }
            last = now;
        }
        last
    }
}

/// Where the times of a phase go: those of the first round count nowhere.
fn pool(name: &'static str, round: usize) -> &'static str {
    if round > 0 { name } else { "warm" }
}

fn expect_ok(answer: String) -> Result<(), String> {
    if answer == "OK" { Ok(()) } else { Err(format!("the good client: {answer}")) }
}

fn note_errors(phase: &Phase, outcome: &mut Outcome) {
    let Phase { errors, texts, .. } = phase;
    if *errors > 0 {
        outcome.errors.push(format!("{errors} errors of the good client: {texts}"));
    }
}

fn difference(before: &Counts, after: &Counts) -> String {
    let (before, after) = (format!("{before:?}"), format!("{after:?}"));
    let fields = before.split(", ").zip(after.split(", ")).filter(|(one, other)| one != other);
    let fields: Vec<String> = fields.map(|(one, other)| format!("{one} became {other}")).collect();
    format!("not as before: {}", fields.join(", "))
}
