//! The terminal in raw mode with the alternate screen. Must always be restored, whether `top` ends
//! by a key, an error, a signal or a panic.

use crate::error::{Context, Result};
use crate::output::colour_wanted;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::style::Color;
use std::io::{Stdout, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the terminal is in raw mode. Only used with stdout locked, so that the terminal is
/// restored once, and between two frames.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal; restored when this is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    has_colour: bool,
}

impl Screen {
    /// Takes the terminal of stdout.
    pub fn open() -> Result<Self> {
        // Otherwise the panic's message would vanish with the alternate screen.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let backend = CrosstermBackend::new(stdout());
        let terminal = Terminal::new(backend).context(|| "use the terminal")?;
        let mut screen = Screen { terminal, has_colour: colour_wanted(true) };
        screen.take()?;
        Ok(screen)
    }

    /// Takes the terminal again after another program may have used it, and clears it.
    pub fn take(&mut self) -> Result<()> {
        // A shell may have changed the mode meanwhile, and enabling raw mode twice does nothing.
        give_back();
        // First, so that a failure below restores the terminal too.
        IS_TAKEN.store(true, Ordering::Relaxed);
        enable_raw_mode().context(|| "set the terminal to raw mode")?;
        execute!(stdout(), EnterAlternateScreen).context(|| "use the terminal")?;
        self.clear()
    }

    /// Clears the screen; the next frame is drawn completely.
    pub fn clear(&mut self) -> Result<()> {
        let _between_frames = stdout().lock();
        if !IS_TAKEN.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.terminal.hide_cursor().context(|| "use the terminal")?;
        // Not `Terminal::clear`: it asks the terminal for the cursor's place and waits on stdin for
        // the answer, for ever if the terminal is gone.
        let size = self.terminal.size().context(|| "use the terminal")?;
        self.terminal.resize(size.into()).context(|| "clear the terminal")
    }

    /// Draws a frame in the current size of the terminal; `None`: another thread has panicked and
    /// restored the terminal.
    pub fn draw<T>(&mut self, draw: impl FnOnce(&mut Buffer) -> T) -> Result<Option<T>> {
        // A panic in here locks again in this thread: the lock is reentrant.
        let _whole = stdout().lock();
        if !IS_TAKEN.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (mut shown, has_colour) = (None, self.has_colour);
        let drawn = self.terminal.draw(|frame| {
            let buf = frame.buffer_mut();
            shown = Some(draw(buf));
            if !has_colour {
                remove_colours(buf);
            }
        });
        drawn.context(|| "draw on the terminal")?;
        Ok(shown)
    }

    /// Restores the terminal and stops this process as Ctrl-Z does; returns after `fg`.
    /// `whole_job`: stops every process of the foreground group, as the terminal would.
    pub fn suspend(&mut self, whole_job: bool) -> Result<()> {
        give_back();
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTSTP);
        stop.thread_unblock().context(|| "unblock SIGTSTP")?;
        let whom = if whole_job { Pid::from_raw(0) } else { Pid::this() };
        kill(whom, Signal::SIGTSTP).context(|| "stop this job")?;
        // Stopped here, until SIGCONT.
        stop.thread_block().context(|| "block SIGTSTP")?;
        self.take()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal. Errors are ignored: nothing else can be done.
fn give_back() {
    let _between_frames = stdout().lock();
    // A second time would move the cursor back, so that later text overwrites a panic's message.
    if !IS_TAKEN.swap(false, Ordering::Relaxed) {
        return;
    }
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

fn remove_colours(buf: &mut Buffer) {
    for cell in &mut buf.content {
        cell.fg = Color::Reset;
        cell.bg = Color::Reset;
    }
}
