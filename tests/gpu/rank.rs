//! A rank: a process that carries out the program's commands, one per line, with CUDA and the
//! library. Must never end before its stdin does, nor outlive its parent.

use crate::pattern;
use crate::wire::{Answer, Command, Lent, Weights};
use fdbroker_client::cuda::{
    CudaBuffer, CudaImport, CudaMemory, Device, LinearMemory, export_dma_buf, opener,
};
use fdbroker_client::{
    Access, Arena, CacheSettings, Client, Deadline, Deposit, Error, Facts, Grant, HostBuffer,
    HostMemory, ImportCache, MemoryKind, NewObject, Object, ObjectOptions, Place, Registration,
    Share,
};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Longest time for any call of the library.
const PATIENCE: Duration = Duration::from_secs(60);

/// Cache hits of which the mean time is taken.
const CACHE_ROUNDS: u32 = 100_000;

/// Handles in one request.
const BATCH: usize = 64;

/// Device number of /dev/nvidiactl, 195:255 (Documentation/admin-guide/devices.txt), as st_rdev has
/// it.
pub const NVIDIA_CONTROL: u64 = (195 << 8) | 255;

#[derive(Default)]
struct Rank {
    // Field order is drop order: memory before the connection and the device.
    kept: Option<OwnedFd>,
    grants: Vec<Grant>,
    imports: Vec<CudaImport>,
    buffers: Vec<(CudaBuffer, u64)>,
    memory: Vec<CudaMemory>,
    linear: Vec<LinearMemory>,
    host: Vec<HostBuffer>,
    registrations: Vec<Registration>,
    objects: Vec<(Object, u64)>,
    client: Option<Client>,
    device: Option<Device>,
}

/// Runs the rank: what the program calls for the hidden command.
pub fn play() {
    // The parent may be killed at any time.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let mut rank = Rank::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let answer = match serde_json::from_str(&line) {
            Ok(command) => rank.act(command).unwrap_or_else(|why| Answer::Failed { why }),
            Err(error) => Answer::Failed { why: format!("{line}: {error}") },
        };
        let text = serde_json::to_string(&answer).expect("plain data");
        if writeln!(std::io::stdout(), "{text}").is_err() {
            return;
        }
    }
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

fn text(error: Error) -> String {
    error.to_string()
}

/// The result's code as a word.
fn code<T>(result: Result<T, Error>) -> String {
    result.map_or_else(|error| error.code.name().to_owned(), |_| "OK".to_owned())
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1000.0
}

fn number(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit")
}

impl Rank {
    fn device(&self) -> Result<&Device, String> {
        self.device.as_ref().ok_or_else(|| "the device is not open".into())
    }

    fn client(&self) -> Result<&Client, String> {
        self.client.as_ref().ok_or_else(|| "not connected".into())
    }

    fn acquire(&self, lent: &Lent) -> Result<Grant, String> {
        self.client()?.acquire(&lent.handle()?, soon()).map_err(text)
    }

