//! The good client: a process with the real library, in which one connection owns recallable buffers, and another acquires
//! them and gives them back. Its times and errors judge an attack. Must never send anything that the library would not.

use crate::support::memory::{BLOCK_BYTES, pattern};
use crate::support::peer::Link;
use fdbroker_client::{
    Access, Arena, CacheSettings, Client, Deadline, Error, HostBuffer, HostMemory, ImportCache,
};
use fdbroker_protocol::Handle;
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
}

/// How long this thread was ready to run while another had its processor. The attacker has the same processor, and the kernel
/// may keep it there for milliseconds, which shows nothing about the broker.
struct Waits(File);

impl Waits {
    fn new() -> Waits {
        Waits(File::open("/proc/thread-self/schedstat").expect("CONFIG_SCHED_INFO"))
    }

    /// The wait so far, ns: the second number of schedstat (Documentation/scheduler/sched-stats.rst).
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
        let (verb, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let answer = match verb {
            "measure" => good.measure(Duration::from_millis(number.parse().expect("ms"))),
            "touch" => told(good.touch()),
            "join" => told(good.join()),
            "reclaim" => told(good.reclaim()),
            "handles" => crate::wire::to_line(&good.handles),
            other => panic!("nobody can {other}"),
        };
        link.say(&answer);
    }
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
        Ok(Good { socket, _owner: owner, _buffers: buffers, handles, consumer, next: 0, waits })
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

    /// `count p99_ns worst_ns errors text...`
    fn measure(&mut self, time: Duration) -> String {
        let (mut took, mut errors, mut texts) = (Vec::new(), 0, Vec::new());
        let began = Instant::now();
        while began.elapsed() < time {
            match self.once() {
                Ok(time) => took.push(time.as_nanos()),
                Err(error) => {
                    errors += 1;
                    if texts.len() < ERRORS_TOLD {
                        texts.push(error.to_string());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        took.sort_unstable();
        let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
        let worst = took.last().copied().unwrap_or_default();
        let texts = texts.join("; ").replace('\n', " ");
        format!("{} {p99} {worst} {errors} {texts}", took.len())
    }

    /// Acquires every buffer once and compares every byte. After it the broker holds again what it had evicted.
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

    /// An idle client of the same user has as many leases as the user may have. Another one needs some of them.
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
