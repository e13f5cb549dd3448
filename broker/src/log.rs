//! The log: env_logger on stderr, with the journal's `<N>` priorities where stderr is the journal,
//! in words in a file or pipe. While the broker serves, a thread writes: stderr may be a pipe that
//! nobody reads, or a journal that is stopped. Must never make the loop wait, nor grow with what
//! nobody reads. The number of lines is the journal's to bound (`journal.rs`).

use crate::kernel;
use crate::limits::{LOG_BYTES_KEPT, LOG_PATIENCE, THREAD_STACK_BYTES};
use env_logger::{Target, WriteStyle};
use log::{Level, LevelFilter};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// Starts the log, once per process; a second call changes nothing.
pub fn start(level: LevelFilter) {
    let mut builder = env_logger::Builder::new();
    // What is shown is decided below, so that it can be changed at run time.
    builder.filter_level(LevelFilter::Trace);
    builder.target(Target::Pipe(Box::new(Lines(Arc::clone(&STDERR)))));
    match std::io::stderr().is_terminal() {
        true if std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) => {
            builder.write_style(WriteStyle::Always);
        }
        true => {}
        false => {
            builder.format(|out, record| {
                let said = in_one_line(&record.args().to_string());
                writeln!(out, "{}{said}", prefix(record.level()))
            });
        }
    }
    if builder.try_init().is_ok() {
        log::set_max_level(level);
    }
}

/// One record for one message: names and values of others, which may have lines, stand in it.
fn in_one_line(said: &str) -> String {
    let part = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    said.chars().map(part).collect()
}

/// What is to be written to stderr.
static STDERR: LazyLock<Arc<Buffer>> = LazyLock::new(|| Arc::new(Buffer::new(write_to_stderr)));

/// Writes without the standard library's lock: a panic of the loop is to be said although this may
/// hang.
fn write_to_stderr(mut bytes: &[u8]) {
    let stderr = std::io::stderr();
    while !bytes.is_empty() {
        match nix::unistd::write(&stderr, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let mut room = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
                let _ = poll(&mut room, PollTimeout::NONE);
            }
            Err(_) => return,
        }
    }
}

/// The writer of lines to stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// Each thread writes its own lines: before the broker serves.
    Everybody,
    /// A thread, from the buffer.
    Thread,
    /// Nobody: what the thread was to write at the end was not taken in time.
    Nobody,
}

/// Writes bytes, however long that takes.
type WriteFn = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Lines that a thread is to write.
struct Buffer {
    state: Mutex<State>,
    changed: Condvar,
    write: WriteFn,
}

struct State {
    writer: Writer,
    lines: Vec<u8>,
    /// Lines that there was no room for.
    lost: u64,
    /// The thread has taken lines that are not written yet.
    is_writing: bool,
    is_ended: bool,
}

impl Buffer {
    fn new(write: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        let state = State {
            writer: Writer::Everybody,
            lines: Vec::new(),
            lost: 0,
            is_writing: false,
            is_ended: false,
        };
        Buffer { state: Mutex::new(state), changed: Condvar::new(), write: Box::new(write) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line, or keeps it for the thread.
    fn add(&self, line: &[u8]) {
        let mut state = self.state();
        match state.writer {
            Writer::Nobody => {}
            Writer::Everybody => {
                drop(state);
                (self.write)(line);
            }
            Writer::Thread if state.lines.len() + line.len() > LOG_BYTES_KEPT => state.lost += 1,
            Writer::Thread => {
                state.lines.extend_from_slice(line);
                drop(state);
                self.changed.notify_all();
            }
        }
    }

    /// The thread: writes until the end, and then what is left.
    fn run(&self) {
        let mut state = self.state();
        loop {
            let lines = std::mem::take(&mut state.lines);
            let lost = std::mem::take(&mut state.lost);
            if lines.is_empty() && lost == 0 {
                if state.is_ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_writing = true;
            drop(state);
            (self.write)(&lines);
            if lost > 0 {
                let warning = prefix(Level::Warn);
                let text = format!("{warning}{lost} lines of the log are lost: nobody read it\n");
                (self.write)(text.as_bytes());
            }
            state = self.state();
            state.is_writing = false;
            self.changed.notify_all();
        }
    }
}

/// The buffer, as env_logger writes to it: whole lines.
struct Lines(Arc<Buffer>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// While this value is there, a thread writes the log.
pub struct LogThread(Arc<Buffer>);

impl LogThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start() -> io::Result<Self> {
        Self::of(Arc::clone(&STDERR))
    }

    fn of(buffer: Arc<Buffer>) -> io::Result<Self> {
        let its = Arc::clone(&buffer);
        buffer.state().writer = Writer::Thread;
        let log = LogThread(buffer);
        let thread = std::thread::Builder::new().name("log".into()).stack_size(THREAD_STACK_BYTES);
        // Signals are the loop's.
        let former = SigSet::thread_get_mask()?;
        SigSet::all().thread_block()?;
        let started = thread.spawn(move || {
            kernel::leave_fd_table(true);
            its.run();
        });
        former.thread_set_mask()?;
        started.map(|_| log)
    }
}

impl Drop for LogThread {
    /// Waits a little until all is written.
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_ended = true;
        self.0.changed.notify_all();
        let is_left = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let waited = self.0.changed.wait_timeout_while(state, LOG_PATIENCE, is_left);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.writer = if timeout.timed_out() { Writer::Nobody } else { Writer::Everybody };
    }
}

/// Whether stderr is the journal's: its device and inode are those that the service manager names
/// (systemd.exec(5)).
static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    is_stream(std::io::stderr(), &stream)
});

