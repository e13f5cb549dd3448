//! The terminal while `top` has it: raw keys, the alternate screen. Must never be left so, however `top` ends: by its
//! end, an error, a signal or a panic.

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

/// The terminal is not as it was. Read and changed with standard output locked: whoever gives the terminal back does it
/// between two frames, and once.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, taken; given back when this is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    has_colour: bool,
}

impl Screen {
    /// Takes the terminal that standard output is.
    pub fn open() -> Result<Self> {
        // Else the message would be on the alternate screen, and gone with it.
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

    /// Takes it again, after somebody else may have used it, and empties it.
    pub fn take(&mut self) -> Result<()> {
        // A shell may have changed the mode behind our back; taking it twice would do nothing.
        give_back();
        // First: what fails half way is to be given back, too.
        IS_TAKEN.store(true, Ordering::Relaxed);
        enable_raw_mode().context(|| "set the terminal to raw mode")?;
        execute!(stdout(), EnterAlternateScreen).context(|| "use the terminal")?;
        self.clear()
    }

    /// Empties it, so that the next frame is drawn whole.
    pub fn clear(&mut self) -> Result<()> {
        let _between_frames = stdout().lock();
        if !IS_TAKEN.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.terminal.hide_cursor().context(|| "use the terminal")?;
        // Not `Terminal::clear`: it asks the terminal where the cursor is, and waits on standard input for the answer,
        // without end when the terminal is gone.
        let size = self.terminal.size().context(|| "use the terminal")?;
        self.terminal.resize(size.into()).context(|| "clear the terminal")
    }

    /// Draws one frame, as large as the terminal is now; `None`: another thread has panicked, and given it back.
    pub fn draw<T>(&mut self, draw: impl FnOnce(&mut Buffer) -> T) -> Result<Option<T>> {
        // Locked by this thread already if it panics in here: the lock is reentrant.
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

    /// Gives the terminal back and stops, as Ctrl-Z does; comes back with `fg`. `whole_job`: the terminal would have
    /// stopped every process of the foreground group.
    pub fn suspend(&mut self, whole_job: bool) -> Result<()> {
        give_back();
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTSTP);
        stop.thread_unblock().context(|| "unblock SIGTSTP")?;
        let whom = if whole_job { Pid::from_raw(0) } else { Pid::this() };
        kill(whom, Signal::SIGTSTP).context(|| "stop this job")?;
        // Here it stands still, until SIGCONT.
        stop.thread_block().context(|| "block SIGTSTP")?;
        self.take()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back as it was. What fails is left: there is nothing else to do.
fn give_back() {
    let _between_frames = stdout().lock();
    // Twice would put the cursor where it was at first, and what comes then over a panic's message.
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