    fn act(&mut self, command: Command) -> Result<Answer, String> {
        match command {
            Command::Limit { fds } => {
                setrlimit(Resource::RLIMIT_NOFILE, fds, fds).map_err(|error| error.to_string())?;
            }
            Command::Open { device } => self.open(device)?,
            Command::Connect { socket, own_fds } => {
                let builder = Client::builder().socket(socket).name("gpu-rank").own_fds(own_fds);
                self.client = Some(builder.connect().map_err(text)?);
            }
            Command::CountFds => {
                let (all, vmm) = count_fds("self")?;
                return Ok(Answer::Fds { all, vmm });
            }
            Command::Make { count, bytes, slots, seed } => {
                return self.make(count, number(bytes), slots, seed);
            }
            Command::DropBuffers => self.buffers.clear(),
            Command::Import { lent, slots, reader } => return self.import(&lent, slots, reader),
            Command::Recheck { lent, slots } => return self.recheck(&lent, slots),
            Command::CheckMarks { slots, owner } => return self.check_marks(slots, owner),
            Command::Hold { lent } => {
                let grants = lent.iter().map(|lent| self.acquire(lent));
                self.grants = grants.collect::<Result<_, _>>()?;
                let fds = self.grants.iter().map(|grant| grant.fd.as_raw_fd()).collect();
                return Ok(Answer::Held { fds });
            }
            Command::Release => {
                self.grants.clear();
                for import in self.imports.drain(..) {
                    import.release().map_err(text)?;
                }
            }
            Command::Try { lent } => {
                let name = code(self.client()?.acquire(&lent.handle()?, soon()));
                return Ok(Answer::Code { name });
            }
            Command::TryImport { lent } => {
                let grant = self.acquire(&lent)?;
                let name = code(CudaImport::new(self.device()?, grant, Access::ReadWrite));
                return Ok(Answer::Code { name });
            }
            Command::RegisterTwice { bytes } => return self.register_twice(number(bytes)),
            Command::Reuse { bytes, seed } => return self.reuse(number(bytes), seed),
            Command::FillTable { lent } => return self.fill_table(&lent),
            Command::DmaBufs { bytes } => return self.dma_bufs(number(bytes)),
            Command::Look { lent } => return look(self.acquire(&lent)?),
            Command::Host => self.host()?,
            Command::Cache { lent, rounds } => return self.cache(&lent, rounds),
            Command::PrepareCosts { bytes } => {
                let memory = CudaMemory::new(self.device()?, number(bytes)).map_err(text)?;
                self.memory = vec![memory];
            }
            Command::Export => {
                let memory = self.memory.first().ok_or("nothing prepared")?;
                let start = Instant::now();
                let fd = memory.export().map_err(text)?;
                let us = us(start);
                let number = fd.as_raw_fd();
                self.kept = Some(fd);
                return Ok(Answer::Exported { fd: number, us });
            }
            Command::CloseKept => {
                let start = Instant::now();
                self.kept = None;
                return Ok(Answer::Us { us: us(start) });
            }
            Command::Take { pid, fd } => self.kept = Some(take(pid, fd)?),
            Command::ImportTaken { bytes } => return self.import_taken(bytes),
            Command::PutObjects { weights, keep } => self.put_objects(&weights, keep)?,
            Command::GetObjects { weights } => return self.get_objects(&weights),
            Command::RecheckObjects => {
                let (bytes, wrong_words) = self.check_objects()?;
                return Ok(Answer::Checked { bytes, wrong_words });
            }
            Command::Access => {
                let (object, _) = self.objects.first().ok_or("no object is open")?;
                return access(object.device_ptr().ok_or("it is not in device memory")?);
            }
            Command::DeleteObjects { weights } => {
                for (name, _) in (0..weights.groups).flat_map(|group| weights.group(group)) {
                    self.client()?.objects().delete(&name, None, soon()).map_err(text)?;
                }
            }
            Command::DropObjects => self.objects.clear(),
            Command::GrantCosts { lent, rounds } => return self.grant_costs(&lent, rounds),
        }
        Ok(Answer::Done)
    }

    /// Uses once every call of the later steps: the driver opens some of its fds at first use.
    fn open(&mut self, ordinal: u32) -> Result<(), String> {
        let device = Device::open(ordinal).map_err(text)?;
        let warm_up = || {
            let memory = CudaMemory::new(&device, 1)?;
            pattern::fill(&memory, 1, 0)?;
            let fd = memory.export()?;
            let bytes = memory.len() as u64;
            let same = CudaMemory::import_fd(&device, fd.as_fd(), bytes, Access::ReadWrite)?;
            pattern::check(&same, 1, 0).map(drop)
        };
        warm_up().map_err(text)?;
        self.device = Some(device);
        Ok(())
    }

    fn make(&mut self, count: u32, bytes: usize, slots: u32, seed: u64) -> Result<Answer, String> {
        let (client, device) = (self.client()?, self.device()?);
        let first = self.buffers.len();
        let mut made = Vec::new();
        for index in 0..count {
            let buffer = CudaBuffer::allocate(client, device, bytes, Share::Uid).map_err(text)?;
            let key = pattern::mix(seed ^ pattern::mix((first + index as usize) as u64));
            pattern::fill(buffer.memory(), key, slots).map_err(text)?;
            made.push((buffer, key));
        }
        let buffers = made.iter().map(|(buffer, _)| buffer);
        let handles = CudaBuffer::register_many(buffers, soon()).map_err(text)?;
        let lent = handles
            .into_iter()
            .zip(&made)
            .map(|(handle, (_, key))| handle.map(|handle| Lent::new(&handle, *key)).map_err(text));
        let lent = lent.collect::<Result<Vec<_>, _>>()?;
        self.buffers.extend(made);
        Ok(Answer::Made { lent })
    }

