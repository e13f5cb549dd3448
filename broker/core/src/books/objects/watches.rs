//! What happens to names, for clients that watch them: a log for each scope with watchers, of a
//! bounded length, which each watcher reads when its event socket takes messages. What it has not
//! read in time it is told the number of. Must never look at all watchers for one event, nor keep
//! anything for a watcher that does not read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use crate::api::ObjectNews;
use crate::books::ledger::Charge;
use crate::books::objects::names::{Name, NameScope};
use crate::limits::{EVENT_IN_LOG_BYTES, EVENTS_IN_LOG};
use crate::work::visit;
use fdbroker_protocol::Resource;
use fdbroker_protocol::limits::{MAX_BATCH, MAX_OBJECT_MESSAGE_BYTES, NAME_OF_OBJECT_BYTES};
use fdbroker_protocol::message::Header;
use fdbroker_protocol::object::{ObjectEvent, ObjectEventItem};
use serde::{Deserialize, Serialize};

/// An event in a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Logged {
    /// Of the events of its log, from 0; some may be missing.
    pub number: u64,
    /// An [`ObjectEvent`].
    pub event: u8,
    /// As for [`ObjectNews::version`].
    pub version: u64,
    /// As for [`ObjectNews::name`].
    pub name: Name,
}

impl Logged {
    pub(crate) fn bytes(&self) -> u64 {
        EVENT_IN_LOG_BYTES + self.name.len() as u64
    }

    pub(crate) fn news(&self) -> ObjectNews {
        let event = ObjectEvent::from_number(self.event).expect("of an event");
        ObjectNews { event, version: self.version, name: Name::clone(&self.name) }
    }
}

/// The events of a scope since somebody watches it. A successor is told the first three fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Log {
    /// The domain that is charged for it.
    pub domain: u32,
    /// The number of the next event.
    pub next: u64,
    pub events: VecDeque<Logged>,
    /// Bytes of these.
    #[serde(skip)]
    pub bytes: u64,
    /// Clients that watch the scope.
    #[serde(skip)]
    pub watchers: u32,
    /// Of these, those that have read all.
    #[serde(skip)]
    pub(crate) asleep: BTreeSet<u32>,
}

impl Log {
    pub fn charge(&self) -> Charge {
        Charge(Resource::MetadataBytes, self.bytes)
    }
}

/// A prefix that is watched, and the first event that counts.
pub(crate) type Watched = (Box<[u8]>, u64);

/// A client that watches names of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Watcher {
    /// The number of the first event that it has not read.
    pub next: u64,
    pub prefixes: Vec<Watched>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Watches {
    pub(crate) logs: BTreeMap<NameScope, Log>,
    pub(crate) of: BTreeMap<(u32, NameScope), Watcher>,
    /// Scopes with news and with watchers that are asleep.
    pub(crate) stirred: BTreeSet<NameScope>,
    /// The scope that had the last turn.
    pub(crate) turn: Option<NameScope>,
}

impl Watches {
    /// Whether nobody is to be woken.
    pub fn is_idle(&self) -> bool {
        self.stirred.is_empty()
    }

    pub(crate) fn of_client(client: u32) -> std::ops::RangeInclusive<(u32, NameScope)> {
        (client, NameScope::Domain(0))..=(client, NameScope::Job(u32::MAX))
    }

    /// Takes the next client that is to be woken: the scopes take turns.
    pub fn next_woken(&mut self) -> Option<u32> {
        loop {
            visit(1);
            let after = self.turn.map_or(Unbounded, Excluded);
            let next = self.stirred.range((after, Unbounded)).next().or(self.stirred.first());
            let scope = *next?;
            self.turn = Some(scope);
            let log = self.logs.get_mut(&scope).expect("it has watchers");
            let client = log.asleep.pop_first();
            if log.asleep.is_empty() {
                self.stirred.remove(&scope);
            }
            if client.is_some() {
                return client;
            }
        }
    }

