//! What runs in the processes of lanes, and in the spawner's from which they are cloned: they share
//! the loop's table of fds, and of its memory they have a copy from when they were cloned. Must
//! never allocate, nor take a lock: another thread may have had it when the copy was made.

use crate::fds::classify::open_for_readers;
use crate::fds::jobs::{Calls, Job, Order, Said, act, device_number, word};
use crate::kernel::clone_with_fds;
use crate::limits::{
    CGROUP_FILE_BYTES, CONFIG_FILE_BYTES, LANE_BATCH, LANE_REPORT, LANES_MAX, PATH_BYTES,
    STAT_BYTES,
};
use crate::node::config_file::open_config;
use crate::node::shared_map::SharedMap;
use fdbroker_core::Lane;
use fdbroker_protocol::{Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::stat::{Mode, stat};
use nix::sys::uio::{pread, pwrite};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, read};
use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Room for what is said, the text included.
pub const SAID_BYTES: usize = size_of::<Said>() + CGROUP_FILE_BYTES + STAT_BYTES;

/// How far a lane is with the jobs at hand: the job that it has begun, and the one that is done,
/// counted from 1. In memory that the loop can read, too, so that it knows of a lane that has died.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a>(pub &'a SharedMap, pub usize);

impl Progress<'_> {
    pub fn set(self, begun: u32, done: u32) {
        let Progress(map, place) = self;
        map.word(place * 8).store(begun, Ordering::Release);
        map.word(place * 8 + 4).store(done, Ordering::Release);
    }

    pub fn get(self) -> (u32, u32) {
        let Progress(map, place) = self;
        // Of a lane that has ended: nothing changes between the two.
        let word = |at| map.word(at).load(Ordering::Acquire);
        (word(place * 8), word(place * 8 + 4))
    }
}

/// What the loop, the spawner and the lanes have together, made before there are such processes.
pub struct Common {
    pub calls: Calls,
    /// Of [`Progress`].
    pub progress: SharedMap,
    /// Where the spawner hears [`Order`]s.
    orders: OwnedFd,
    /// Where lanes and spawner say what they have to say.
    said: OwnedFd,
    /// Tells the spawner that a lane has ended.
    ended: SignalFd,
    no_fds: ReceivedFds,
    out: Box<[u8]>,
    /// With room for a status from the start.
    writer: Writer,
}