    fn import(&mut self, lent: &[Lent], slots: u32, reader: u32) -> Result<Answer, String> {
        let (client, device) = (self.client()?.clone(), self.device()?.clone());
        let (mut bytes, mut wrong_words, mut failed) = (0, 0, None);
        for batch in lent.chunks(BATCH) {
            let handles: Result<Vec<_>, _> = batch.iter().map(Lent::handle).collect();
            let each = |index: usize, grant: Result<Grant, Error>| {
                let key = batch[index].key;
                let outcome = grant.and_then(|grant| {
                    let import = CudaImport::new(&device, grant, Access::ReadWrite)?;
                    wrong_words += pattern::check(import.memory(), key, slots)?;
                    bytes += import.len() as u64;
                    if slots > 0 {
                        pattern::leave_mark(import.memory(), key, reader)?;
                    }
                    self.imports.push(import);
                    Ok(())
                });
                if let Err(error) = outcome {
                    failed.get_or_insert(error);
                }
            };
            client.acquire_each(&handles?, soon(), each).map_err(text)?;
        }
        match failed {
            Some(error) => Err(text(error)),
            None => Ok(Answer::Checked { bytes, wrong_words }),
        }
    }

    fn put_objects(&self, weights: &Weights, keep: bool) -> Result<(), String> {
        let options = ObjectOptions::default().keep(keep.then_some(Duration::ZERO));
        for group in 0..weights.groups {
            let members = weights.group(group);
            let new: Vec<_> =
                members.iter().map(|(name, _)| NewObject::new(name, weights.bytes)).collect();
            let objects = self.client()?.objects();
            let place = Place::Cuda(self.device()?);
            let mut made = objects.create(&new, place, options, soon()).map_err(text)?;
            for (index, (_, key)) in members.iter().enumerate() {
                let write = |at: usize, bytes: &[u8]| made.write_at(index, at, bytes);
                pattern::fill_by(number(weights.bytes), *key, 0, write).map_err(text)?;
            }
            made.seal(soon()).map_err(|failure| text(failure.error))?;
        }
        Ok(())
    }

    fn get_objects(&mut self, weights: &Weights) -> Result<Answer, String> {
        let members: Vec<_> = (0..weights.groups).flat_map(|group| weights.group(group)).collect();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        let objects = self.client()?.objects().with_cuda(self.device()?);
        let got = objects.get_many(&names, soon()).map_err(text)?;
        let ordinal = Some(self.device()?.ordinal());
        if let Some(other) = got.iter().find(|object| object.device() != ordinal) {
            return Err(format!(
                "{} is on device {:?}, not {ordinal:?}",
                other.name(),
                other.device()
            ));
        }
        let versions = got.iter().map(Object::version).collect();
        let keys = members.iter().map(|(_, key)| *key);
        self.objects = got.into_iter().zip(keys).collect();
        let (bytes, wrong_words) = self.check_objects()?;
        Ok(Answer::Got { bytes, wrong_words, versions })
    }

    fn check_objects(&self) -> Result<(u64, u64), String> {
        let (mut bytes, mut wrong_words) = (0, 0);
        for (object, key) in &self.objects {
            let read = |at: usize, into: &mut [u8]| object.read_at(at, into);
            wrong_words += pattern::check_by(object.len(), *key, 0, read).map_err(text)?;
            bytes += object.len() as u64;
        }
        Ok((bytes, wrong_words))
    }

    fn recheck(&self, lent: &[Lent], slots: u32) -> Result<Answer, String> {
        let (mut bytes, mut wrong_words) = (0, 0);
        for (import, lent) in self.imports.iter().zip(lent) {
            wrong_words += pattern::check(import.memory(), lent.key, slots).map_err(text)?;
            bytes += import.len() as u64;
        }
        Ok(Answer::Checked { bytes, wrong_words })
    }

    fn check_marks(&self, slots: u32, owner: u32) -> Result<Answer, String> {
        let (mut bytes, mut wrong_words) = (0, 0);
        for (buffer, key) in &self.buffers {
            let memory = buffer.memory();
            wrong_words += pattern::check_marks(memory, *key, slots, owner).map_err(text)?;
            wrong_words += pattern::check(memory, *key, slots).map_err(text)?;
            bytes += memory.len() as u64;
        }
        Ok(Answer::Checked { bytes, wrong_words })
    }

    /// Registers by hand and without a recall callback: so the broker may not evict it.
    fn register(&self, memory: &CudaMemory, id: u64) -> Result<Registration, String> {
        let fd = memory.export().map_err(text)?;
        let facts = Facts::new(MemoryKind::CudaVmm, memory.len() as u64);
        let facts = facts.owner_allocation_id(id);
        let deposit = Deposit::from(facts).base(memory.device_ptr());
        self.client()?.register(&deposit, fd.as_fd(), soon()).map_err(text)
    }

