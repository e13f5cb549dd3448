//! The good client: a process with the real library, in which one connection owns recallable
//! buffers, and another acquires them and gives them back. Its times and errors judge an attack.
//! Must never send anything that the library would not.

use crate::support::memory::{BLOCK_BYTES, pattern};
use crate::support::peer::Link;
use fdbroker_client::{
    Access, Arena, CacheSettings, Client, Deadline, Error, HostBuffer, HostMemory, ImportCache,
    ObjectOptions,
};
use fdbroker_protocol::Handle;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Its buffers. The consumer acquires them in turn.
const BUFFERS: usize = 64;

/// Longest time of each call: far above what any attack may cause.
const PATIENCE: Duration = Duration::from_secs(10);

fn patience() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Errors that are printed; further ones are only counted.
const ERRORS_TOLD: usize = 3;

struct Good {
    socket: PathBuf,
    _owner: Client,
    _buffers: Vec<HostBuffer>,
    handles: Vec<Handle>,
    consumer: Client,
    next: usize,
    waits: Waits,
    /// All times of several phases, ns, by the name of the pool.
    pools: HashMap<String, Vec<u64>>,
}

/// How long this thread was ready to run while another had its processor. The attacker has the same
/// processor, and the kernel may keep it there for milliseconds, which shows nothing about the
/// broker.
struct Waits(File);

impl Waits {
    fn new() -> Waits {
        Waits(File::open("/proc/thread-self/schedstat").expect("CONFIG_SCHED_INFO"))
    }

    /// The wait so far, ns: the second number of schedstat
    /// (Documentation/scheduler/sched-stats.rst).
    fn so_far(&self) -> Duration {
        let mut bytes = [0; 64];
        let length = self.0.read_at(&mut bytes, 0).expect("schedstat can be read");
        let text = std::str::from_utf8(&bytes[..length]).expect("numbers");
        let second = text.split_whitespace().nth(1).expect("three numbers");
        Duration::from_nanos(second.parse().expect("a number"))
    }
}

/// Plays the good client until the test ends it.
pub fn play(mut link: Link) {
    let socket = link.hear().expect("a socket");
    let mut good = Good::new(Path::new(&socket)).expect("the daemon serves");
    link.say("OK");
    while let Some(line) = link.hear() {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            // For so many ms, into this pool.
            ["measure", ms, pool] => good.measure(Good::once, millis(ms), pool),
            ["joins", ms, pool] => good.measure(Good::timed_join, millis(ms), pool),
            ["pooled", pool] => good.pooled(pool),
            ["touch"] => told(good.touch()),
            ["join"] => told(good.join()),
            ["put"] => told(good.put()),
            ["reclaim"] => told(good.reclaim()),
            ["handles"] => crate::wire::to_line(&good.handles),
            _ => panic!("nobody can {line}"),
        };
        link.say(&answer);
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("ms"))
}

/// `count p99_ns worst_ns` of times in any order.
fn summary(took: &mut [u64]) -> String {
    took.sort_unstable();
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    let worst = took.last().copied().unwrap_or_default();
    format!("{} {p99} {worst}", took.len())
}

fn told(outcome: Result<(), Error>) -> String {
    outcome.map_or_else(|error| error.to_string(), |()| "OK".to_owned())
}

impl Good {
    fn new(socket: &Path) -> Result<Good, Error> {
        let connect = |name: &str| Client::builder().socket(socket).name(name).own_fds(2).connect();
        let owner = connect("good-owner")?;
        let arena = Arena::new(&owner, HostMemory::Memfd, BUFFERS * BLOCK_BYTES)?;
        let mut buffers = Vec::new();
        for seed in 0..BUFFERS as u64 {
            let buffer = arena.alloc(BLOCK_BYTES)?;
            buffer.write_at(0, &pattern(seed))?;
            buffers.push(buffer);
        }
        let handles = arena.register(&buffers, patience())?;
        let handles = handles.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (consumer, socket) = (connect("good")?, socket.to_owned());
        let waits = Waits::new();
        let (next, pools) = (0, HashMap::new());
        Ok(Good { socket, _owner: owner, _buffers: buffers, handles, consumer, next, waits, pools })
    }