impl Common {
    pub fn new(
        calls: Calls,
        progress: SharedMap,
        orders: OwnedFd,
        said: OwnedFd,
    ) -> io::Result<Self> {
        let child: SigSet = std::iter::once(Signal::SIGCHLD).collect();
        let mut writer = Writer::new();
        writer.failed(0, Status::OK);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Common {
            calls,
            progress,
            orders,
            said,
            ended: SignalFd::with_flags(&child, flags)?,
            no_fds: ReceivedFds::with_capacity(0),
            out: vec![0; SAID_BYTES].into(),
            writer,
        })
    }

    /// Clones the spawner. It ends with the calling thread, and the lanes with it.
    pub fn spawn(&mut self) -> nix::Result<Pid> {
        // SAFETY: this module's code neither allocates nor takes a lock.
        unsafe { clone_with_fds(c"fdbroker-lanes", || self.serve_orders()) }
    }

    // --- in the spawner --------------------------------------------------------------------------

    fn serve_orders(&mut self) {
        let mut lanes: [Option<(Pid, u32)>; LANES_MAX] = [None; LANES_MAX];
        loop {
            let mut fds = [self.orders.as_fd(), self.ended.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
            let _ = self.ended.read_signal();
            while let Ok(Some(pid)) = waitpid(None, Some(WaitPidFlag::WNOHANG)).map(|it| it.pid()) {
                let is_it = |lane: &Option<(Pid, u32)>| lane.is_some_and(|(it, _)| it == pid);
                let Some(place) = lanes.iter().position(is_it) else { continue };
                let serial = lanes[place].take().map_or(0, |(_, serial)| serial);
                self.say(u32::try_from(place).unwrap_or(u32::MAX), serial, (word::ENDED, 0, 0), 0);
            }
            let mut order = Order::default();
            while fdbroker_scm::recv(self.orders.as_fd(), order.as_mut_bytes(), &mut self.no_fds)
                .is_ok()
            {
                let Order { place, serial, .. } = order;
                // SAFETY: this module's code neither allocates nor takes a lock.
                match unsafe { clone_with_fds(c"fdbroker-lane", || self.serve(order)) } {
                    Ok(pid) => {
                        if let Some(lane) = lanes.get_mut(place as usize) {
                            *lane = Some((pid, serial));
                        }
                    }
                    Err(errno) => {
                        self.say(place, serial, (word::NOT_STARTED, 0, errno as i64), 0);
                    }
                }
            }
        }
    }

    /// Says something, with this much of the text that lies in the buffer. Waits for the loop to
    /// read what was said before.
    fn say(&mut self, place: u32, serial: u32, (word, done, value): (u32, u32, i64), text: usize) {
        let said = Said { place, serial, word, done, value };
        let _ = said.write_to_prefix(&mut self.out);
        for length in [size_of::<Said>() + text, size_of::<Said>()] {
            let bytes = self.out.get(..length).unwrap_or_default();
            // Too long where the administrator has made the buffers of sockets tiny: then without
            // the text.
            if fdbroker_scm::send_timeout(self.said.as_fd(), bytes, &[], None).is_ok() {
                return;
            }
        }
    }

    // --- in a lane -------------------------------------------------------------------------------

    fn serve(&mut self, order: Order) {
        let Order { place, serial, line } = order;
        // SAFETY: the loop keeps it open until this process has ended.
        let line = unsafe { BorrowedFd::borrow_raw(line) };
        self.say(place, serial, (word::READY, 0, 0), 0);
        let mut jobs = [Job::default(); LANE_BATCH];
        loop {
            let received = fdbroker_scm::recv_waiting(line, jobs.as_mut_bytes(), &mut self.no_fds);
            match received {
                Ok(message) if message.len >= size_of::<Job>() => {
                    let count = message.len / size_of::<Job>();
                    self.work(order, jobs.get(..count).unwrap_or_default());
                }
                // It may have to end: while another process shares them, the kernel counts
                // references at each use of the loop's fds.
                Err(RecvError::WouldBlock) => self.say(place, serial, (word::IDLE, 0, 0), 0),
                _ => return,
            }
        }
    }

    /// Does the jobs. What takes no time is reported in one go: else the loop is woken for each.
    fn work(&mut self, Order { place, serial, .. }: Order, jobs: &[Job]) {
        let mut since = Instant::now();
        let last = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        for (number, job) in (1..).zip(jobs) {
            Progress(&self.progress, place as usize).set(number, number - 1);
            let found = self.run(*job);
            // Before it is said: the loop gives the next jobs when it has heard of the last one,
            // and they count from 0.
            Progress(&self.progress, place as usize).set(number, number);
            let (value, text) = found.unwrap_or_default();
            if found.is_some() || number == last || since.elapsed() > LANE_REPORT {
                self.say(place, serial, (word::DONE, number, value), text);
                since = Instant::now();
            }
        }
    }

    /// Does a job; what was found, if it looks for something: a number, and how long the text in
    /// the buffer is.
    fn run(&mut self, job: Job) -> Option<(i64, usize)> {
        let close = |fd: OwnedFd, lane| (self.calls.close)(fd, lane);
        // SAFETY: the loop has given it away with this job, or keeps it open until the job is done.
        let lent = unsafe { BorrowedFd::borrow_raw(job.fd.max(0)) };
        // SAFETY: called where the loop has given the fd away with this job.
        let own = || unsafe { OwnedFd::from_raw_fd(job.fd) };
        match job.act {
            act::CLOSE => close(own(), Lane::Refused),
            act::CLOSE_ACCEPTED => close(own(), Lane::Accepted),
            act::LOOK => {
                let found = (self.calls.look)(lent);
                close(own(), Lane::Refused);
                return Some((device_number(found), 0));
            }
            act::DROP => {
                let socket = own();
                drop_messages(socket.as_fd(), job.number, &mut self.no_fds);
            }
            act::EMPTY => {
                let socket = own();
                let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
                drop_messages(socket.as_fd(), job.number, &mut self.no_fds);
            }
            act::TURN_AWAY => {
                let socket = own();
                let message = self.writer.failed(0, job.status());
                let _ = fdbroker_scm::send(socket.as_fd(), message, &[]);
                (self.calls.close)(socket, Lane::Refused);
            }
            act::PROCESS => return Some(self.read_process(job.number)),
            act::PROCESS_OF_POD => {
                let is_good = self.calls.roots_own.iter().all(|path| is_roots_own(path));
                let refused = (-i64::from(libc::EACCES), 0);
                return Some(if is_good { self.read_process(job.number) } else { refused });
            }
            act::READ => return Some((number_of(self.read_file(lent)), 0)),
            act::OPEN => {
                let opened = open_for_readers(lent);
                close(own(), Lane::Refused);
                return Some((
                    number_of(opened.map(|fd| fd.into_raw_fd().cast_unsigned() as usize)),
                    0,
                ));
            }
            _ => {}
        }
        None
    }

    /// Reads what /proc says of a process into the buffer: the bytes of its cgroups, and of all.
    fn read_process(&mut self, pid: u32) -> (i64, usize) {
        let text = self.out.get_mut(size_of::<Said>()..).unwrap_or_default();
        let (cgroups, _) = text.split_at_mut(CGROUP_FILE_BYTES);
        let cgroup = read_of_process(pid, "cgroup", cgroups);
        let length = cgroup.unwrap_or(0);
        let rest = text.get_mut(length..length + STAT_BYTES).unwrap_or_default();
        let stat = read_of_process(pid, "stat", rest).unwrap_or(0);
        (number_of(cgroup), length + stat)
    }

    /// Reads the file whose path a memfd begins with, and writes its bytes behind: how many there
    /// are.
    fn read_file(&mut self, memfd: BorrowedFd<'_>) -> nix::Result<usize> {
        let mut path = [0; PATH_BYTES];
        pread(memfd, &mut path, 0)?;
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::ENAMETOOLONG)?;
        let file = open_config(path)?;
        let mut length = 0;
        loop {
            let count = match read(&file, &mut self.out) {
                Ok(0) => return Ok(length),
                Err(Errno::EINTR) => continue,
                count => count?,
            };
            if length + count > CONFIG_FILE_BYTES {
                return Err(Errno::EFBIG);
            }
            let bytes = self.out.get(..count).unwrap_or_default();
            pwrite(memfd, bytes, (PATH_BYTES + length) as libc::off_t)?;
            length += count;
        }
    }
}