    fn register_twice(&mut self, bytes: usize) -> Result<Answer, String> {
        let memory = CudaMemory::new(self.device()?, bytes).map_err(text)?;
        let (one, two) = (self.register(&memory, 1)?, self.register(&memory, 1)?);
        let same_allocation = one.id() == two.id();
        self.memory.push(memory);
        self.registrations.extend([one, two]);
        Ok(Answer::Twice { same_allocation })
    }

    fn reuse(&mut self, bytes: usize, seed: u64) -> Result<Answer, String> {
        let before = self.memory.pop().map_or(0, |memory| memory.device_ptr());
        let memory = CudaMemory::new_at(self.device()?, bytes, before).map_err(text)?;
        let key = pattern::mix(seed);
        pattern::fill(&memory, key, 0).map_err(text)?;
        let registration = self.register(&memory, seed)?;
        let at_same_address = memory.device_ptr() == before;
        self.memory.push(memory);
        Ok(Answer::Reused { lent: Lent::new(&registration.handle, key), at_same_address })
    }

    fn fill_table(&mut self, lent: &Lent) -> Result<Answer, String> {
        let memory = CudaMemory::new(self.device()?, 1).map_err(text)?;
        let grant = self.acquire(lent)?;
        let duplicate = || nix::unistd::dup(std::io::stderr()).ok();
        let full: Vec<OwnedFd> = std::iter::from_fn(duplicate).collect();
        let export = code(memory.export());
        let import = code(CudaMemory::import(self.device()?, &grant, Access::Read));
        drop(full);
        let export_after = code(memory.export());
        let import_after = CudaMemory::import(self.device()?, &grant, Access::Read)
            .map_err(|error| format!("import after the fds were closed: {error}"))?;
        let wrong_words = pattern::check(&import_after, lent.key, 0).map_err(text)?;
        Ok(Answer::Full { export, import, export_after, wrong_words })
    }

    fn dma_bufs(&mut self, bytes: usize) -> Result<Answer, String> {
        let device = self.device()?.clone();
        let linear = LinearMemory::new(&device, bytes).map_err(text)?;
        let vmm = CudaMemory::new(&device, bytes).map_err(text)?;
        let mut lent = Vec::new();
        for (base, len) in [(linear.device_ptr(), linear.len()), (vmm.device_ptr(), vmm.len())] {
            let fd = export_dma_buf(&device, base, len).map_err(text)?;
            let deposit = Deposit::new(MemoryKind::DmaBuf, len as u64).base(base);
            let registered = self.client()?.register(&deposit, fd.as_fd(), soon());
            lent.push(Lent::new(&registered.map_err(text)?.handle, 0));
        }
        self.linear.push(linear);
        self.memory.push(vmm);
        Ok(Answer::Made { lent })
    }

    fn host(&mut self) -> Result<(), String> {
        let arena = Arena::new(self.client()?, HostMemory::Memfd, 4096).map_err(text)?;
        let buffer = arena.alloc(4096).map_err(text)?;
        buffer.register(soon()).map_err(text)?;
        self.host.push(buffer);
        Ok(())
    }

    fn cache(&self, lent: &Lent, rounds: u32) -> Result<Answer, String> {
        let (handle, device) = (lent.handle()?, self.device()?);
        let cache = ImportCache::new(self.client()?, CacheSettings::default());
        let mut open = opener(device, Access::ReadWrite);
        let mut seen = Vec::new();
        for _ in 0..rounds {
            let import = cache.import_with(&handle, Access::ReadWrite, soon(), &mut open);
            let import = import.map_err(text)?;
            seen.push((import.as_ptr().addr(), import.len() as u64));
        }
        let same_pointer = seen.windows(2).all(|pair| pair[0] == pair[1]);
        let (stats, bytes) = (cache.stats(), seen.first().map_or(0, |(_, bytes)| *bytes));
        let start = Instant::now();
        for _ in 0..CACHE_ROUNDS {
            drop(cache.hit(&handle, Access::ReadWrite).ok_or("no hit")?);
        }
        let hit_ns = us(start) * 1000.0 / f64::from(CACHE_ROUNDS);
        let (misses, hits) = (stats.misses, stats.hits);
        Ok(Answer::Cached { same_pointer, bytes, misses, hits, hit_ns })
    }

