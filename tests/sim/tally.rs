//! Counts the faults of a run by kind, and how often it checked each promise. A whole run fails if
//! a kind of fault never happened or a promise was never checked. Must never decide anything else.

use std::cell::Cell;

/// Makes an enum whose values have a name to print and an index to count by.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident: $($kind:ident = $text:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the printed text says what each is
        pub enum $name { $($kind,)* }

        impl $name {
            /// All of them, in the order they are printed.
            pub const ALL: &[$name] = &[$($name::$kind,)*];

            /// What is printed.
            pub const fn text(self) -> &'static str {
                match self { $($name::$kind => $text,)* }
            }
        }
    };
}

kinds! {
    /// Something that a broker must survive.
    Fault:
    DeathBeforeHello = "death before hello",
    DeathIdle = "death with nothing under way",
    DeathHolding = "death of a holder of leases",
    DeathParked = "death of a client that waits",
    DeathInRecall = "death of an owner that is asked",
    DeathOfAwaiter = "death of a client that waits for a recall",
    DeathInTeardown = "death while another is torn down",
    Silence = "silence",
    LateAnswer = "silence that ends late",
    RecallRefused = "recall refused",
    RecallLied = "recall answered with other memory",
    Uninvited = "fds that nobody asked for",
    SlowReader = "slow reader",
    Unsent = "send of a grant failed",
    NoReferences = "no send works for a while",
    LatePoll = "daemon late for its timer",
    Reordered = "message overtaken by another client's",
    SlowClose = "slow close",
    HungClose = "close that hangs",
    RefusedFd = "fd refused",
    HelloRefused = "hello refused",
    HelloWaits = "hello that waits",
    ConnectRefused = "connection refused",
    Expelled = "client expelled",
    Cancelled = "request cancelled",
    Forged = "forged or stale handle",
    AddressReused = "address used again",
    Restart = "planned restart",
    CapsChanged = "caps changed at run time",
    Draining = "account above a lowered cap",
    Administered = "act of the administrator",
    Crash = "broker killed",
    CrashInGrace = "broker killed while owners come back",
    OwnerDied = "owner died while no broker was there",
    Freed = "memory freed while no broker was there",
    EndedMeanwhile = "memory named as ended to the next broker",
    ReclaimIgnored = "reclaim ignored",
}

kinds! {
    /// What the broker promises: the numbered invariants, then what is built on them.
    Promise:
    Table = "1 broker table",
    Caps = "2 caps",
    Ledger = "3 ledger exact",
    OneFd = "4 one allocation, one fd",
    Eviction = "5 eviction and ends",
    Handles = "6 ended handles",
    Bounds = "7 bounds",
    NoHarm = "8 nobody harmed",
    Work = "9 bounded work",
    Shares = "10 shares",
    Order = "order of service",
    Deadlines = "deadlines",
    Reclaim = "reclaim, the most idle first",
    NoQuota = "NO_QUOTA true",
    Events = "events",
    Fds = "every fd accounted for",
    Lives = "nothing lost between lives",
    Objects = "objects: names, groups, waits",
}

/// Counts by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; MOST]);

/// More than there are faults or promises.
const MOST: usize = 64;

impl Default for Counts {
    fn default() -> Self {
        Counts([0; MOST])
    }
}

impl Counts {
    pub fn add(&mut self, index: usize, count: u64) {
        self.0[index] += count;
    }

    pub fn of(&self, index: usize) -> u64 {
        self.0[index]
    }

    /// Adds the counts of another run.
    pub fn add_all(&mut self, other: &Counts) {
        self.0.iter_mut().zip(other.0).for_each(|(to, from)| *to += from);
    }
}

/// How often each promise was checked. Checks that only read the model can count, too.
#[derive(Debug)]
pub struct Proofs([Cell<u64>; MOST]);

impl Proofs {
    /// The promise was checked so many times.
    pub fn count(&self, promise: Promise, checks: usize) {
        let count = &self.0[promise as usize];
        count.set(count.get() + checks as u64);
    }

    pub fn counts(&self) -> Counts {
        Counts(std::array::from_fn(|index| self.0[index].get()))
    }
}

impl Default for Proofs {
    fn default() -> Self {
        Proofs([const { Cell::new(0) }; MOST])
    }
}
