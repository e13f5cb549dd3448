//! The leases of a client: which are known to the broker, which wait to be declared, which were
//! refused. Must never lose a lease that was granted: it is given back, declared or known as
//! refused.

use crate::books::one_way::OneWay;
use fdbroker_protocol::message::{DeclareItem, declare_flags};
use fdbroker_protocol::{AllocationId, ErrorCode, HandlePrefix};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where a lease stands in the table, as long as it is not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseKey(usize);

/// What a lease reads of its place in the table, without the lock.
#[derive(Debug)]
pub(crate) struct Mark {
    number: AtomicU64,
    is_known: AtomicBool,
    is_refused: AtomicBool,
}

impl Mark {
    /// The broker's number, of the broker that has granted or taken it last.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Whether the broker of the page that is shown knows it: it does, or no page is shown. `false`
    /// is set before a page is shown to which it is not known, and `true` before one is shown to
    /// which it is.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Whether a broker has refused it: its number is that of the broker before, and may be another
    /// lease's by now.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }
}

/// Every lease that this client holds, whether the broker knows it or not.
#[derive(Debug, Default)]
pub(super) struct Leases {
    all: Slab<Held>,
    /// Those that wait to be declared; each once.
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct Held {
    mark: Arc<Mark>,
    id: AllocationId,
    /// What it was granted for. `None`: for the name of an object.
    handle: Option<HandlePrefix>,
    standing: Standing,
    /// The client has its fd.
    is_open: bool,
    /// Given back while it could not be said.
    is_dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Known,
    /// Its key is in [`Leases::waiting`].
    Waiting,
    /// Declared, open or not, and not answered.
    Declared {
        open: bool,
    },
    /// The broker knows nothing of it.
    Refused,
}

/// Leases to be declared in one message, and where they stand.
#[derive(Debug)]
pub(crate) struct Declaring {
    pub items: Vec<DeclareItem>,
    keys: Vec<usize>,
}

/// A lease that the broker has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedLease {
    pub id: AllocationId,
    /// The number that its holder knows.
    pub number: u64,
    pub code: ErrorCode,
}

impl Leases {
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Another broker: none is known. Those not refused before wait.
    pub fn begin(&mut self) {
        self.all.retain(|_, held| !held.is_dropped);
        self.waiting.clear();
        for (key, held) in &mut self.all {
            held.mark.is_known.store(false, Ordering::Release);
            if held.standing != Standing::Refused {
                held.standing = Standing::Waiting;
                self.waiting.push_back(key);
            }
        }
    }

    /// A lease just granted, its fd open. One that the broker of the moment does not know waits to
    /// be declared.
    pub fn enter(
        &mut self,
        number: u64,
        id: AllocationId,
        handle: Option<HandlePrefix>,
        is_known: bool,
    ) -> (LeaseKey, Arc<Mark>) {
        let (number, is_refused) = (number.into(), false.into());
        let mark = Arc::new(Mark { number, is_known: is_known.into(), is_refused });
        let standing = if is_known { Standing::Known } else { Standing::Waiting };
        let (of_table, is_open) = (Arc::clone(&mark), true);
        let held = Held { mark: of_table, id, handle, standing, is_open, is_dropped: false };
        let key = self.all.insert(held);
        self.waiting.extend((!is_known).then_some(key));
        (LeaseKey(key), mark)
    }

    /// What a lease was granted for.
    pub fn handle(&self, key: LeaseKey) -> Option<HandlePrefix> {
        self.all[key.0].handle
    }

    /// What all leases were granted for that are not given back; each allocation once.
    pub fn in_use(&self) -> Vec<HandlePrefix> {
        let held = self.all.iter().filter(|(_, held)| !held.is_dropped);
        let mut handles: Vec<HandlePrefix> = held.filter_map(|(_, held)| held.handle).collect();
        handles.sort_unstable_by_key(HandlePrefix::id);
        handles.dedup();
        handles
    }

    /// The memory is imported and the fd closed; the number to tell the broker, if it knows the
    /// lease.
    pub fn mapped(&mut self, key: LeaseKey) -> Option<u64> {
        let held = &mut self.all[key.0];
        held.is_open = false;
        (held.standing == Standing::Known).then(|| held.mark.number())
    }

    /// Its holder is done with it; the number to tell the broker, if it knows the lease. The key is
    /// void.
    pub fn released(&mut self, key: LeaseKey) -> Option<u64> {
        let held = &mut self.all[key.0];
        match held.standing {
            // Taken out when its turn or its answer comes.
            Standing::Waiting | Standing::Declared { .. } => {
                held.is_dropped = true;
                None
            }
            Standing::Known | Standing::Refused => {
                let held = self.all.remove(key.0);
                (held.standing == Standing::Known).then(|| held.mark.number())
            }
        }
    }

    /// Up to `most` leases to declare, in one message.
    pub fn take_waiting(&mut self, most: usize) -> Declaring {
        let mut declaring = Declaring { items: Vec::new(), keys: Vec::new() };
        while declaring.keys.len() < most {
            let Some(key) = self.waiting.pop_front() else { break };
            let held = &mut self.all[key];
            if held.is_dropped {
                self.all.remove(key);
                continue;
            }
            held.standing = Standing::Declared { open: held.is_open };
            let mut flags = if held.is_open { declare_flags::OPEN } else { 0 };
            let handle = held.handle.unwrap_or_else(|| {
                flags |= declare_flags::OBJECT;
                HandlePrefix::unsealed(held.id)
            });
            declaring.items.push(DeclareItem {
                handle: handle.into(),
                flags: flags.into(),
                reserved: 0.into(),
            });
            declaring.keys.push(key);
        }
        declaring
    }

    /// What is to be sent now that a declared lease has its new number.
    fn declared(&mut self, key: usize, number: u64) -> Option<OneWay> {
        let held = &mut self.all[key];
        if held.is_dropped {
            self.all.remove(key);
            return Some(OneWay::Released(number));
        }
        let said = std::mem::replace(&mut held.standing, Standing::Known);
        held.mark.number.store(number, Ordering::Release);
        held.mark.is_known.store(true, Ordering::Release);
        let was_open = said == Standing::Declared { open: true };
        (was_open && !held.is_open).then_some(OneWay::Mapped(number))
    }

    fn refused(&mut self, key: usize, code: ErrorCode) -> Option<RefusedLease> {
        let held = &mut self.all[key];
        if held.is_dropped {
            self.all.remove(key);
            return None;
        }
        held.refuse();
        // Of an object nobody is told: its program sees that it is not current.
        held.handle?;
        Some(RefusedLease { id: held.id, number: held.mark.number(), code })
    }

    /// The answers to what was declared, in its order: what to send for leases that were given back
    /// or mapped meanwhile, and what was refused.
    pub fn note_declared(
        &mut self,
        declaring: &Declaring,
        answers: &[Result<u64, ErrorCode>],
    ) -> (Vec<OneWay>, Vec<RefusedLease>) {
        debug_assert_eq!(answers.len(), declaring.keys.len());
        let (mut send, mut refused) = (Vec::new(), Vec::new());
        for (key, answer) in declaring.keys.iter().zip(answers) {
            match answer {
                Ok(number) => send.extend(self.declared(*key, *number)),
                Err(code) => refused.extend(self.refused(*key, *code)),
            }
        }
        (send, refused)
    }
}

impl Held {
    /// No broker knows it from now on.
    fn refuse(&mut self) {
        self.standing = Standing::Refused;
        self.mark.is_refused.store(true, Ordering::Release);
    }
}
