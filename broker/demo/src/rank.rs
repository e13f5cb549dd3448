//! A rank of the way through the broker: registers its buffers, writes their handles to a file, and
//! opens every other rank's by value. Must never keep an fd of a buffer that it opened: mapped
//! memory needs none.

use crate::control::{Assignment, Command, Link, Opened, Report};
use crate::device::{self, Device, Handles};
use crate::direct;
use crate::error::{Error, Result, os};
use crate::kind::Memory;
use crate::memory::SharedMemory;
use crate::pattern::BufferId;
use crate::plan::{Plan, Way};
use crate::sampler::count_shared_memory;
use fdbroker_client::host::{Arena, HostMemory};
use fdbroker_client::{Access, Client, Deadline, Grant, Handle};
use fdbroker_protocol::handle::HANDLE_BYTES;
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A rank counts its own fds in each of its first batches, and then in one of so many: reading
/// /proc costs as much as opening some buffers.
const COUNTED_BATCHES: u64 = 4;
const COUNT_INTERVAL_BATCHES: u64 = 32;

/// Runs the rank that [`crate::host::Host::rank`] was asked to start, with the same argument.
///
/// # Errors
/// The process could not be set up. What goes wrong after that is reported to the parent.
pub fn main(assignment: &str) -> Result<()> {
    // As `ps` shows it; it would be "exe".
    set_name(c"fdbroker-rank").map_err(os("name the process"))?;
    // The parent may be killed at any time, also while this process is stopped for a sample.
    set_pdeathsig(Signal::SIGKILL).map_err(os("ask to end with the parent"))?;
    let Assignment { number, way, plan } = serde_json::from_str(assignment)
        .map_err(|cause| Error::Usage(format!("not an assignment of the demo: {cause}")))?;
    limit_fds(&plan)?;
    let mut link = Link::new();
    let outcome = match way {
        Way::Broker => Rank::connect(&plan, number).and_then(|rank| rank.run(&mut link)),
        Way::Direct => direct::run(&plan, number, &mut link),
    };
    if let Err(error) = outcome {
        // The parent prints it, with this rank's number. Without a parent nobody needs it.
        let _ = link.report(&Report::Failed(error.to_string()));
    }
    Ok(())
}

/// Gives each process the same soft limit in both ways. The hard limit stays, for programs that a
/// driver may start.
fn limit_fds(plan: &Plan) -> Result<()> {
    let Some(limit) = plan.max_fds else { return Ok(()) };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(os("read RLIMIT_NOFILE"))?;
    let limit = limit.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard)
        .map_err(os(format!("set RLIMIT_NOFILE to {limit}")))
}

/// One rank with its buffers and those that it has opened.
struct Rank<'a> {
    plan: &'a Plan,
    number: u32,
    // Field order is drop order: imports and buffers go before the connection and the device.
    imports: Vec<Box<dyn SharedMemory>>,
    buffers: Vec<Box<dyn SharedMemory>>,
    client: Client,
    /// `None` when the buffers are memory of the host.
    device: Option<Box<dyn Device>>,
    /// Fds that look like shared memory and are not.
    fds_base: u64,
    deadline: Deadline,
    opened: Opened,
    batches: u64,
    count_due: bool,
}

impl<'a> Rank<'a> {
    /// All ranks connect before the first of them fills the broker.
    fn connect(plan: &'a Plan, number: u32) -> Result<Self> {
        let device = device::open(plan.memory)?;
        let fds_base = device.as_ref().map_or(0, |_| own_count(plan));
        let client = Client::builder()
            .name(format!("demo-rank-{number}"))
            .own_fds(plan.own_fds)
            // The demo ends with its broker: there is nothing to come back to.
            .reconnect(false)
            .connect()?;
        Ok(Rank {
            plan,
            number,
            imports: Vec::new(),
            buffers: Vec::new(),
            client,
            device,
            fds_base,
            deadline: Deadline::after(Duration::from_millis(plan.timeout_ms)),
            opened: Opened::default(),
            batches: 0,
            count_due: false,
        })
    }

    /// The parts, each when the parent calls for it.
    fn run(mut self, link: &mut Link) -> Result<()> {
        link.report_and_expect(&Report::Connected, Command::Register)?;
        self.register()?;
        link.report_and_expect(&Report::Registered, Command::Open)?;
        self.open_all(link)?;
        link.report_and_expect(&Report::Opened(self.opened.clone()), Command::Check)?;
        let buffers = self.buffers.iter().map(|buffer| &**buffer);
        let mismatches = self.plan.check_all_marks(self.number, buffers)?;
        link.report_and_expect(&Report::Checked(mismatches), Command::Release)?;
        drop(self);
        link.report(&Report::Released)
    }