    /// Puts a watcher in that has yet to read, with its log, which is there from then on.
    pub(crate) fn enter(&mut self, client: u32, scope: NameScope, domain: u32) -> &mut Watcher {
        let log = self.logs.entry(scope).or_insert_with(|| Log { domain, ..Log::default() });
        let next = log.next;
        self.of.entry((client, scope)).or_insert_with(|| {
            log.watchers += 1;
            Watcher { next, prefixes: Vec::new() }
        })
    }

    /// A client watches a scope no more. The log, if it was the last one.
    pub(crate) fn leave(&mut self, client: u32, scope: NameScope) -> Option<Log> {
        self.of.remove(&(client, scope))?;
        let log = self.logs.get_mut(&scope)?;
        log.watchers -= 1;
        log.asleep.remove(&client);
        if log.asleep.is_empty() {
            self.stirred.remove(&scope);
        }
        if log.watchers > 0 { None } else { self.logs.remove(&scope) }
    }

    /// What a client has not read yet, as much as a message has room for. None: it is asleep until
    /// there is more.
    pub fn take(&mut self, client: u32) -> Vec<ObjectNews> {
        let mut page = Page::default();
        for ((_, scope), watcher) in self.of.range_mut(Self::of_client(client)) {
            let log = self.logs.get_mut(scope).expect("it has watchers");
            let from = log.events.partition_point(|logged| logged.number < watcher.next);
            for logged in log.events.range(from..) {
                visit(1);
                if page.is_full() {
                    return page.news;
                }
                page.lose(logged.number - watcher.next);
                watcher.next = logged.number + 1;
                let is_meant = |(prefix, first): &Watched| {
                    logged.number >= *first && logged.name.starts_with(prefix)
                };
                if watcher.prefixes.iter().any(is_meant) {
                    page.push(logged.news());
                }
            }
            page.lose(log.next - watcher.next);
            watcher.next = log.next;
            log.asleep.insert(client);
        }
        page.news
    }

    /// Asserts that each log has the watchers that it counts, and those who sleep have read all.
    pub fn check(&self) {
        for (scope, log) in &self.logs {
            let of = self.of.iter().filter(|((_, of), _)| of == scope);
            assert_eq!(of.count(), log.watchers as usize, "watchers of {scope:?}");
            assert!(log.watchers > 0 && log.events.len() <= EVENTS_IN_LOG, "log of {scope:?}");
            assert_eq!(
                log.bytes,
                log.events.iter().map(Logged::bytes).sum::<u64>(),
                "bytes of {scope:?}"
            );
            let is_stirred = self.stirred.contains(scope);
            for client in &log.asleep {
                let has_read_all = self.of[&(*client, *scope)].next == log.next;
                assert!(has_read_all || is_stirred, "{client} sleeps over news of {scope:?}");
            }
        }
        assert!(self.of.keys().all(|(_, scope)| self.logs.contains_key(scope)));
        assert!(self.stirred.iter().all(|scope| self.logs.contains_key(scope)));
    }
}

/// A message for a watcher.
#[derive(Default)]
struct Page {
    news: Vec<ObjectNews>,
    bytes: usize,
}

impl Page {
    /// Whether another event may be too many, with those that say what was lost: before it, and at
    /// the end of both scopes.
    fn is_full(&self) -> bool {
        let most = 4;
        let bytes = most * size_of::<ObjectEventItem>() + NAME_OF_OBJECT_BYTES;
        self.news.len() + most > MAX_BATCH
            || size_of::<Header>() + self.bytes + bytes > MAX_OBJECT_MESSAGE_BYTES
    }

    fn push(&mut self, news: ObjectNews) {
        self.bytes += size_of::<ObjectEventItem>() + news.name.len();
        self.news.push(news);
    }

    /// So many events were lost.
    fn lose(&mut self, count: u64) {
        match self.news.last_mut() {
            _ if count == 0 => {}
            Some(last) if last.event == ObjectEvent::Lost => last.version += count,
            _ => {
                let (event, name) = (ObjectEvent::Lost, Name::from(&b""[..]));
                self.push(ObjectNews { event, version: count, name });
            }
        }
    }
}