    /// Closes the fd before it unmaps the memory, as the library's import does.
    fn import_taken(&mut self, bytes: u64) -> Result<Answer, String> {
        let fd = self.kept.take().ok_or("no fd was taken")?;
        let start = Instant::now();
        let memory = CudaMemory::import_fd(self.device()?, fd.as_fd(), bytes, Access::ReadWrite);
        let (memory, import) = (memory.map_err(text)?, us(start));
        let start = Instant::now();
        drop(fd);
        let close = us(start);
        let start = Instant::now();
        drop(memory);
        Ok(Answer::ImportUs { import, close, unmap: us(start) })
    }

    fn grant_costs(&self, lent: &[Lent], rounds: u32) -> Result<Answer, String> {
        let (mut acquire, mut import, mut release) = (Vec::new(), Vec::new(), Vec::new());
        let (client, device) = (self.client()?, self.device()?);
        let handles = lent.iter().map(Lent::handle).collect::<Result<Vec<_>, _>>()?;
        for handle in handles.iter().cycle().take(rounds as usize) {
            let start = Instant::now();
            let grant = client.acquire(handle, soon()).map_err(text)?;
            acquire.push(us(start));
            let start = Instant::now();
            let imported = CudaImport::new(device, grant, Access::ReadWrite).map_err(text)?;
            import.push(us(start));
            let start = Instant::now();
            drop(imported);
            release.push(us(start));
        }
        Ok(Answer::GrantUs { acquire, import, release })
    }
}

/// The kind of a grant's fd, as the kernel tells it.
fn look(grant: Grant) -> Result<Answer, String> {
    let size_bytes = grant.info.facts.size_bytes;
    let path = format!("/proc/self/fdinfo/{}", grant.fd.as_raw_fd());
    let info = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let exporter = info.lines().find_map(|line| line.strip_prefix("exp_name:"));
    let exporter = exporter.unwrap_or("none").trim().to_owned();
    Ok(Answer::Looked { exporter, bytes: size_bytes })
}

/// A duplicate of another process's fd: pidfd_open(2), pidfd_getfd(2).
fn take(pid: i32, fd: i32) -> Result<OwnedFd, String> {
    let made = |result: i64, what: &str| match i32::try_from(result) {
        // SAFETY: the kernel has just made this fd for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(format!("{what}: {}", std::io::Error::last_os_error())),
    };
    // SAFETY: two numbers; the answer is a new fd or -1.
    let pidfd = made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }, "pidfd_open")?;
    // SAFETY: three numbers; the answer is a new fd or -1.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
    made(taken, "pidfd_getfd")
}

/// How many fds a process (a pid, or `self`) has, and how many of them are of /dev/nvidiactl: VMM
/// exports, and the driver's own.
pub fn count_fds(process: &str) -> Result<(u64, u64), String> {
    let path = format!("/proc/{process}/fd");
    let folder = std::fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    let (mut all, mut vmm) = (0, 0);
    for entry in folder.flatten() {
        all += 1;
        let found = std::fs::metadata(entry.path());
        vmm += u64::from(found.is_ok_and(|found| found.st_rdev() == NVIDIA_CONTROL));
    }
    Ok((all, vmm))
}

/// How the driver has mapped an address for device 0, asked by cuMemGetAccess (cuda.h).
fn access(device_ptr: u64) -> Result<Answer, String> {
    #[repr(C)]
    struct Location {
        kind: libc::c_int,
        id: libc::c_int,
    }
    type GetAccess = unsafe extern "C" fn(*mut u64, *const Location, u64) -> libc::c_int;
    /// CU_MEM_LOCATION_TYPE_DEVICE.
    const DEVICE: libc::c_int = 1;
    // SAFETY: C strings, valid for the calls; the library opened the driver before, and it stays
    // open.
    let symbol = unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if driver.is_null() {
            return Err("libcuda.so.1 is not loaded".into());
        }
        libc::dlsym(driver, c"cuMemGetAccess".as_ptr())
    };
    if symbol.is_null() {
        return Ok(Answer::Access { flags: None });
    }
    // SAFETY: the function of this name has this signature in cuda.h.
    let get_access = unsafe { std::mem::transmute::<*mut libc::c_void, GetAccess>(symbol) };
    let (mut flags, location) = (0, Location { kind: DEVICE, id: 0 });
    // SAFETY: both are valid for the call.
    match unsafe { get_access(&raw mut flags, &raw const location, device_ptr) } {
        0 => Ok(Answer::Access { flags: Some(flags) }),
        error => Err(format!("cuMemGetAccess: {error}")),
    }
}