fn is_stream(fd: impl AsFd, stream: &str) -> bool {
    nix::sys::stat::fstat(fd).is_ok_and(|it| stream == format!("{}:{}", it.st_dev, it.st_ino))
}

/// What a line of this level begins with: for the journal its priority (sd-daemon(3)).
pub fn prefix(level: Level) -> &'static str {
    match (*IS_JOURNAL, level) {
        (true, Level::Error) => "<3>",
        (true, Level::Warn) => "<4>",
        (true, Level::Info) => "<6>",
        (true, Level::Debug | Level::Trace) => "<7>",
        (false, Level::Error) => "fdbrokerd: error: ",
        (false, Level::Warn) => "fdbrokerd: warning: ",
        (false, _) => "fdbrokerd: ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A buffer whose writer waits for each word that it is sent.
    fn buffer() -> (Arc<Buffer>, mpsc::Sender<()>, Arc<Mutex<Vec<String>>>) {
        let (go_on, wait) = mpsc::channel::<()>();
        let (wait, written) = (Mutex::new(wait), Arc::new(Mutex::new(Vec::new())));
        let its = Arc::clone(&written);
        let write = move |bytes: &[u8]| {
            let _ = wait.lock().unwrap().recv();
            its.lock().unwrap().push(String::from_utf8(bytes.to_vec()).unwrap());
        };
        (Arc::new(Buffer::new(write)), go_on, written)
    }

    #[test]
    fn in_one_line_when_there_are_several_or_control_characters_then_they_are_seen() {
        assert_eq!(in_one_line("a\nb\x1b[1m\u{e9}"), "a\\nb\\u{1b}[1m\u{e9}");
    }

    #[test]
    fn log_when_nobody_reads_it_then_no_line_waits_and_what_is_lost_is_counted() {
        let (buffer, go_on, written) = buffer();
        let log = LogThread::of(Arc::clone(&buffer)).unwrap();
        buffer.add(b"first\n");
        while !buffer.state().is_writing {
            std::thread::yield_now();
        }
        let line = [b'x'; 1023];
        let kept = LOG_BYTES_KEPT / line.len();
        (0..kept + 7).for_each(|_| buffer.add(&line));
        assert!(written.lock().unwrap().is_empty());
        drop(go_on);
        drop(log);
        let written = written.lock().unwrap();
        assert_eq!(written[0], "first\n");
        assert_eq!(written[1].len(), kept * line.len());
        assert_eq!(
            written[2],
            format!("{}7 lines of the log are lost: nobody read it\n", prefix(Level::Warn))
        );
    }

    #[test]
    fn is_stream_when_device_and_inode_are_those_of_the_fd_then_alone() {
        let (one, other) = (std::io::pipe().unwrap().0, std::io::pipe().unwrap().0);
        let of = nix::sys::stat::fstat(&one).unwrap();
        let stream = format!("{}:{}", of.st_dev, of.st_ino);
        assert!(is_stream(&one, &stream) && !is_stream(&other, &stream));
        assert!(!is_stream(&one, "") && !is_stream(&one, "1:"));
    }

    #[test]
    fn log_when_its_thread_has_ended_then_lines_are_written_at_once_or_not_at_all_if_it_hangs() {
        for is_read in [true, false] {
            let (buffer, go_on, written) = buffer();
            let log = LogThread::of(Arc::clone(&buffer)).unwrap();
            buffer.add(b"first\n");
            let go_on = if is_read {
                drop(go_on);
                None
            } else {
                Some(go_on)
            };
            drop(log);
            buffer.add(b"second\n");
            let expected: &[&str] = if is_read { &["first\n", "second\n"] } else { &[] };
            assert_eq!(written.lock().unwrap()[..], *expected);
            drop(go_on);
        }
    }
}
