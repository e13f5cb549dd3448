//! A rank of the way through the broker: registers its buffers, writes their handles to a file, opens every
//! other rank's by value. Must never keep an fd of what it opened: mapped memory needs none.

use super::control::{Command, Opened, Report};
use super::device::{self, AnyMemory, Device, Handles};
use super::link::Link;
use super::mapping;
use super::pattern::BufferId;
use super::plan::{Memory, Plan, Way};
use super::sampler::count_shared_memory;
use crate::error::{Context, Error, Result};
use crate::output::say;
use crate::signals;
use fdbroker_client::host::{Arena, HostBuffer, HostMemory};
use fdbroker_client::{Access, Client, Deadline, Grant, Import};
use fdbroker_protocol::Handle;
use fdbroker_protocol::handle::HANDLE_BYTES;
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A rank counts its own fds in its first batches, and then in one of so many: reading /proc costs as much as
/// opening some buffers.
const COUNTED_BATCHES: u64 = 4;
const COUNT_INTERVAL_BATCHES: u64 = 32;

/// The hidden command: runs rank `number` with the plan as its parent wrote it.
pub fn main(number: u32, way: Way, plan: &str) -> Result<()> {
    signals::restore();
    // As `ps` shows it; it would be "exe".
    set_name(c"fdbroker-rank").context(|| "name the process")?;
    // The parent may be killed at any time, also while this process is stopped for a sample.
    set_pdeathsig(Signal::SIGKILL).context(|| "ask to end with the parent")?;
    let plan: Plan = serde_json::from_str(plan)
        .map_err(|cause| Error::Usage(format!("not a plan of the demo: {cause}")))?;
    limit_fds(&plan)?;
    let mut link = Link::new();
    let outcome = match way {
        Way::Broker => Rank::start(&plan, number).and_then(|rank| rank.run(&mut link)),
        Way::Direct => super::direct::run(&plan, number, &mut link),
    };
    if let Err(error) = outcome {
        // The parent prints it, with this rank's number; if it is gone, nobody needs it.
        let _ = link.report(&Report::Failed { message: error.to_string() });
    }
    Ok(())
}

/// The same limit for each process in both ways: the soft one, which is what counts. The hard one is left to what a
/// driver may start.
fn limit_fds(plan: &Plan) -> Result<()> {
    let Some(limit) = plan.max_fds else { return Ok(()) };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context(|| "read RLIMIT_NOFILE")?;
    let limit = limit.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard)
        .context(|| format!("set RLIMIT_NOFILE to {limit}"))
}

/// One rank with its buffers and what it has opened.
struct Rank<'a> {
    plan: &'a Plan,
    number: u32,
    // Field order is drop order: imports and buffers go before the connection and the device.
    imports: Vec<Import>,
    buffers: Vec<HostBuffer>,
    device_imports: Vec<AnyMemory>,
    device_buffers: Vec<AnyMemory>,
    client: Client,
    /// When the buffers are device memory.
    device: Option<Device>,
    /// Fds that look like shared memory and are not.
    fds_base: u64,
    deadline: Deadline,
    opened: Opened,
    first_error: Option<String>,
    batches: u64,
    count_due: bool,
}

impl<'a> Rank<'a> {
    /// Connects. All ranks do so before the first of them fills the broker.
    fn start(plan: &'a Plan, number: u32) -> Result<Self> {
        let device = Device::open(plan.memory)?;
        let fds_base = match &device {
            // Without /proc nothing is counted later either.
            Some(_) => count_shared_memory(Pid::this(), plan.memory.look()).unwrap_or(0),
            None => 0,
        };
        let deadline = Deadline::after(Duration::from_millis(plan.timeout_ms));
        let client = Client::builder()
            .name(format!("demo-rank-{number}"))
            .own_fds(plan.own_fds)
            // A broker that goes away ends the demo: nothing to come back to.
            .reconnect(false)
            .connect()
            .map_err(failed)?;
        Ok(Rank {
            plan,
            number,
            imports: Vec::new(),
            buffers: Vec::new(),
            device_imports: Vec::new(),
            device_buffers: Vec::new(),
            client,
            device,
            fds_base,
            deadline,
            opened: Opened::default(),
            first_error: None,
            batches: 0,
            count_due: false,
        })
    }