    /// One acquire and release: the time of both together, without the waits for the processor.
    fn once(&mut self) -> Result<Duration, Error> {
        let handle = self.handles[self.next % BUFFERS];
        self.next += 1;
        let waited = self.waits.so_far();
        let began = Instant::now();
        let grant = self.consumer.acquire(&handle, patience())?;
        drop(grant);
        let took = began.elapsed();
        Ok(took.saturating_sub(self.waits.so_far() - waited))
    }

    /// A newcomer as in [`Good::join`]: its time, without the waits for the processor.
    fn timed_join(&mut self) -> Result<Duration, Error> {
        let waited = self.waits.so_far();
        let began = Instant::now();
        self.join()?;
        let took = began.elapsed();
        Ok(took.saturating_sub(self.waits.so_far() - waited))
    }

    /// Does it again and again, and notes the times in the pool: `count p99_ns worst_ns errors
    /// text...`
    fn measure(
        &mut self,
        once: fn(&mut Good) -> Result<Duration, Error>,
        time: Duration,
        pool: &str,
    ) -> String {
        let (mut took, mut errors, mut texts) = (Vec::new(), 0, Vec::new());
        let began = Instant::now();
        while began.elapsed() < time {
            match once(self) {
                Ok(time) => took.push(u64::try_from(time.as_nanos()).expect("below 500 years")),
                Err(error) => {
                    errors += 1;
                    if texts.len() < ERRORS_TOLD {
                        texts.push(error.to_string());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        self.pools.entry(pool.to_owned()).or_default().extend(&took);
        let texts = texts.join("; ").replace('\n', " ");
        format!("{} {errors} {texts}", summary(&mut took))
    }

    /// `count p99_ns worst_ns` of all phases of a pool.
    fn pooled(&mut self, pool: &str) -> String {
        summary(self.pools.get_mut(pool).map_or(&mut [], Vec::as_mut_slice))
    }

    /// Acquires every buffer once and compares every byte. After it the broker holds again what it
    /// had evicted.
    fn touch(&mut self) -> Result<(), Error> {
        for (seed, handle) in self.handles.iter().enumerate() {
            let import = self.consumer.acquire(handle, patience())?.import(Access::Read, 0)?;
            let mut bytes = vec![0; BLOCK_BYTES];
            import.read_at(0, &mut bytes)?;
            assert!(bytes == pattern(seed as u64), "buffer {seed} has other bytes");
        }
        self.consumer.flush(patience())
    }

    /// A newcomer of the same user: connects, acquires, ends.
    fn join(&self) -> Result<(), Error> {
        let newcomer = Client::builder().socket(&self.socket).name("good-new").connect()?;
        drop(newcomer.acquire(&self.handles[0], patience())?);
        newcomer.flush(patience())
    }

    /// Puts an object, reads it, and takes its name away.
    fn put(&self) -> Result<(), Error> {
        let (name, bytes) = ("good-put", pattern(1));
        let objects = self.consumer.objects();
        objects.put(name, &bytes, ObjectOptions::default(), patience())?;
        let object = objects.get(name, patience())?;
        assert!(object.bytes()? == bytes, "the object has other bytes");
        drop(object);
        objects.delete(name, None, patience()).map(drop)
    }

    /// An idle client of the same user has as many leases as the user may have. Another one needs
    /// some of them.
    fn reclaim(&self) -> Result<(), Error> {
        let connect = |name| Client::builder().socket(&self.socket).name(name).connect();
        let (idle, needy) = (connect("good-idle")?, connect("good-needy")?);
        let cache = ImportCache::new(&idle, CacheSettings::default());
        for handle in &self.handles {
            drop(cache.import(handle, Access::Read, patience())?);
        }
        for handle in &self.handles {
            drop(needy.acquire(handle, patience())?);
        }
        needy.flush(patience())
    }
}