fn number_of(found: nix::Result<usize>) -> i64 {
    found.map_or_else(|errno| -(errno as i64), |number| number as i64)
}

/// Reads a file of a process, as much as there is room for.
fn read_of_process(pid: u32, name: &str, buffer: &mut [u8]) -> nix::Result<usize> {
    let mut path = [0; 32];
    let _ = write!(&mut path[..], "/proc/{pid}/{name}\0");
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::ENAMETOOLONG)?;
    let file = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut length = 0;
    loop {
        match read(&file, buffer.get_mut(length..).unwrap_or_default()) {
            Ok(0) => return Ok(length),
            Err(Errno::EINTR) => {}
            count => length += count?,
        }
    }
}

/// Whether root alone can make something in a directory, or it is not there.
fn is_roots_own(path: &CStr) -> bool {
    match stat(path) {
        Ok(found) => found.st_uid == 0 && found.st_mode & 0o022 == 0,
        Err(errno) => errno == Errno::ENOENT,
    }
}

/// Takes messages out of a socket without taking in their fds: the kernel closes them here.
fn drop_messages(socket: BorrowedFd<'_>, most: u32, no_fds: &mut ReceivedFds) {
    for _ in 0..most {
        match fdbroker_scm::recv(socket, &mut [0], no_fds) {
            Ok(_) | Err(RecvError::EmptyMessage) => {}
            Err(_) => return,
        }
    }
}