    /// Fills and registers the buffers, and leaves their handles for the others.
    fn register(&mut self) -> Result<()> {
        let handles = match self.device.clone() {
            Some(device) => self.register_device_memory(&device)?,
            None => self.register_host_memory()?,
        };
        let handles: std::result::Result<Vec<Handle>, _> = handles.into_iter().collect();
        write_handles(self.plan, self.number, &handles.map_err(failed)?)
    }

    fn register_device_memory(&mut self, device: &Device) -> Result<Handles> {
        let size = usize::try_from(self.plan.size_bytes).unwrap_or(usize::MAX);
        let (owner, pattern) = (self.number, self.plan.pattern());
        let fill = |buffer, memory: &dyn device::DeviceMemory| {
            device::fill(pattern, BufferId { owner, buffer }, memory)
        };
        let wanted = (self.plan.buffers, size);
        let (buffers, handles) = device.register(&self.client, wanted, fill, self.deadline)?;
        self.device_buffers = buffers;
        Ok(handles)
    }

    fn register_host_memory(&mut self) -> Result<Handles> {
        let memory = match self.plan.memory {
            Memory::Udmabuf => HostMemory::Udmabuf,
            _ => HostMemory::Memfd,
        };
        let size = usize::try_from(self.plan.size_bytes).unwrap_or(usize::MAX);
        let total = size.saturating_mul(self.plan.buffers as usize);
        let arena = Arena::new(&self.client, memory, total).map_err(failed)?;
        for buffer in 0..self.plan.buffers {
            let one = arena.alloc(size).map_err(failed)?;
            let id = BufferId { owner: self.number, buffer };
            self.plan.pattern().fill(id, buffer_words(&one));
            self.buffers.push(one);
        }
        arena.register(&self.buffers, self.deadline).map_err(failed)
    }

    /// The parts that the parent calls for.
    fn run(mut self, link: &mut Link) -> Result<()> {
        link.report_and_expect(&Report::Connected, Command::Register)?;
        self.register()?;
        link.report_and_expect(&Report::Registered, Command::Open)?;
        self.open_all(link)?;
        if let Some(error) = &self.first_error {
            say!(
                "fdbroker: rank {} could not open {} buffers; the first: {error}",
                self.number,
                self.opened.failures
            );
        }
        link.report_and_expect(&Report::Opened(self.opened), Command::Check)?;
        let mismatches = self.check_all_marks()?;
        link.report_and_expect(&Report::Checked { mismatches }, Command::Release)?;
        drop(self);
        link.report(&Report::Released)
    }

    /// Words that are wrong in the own buffers.
    fn check_all_marks(&self) -> Result<u64> {
        let pattern = self.plan.pattern();
        let id = |buffer| BufferId { owner: self.number, buffer };
        let host = (0..).zip(&self.buffers);
        let mut wrong: u64 = host
            .map(|(buffer, memory)| pattern.check_all_marks(id(buffer), buffer_words(memory)))
            .sum();
        for (buffer, one) in (0..).zip(&self.device_buffers) {
            wrong += device::check_all_marks(pattern, id(buffer), &**one)?;
        }
        Ok(wrong)
    }

    /// Opens every buffer of every other rank, a batch of each at a time. So all ranks are at about the same
    /// buffers, and what the broker holds serves many of them before it is evicted.
    fn open_all(&mut self, link: &mut Link) -> Result<()> {
        let mut first = 0;
        while first < self.plan.buffers {
            for owner in self.plan.others(self.number) {
                self.open_batch(owner, first)?;
                link.progress(self.opened.buffers)?;
            }
            first += self.plan.batch;
        }
        Ok(())
    }