    /// Fills and registers the buffers, and leaves their handles for the other ranks.
    fn register(&mut self) -> Result<()> {
        let (plan, owner) = (self.plan, self.number);
        let fill =
            |buffer, memory: &dyn SharedMemory| plan.fill(BufferId { owner, buffer }, memory);
        let handles = match &self.device {
            Some(device) => {
                let wanted = (plan.buffers, plan.size());
                let (buffers, handles) =
                    device.register(&self.client, wanted, &fill, self.deadline)?;
                self.buffers = buffers;
                handles
            }
            None => self.register_host_memory(&fill)?,
        };
        let handles: std::result::Result<Vec<Handle>, _> = handles.into_iter().collect();
        let bytes: Vec<u8> = handles?.into_iter().flat_map(Handle::to_bytes).collect();
        let path = plan.handles_file(owner);
        std::fs::write(&path, bytes).map_err(os(format!("write {}", path.display())))
    }

    fn register_host_memory(&mut self, fill: device::Fill<'_>) -> Result<Handles> {
        let memory = match self.plan.memory {
            Memory::Udmabuf => HostMemory::Udmabuf,
            _ => HostMemory::Memfd,
        };
        let size = self.plan.size();
        let total = size.saturating_mul(self.plan.buffers as usize);
        let arena = Arena::new(&self.client, memory, total)?;
        let mut buffers = Vec::new();
        for number in 0..self.plan.buffers {
            let buffer = arena.alloc(size)?;
            fill(number, &buffer)?;
            buffers.push(buffer);
        }
        let handles = arena.register(&buffers, self.deadline)?;
        self.buffers = buffers.into_iter().map(|buffer| Box::new(buffer) as _).collect();
        Ok(handles)
    }

    /// Opens every buffer of every other rank, a batch of each rank at a time. So all ranks are at
    /// about the same buffers, and an fd in the broker serves many of them before it is evicted.
    fn open_all(&mut self, link: &mut Link) -> Result<()> {
        for first in (0..self.plan.buffers).step_by(self.plan.batch as usize) {
            for owner in self.plan.others(self.number) {
                self.open_batch(owner, first)?;
                link.progress(self.opened.buffers)?;
            }
        }
        Ok(())
    }

    fn open_batch(&mut self, owner: u32, first: u32) -> Result<()> {
        let handles = read_handles(self.plan, owner, first)?;
        let (client, deadline) = (self.client.clone(), self.deadline);
        self.count_due =
            self.batches < COUNTED_BATCHES || self.batches.is_multiple_of(COUNT_INTERVAL_BATCHES);
        self.batches += 1;
        let each = |index: usize, outcome: std::result::Result<Grant, fdbroker_client::Error>| {
            let buffer = first + u32::try_from(index).unwrap_or(u32::MAX);
            let opened = outcome.map_err(Error::from);
            match opened.and_then(|grant| self.open(BufferId { owner, buffer }, grant)) {
                Ok(mismatches) => {
                    self.opened.mismatches += mismatches;
                    self.opened.verified_bytes += self.plan.size_bytes;
                    self.opened.buffers += 1;
                }
                Err(error) => {
                    self.opened.failures += 1;
                    self.opened.first_failure.get_or_insert_with(|| error.to_string());
                }
            }
        };
        Ok(client.acquire_each(&handles, deadline, each)?)
    }

    /// Imports a buffer, which closes its fd, checks every byte, leaves the mark and keeps it
    /// mapped. Returns how many words were wrong.
    fn open(&mut self, id: BufferId, grant: Grant) -> Result<u64> {
        self.count_fds();
        let (got, expected) = (grant.info.facts.size_bytes, self.plan.size_bytes);
        if got != expected {
            let BufferId { owner, buffer } = id;
            return Err(Error::Other(format!("buffer {buffer} of rank {owner} has {got} bytes")));
        }
        let import: Box<dyn SharedMemory> = match &self.device {
            Some(device) => device.import(grant)?,
            None => Box::new(grant.import(Access::ReadWrite, 0)?),
        };
        let mismatches = self.plan.check_and_mark(self.number, id, &*import)?;
        self.imports.push(import);
        Ok(mismatches)
    }

    /// Counts the fds of shared memory of this process, when it is time and while a batch is open.
    fn count_fds(&mut self) {
        if std::mem::take(&mut self.count_due) {
            let found = own_count(self.plan).saturating_sub(self.fds_base);
            self.opened.fds_peak = self.opened.fds_peak.max(found);
        }
    }
}

/// Fds of this process that look like shared memory. 0 without /proc: then only the parent's
/// samples count.
fn own_count(plan: &Plan) -> u64 {
    count_shared_memory(Pid::this(), plan.memory.look()).unwrap_or(0)
}

/// A batch of handles by value: records of 64 bytes, no fd.
fn read_handles(plan: &Plan, rank: u32, first: u32) -> Result<Vec<Handle>> {
    let path = plan.handles_file(rank);
    let count = plan.batch.min(plan.buffers - first) as usize;
    let mut bytes = vec![0; count * HANDLE_BYTES];
    File::open(&path)
        .and_then(|file| file.read_exact_at(&mut bytes, u64::from(first) * HANDLE_BYTES as u64))
        .map_err(os(format!("read {count} handles from {}", path.display())))?;
    let (records, _) = bytes.as_chunks::<HANDLE_BYTES>();
    Ok(records.iter().map(|record| Handle::from_bytes(*record)).collect())
}