    fn open_batch(&mut self, owner: u32, first: u32) -> Result<()> {
        let handles = read_handles(self.plan, owner, first)?;
        let (client, deadline) = (self.client.clone(), self.deadline);
        self.count_due =
            self.batches < COUNTED_BATCHES || self.batches.is_multiple_of(COUNT_INTERVAL_BATCHES);
        self.batches += 1;
        let each = |index: usize, outcome: std::result::Result<Grant, _>| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            match outcome {
                Ok(grant) => self.open(BufferId { owner, buffer: first + index }, grant),
                Err(cause) => self.fail(cause),
            }
        };
        client.acquire_each(&handles, deadline, each).map_err(failed)
    }

    /// Imports a buffer, which closes its fd, checks every byte, leaves the mark and keeps it mapped.
    fn open(&mut self, id: BufferId, grant: Grant) {
        self.count_fds();
        if grant.info.size_bytes != self.plan.size_bytes {
            let got = grant.info.size_bytes;
            return self.fail(format!("buffer {} of rank {} has {got} bytes", id.buffer, id.owner));
        }
        let opened = match self.device.clone() {
            Some(device) => self.open_device_memory(&device, id, grant),
            None => self.open_host_memory(id, grant),
        };
        match opened {
            Ok(mismatches) => {
                self.opened.mismatches += mismatches;
                self.opened.verified_bytes += self.plan.size_bytes;
                self.opened.buffers += 1;
            }
            Err(cause) => self.fail(cause),
        }
    }

    fn open_host_memory(&mut self, id: BufferId, grant: Grant) -> Result<u64> {
        let import = grant.import(Access::ReadWrite, 0).map_err(failed)?;
        let words = import_words(&import);
        let mismatches = self.plan.pattern().check_and_mark(self.number, id, words);
        self.imports.push(import);
        Ok(mismatches)
    }

    fn open_device_memory(&mut self, device: &Device, id: BufferId, grant: Grant) -> Result<u64> {
        let import = device.import(grant).map_err(failed)?;
        let mismatches = device::check_and_mark(self.plan.pattern(), self.number, id, &*import)?;
        self.device_imports.push(import);
        Ok(mismatches)
    }

    fn fail(&mut self, cause: impl ToString) {
        self.opened.failures += 1;
        self.first_error.get_or_insert_with(|| cause.to_string());
    }

    /// Counts the fds of shared memory of this process, when it is time and while a batch is open.
    fn count_fds(&mut self) {
        if std::mem::take(&mut self.count_due) {
            // The parent's samples count too: without /proc there are only those.
            let found = count_shared_memory(Pid::this(), self.plan.memory.look()).unwrap_or(0);
            let found = found.saturating_sub(self.fds_base);
            self.opened.fds_peak = self.opened.fds_peak.max(found);
        }
    }
}

fn failed(cause: fdbroker_client::Error) -> Error {
    Error::Other(cause.to_string())
}

fn write_handles(plan: &Plan, rank: u32, handles: &[Handle]) -> Result<()> {
    let path = plan.handles_file(rank);
    let write = || {
        let mut file = std::io::BufWriter::new(File::create_new(&path)?);
        for handle in handles {
            file.write_all(&handle.to_bytes())?;
        }
        file.flush()
    };
    write().context(|| format!("write {}", path.display()))
}

/// A batch of handles by value: records of 64 bytes, no fd.
fn read_handles(plan: &Plan, rank: u32, first: u32) -> Result<Vec<Handle>> {
    let path = plan.handles_file(rank);
    let count = plan.batch.min(plan.buffers - first) as usize;
    let mut bytes = vec![0; count * HANDLE_BYTES];
    File::open(&path)
        .and_then(|file| file.read_exact_at(&mut bytes, u64::from(first) * HANDLE_BYTES as u64))
        .context(|| format!("read {count} handles from {}", path.display()))?;
    let (records, _) = bytes.as_chunks::<HANDLE_BYTES>();
    Ok(records.iter().map(|record| Handle::from_bytes(*record)).collect())
}

fn buffer_words(buffer: &HostBuffer) -> &[AtomicU64] {
    match NonNull::new(buffer.as_mut_ptr()) {
        // SAFETY: page-aligned memory of the arena, mapped for reading and writing as long as the buffer
        // lives; its memfd is sealed against shrinking.
        Some(start) => unsafe { mapping::words(start, buffer.len()) },
        None => &[],
    }
}

fn import_words(import: &Import) -> &[AtomicU64] {
    match NonNull::new(import.as_ptr()) {
        // SAFETY: imported at offset 0 of a page-aligned allocation, for reading and writing, mapped as long
        // as the import lives; the broker has checked that its fd cannot shrink.
        Some(start) => unsafe { mapping::words(start, import.len()) },
        None => &[],
    }
}
