//! `fdbroker top`: the node live on a terminal, or one frame of it as text. Must never leave the terminal changed, nor
//! stop answering keys and signals because the broker does not answer.

mod events;
mod grid;
mod keys;
mod model;
mod plain;
mod sample;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use crate::admin::Admin;
use crate::error::{Context, Error, Result};
use crate::output::{Output, colour_wanted};
use crate::signals::Signals;
use crate::terminal;
use keys::{Act, Choice, Decoder, SEQUENCE_WAIT};
use model::Model;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use sample::{Sample, Sampler};
use screen::Screen;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use view::View;

/// Shortest interval: each look costs the broker some pages of answers.
const LEAST_INTERVAL_S: f64 = 0.1;
/// Longest: an hour, as good as none.
const MOST_INTERVAL_S: f64 = 3600.0;
/// How often a broker that is gone is looked for, and the time waited for one that hangs is shown.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of keys read at once.
const INPUT_BYTES: usize = 256;
/// The size of a frame that is not for a terminal.
const PLAIN_SIZE: (u16, u16) = (80, 24);

/// Reads an interval in seconds.
pub fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match (LEAST_INTERVAL_S..=MOST_INTERVAL_S).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("it must be from {LEAST_INTERVAL_S} to {MOST_INTERVAL_S} seconds")),
    }
}

/// Shows the broker that the environment names.
pub fn run(once: bool, interval: Duration) -> Result<()> {
    if once {
        return print_once(interval);
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "top needs a terminal for its keys and its screen; elsewhere use `fdbroker top --once`, which prints one frame, or `fdbroker watch`".into(),
        ));
    }
    let mut admin = Admin::from_env()?;
    let first = Sample::take(&mut admin)?;
    let signals = Signals::take_over_with(&[Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT])?;
    // After the signals are blocked, so that none ends up in the thread.
    let sampler = Sampler::start(admin)?;
    let choice = Choice { interval, ..Choice::default() };
    let asking = Asking { sampler, due: first.at + interval, asked_at: None };
    let mut top = Top { model: Model::new(first), choice, asking, decoder: Decoder::default() };
    top.show(&signals, &mut Screen::open()?)
}

fn print_once(interval: Duration) -> Result<()> {
    let mut admin = Admin::from_env()?;
    let mut model = Model::new(Sample::take(&mut admin)?);
    std::thread::sleep(interval);
    model.update(Sample::take(&mut admin)?);
    let stdout = std::io::stdout();
    // One line less than the terminal has: the prompt needs it.
    let size =
        terminal::size(std::io::stdout()).map(|(width, height)| (width, height.saturating_sub(1)));
    let (width, height) = size.unwrap_or(PLAIN_SIZE);
    let mut buf = Buffer::empty(Rect::new(0, 0, width, height.max(1)));
    let choice = Choice { interval, ..Choice::default() };
    let now = model.latest.at;
    View { model: &model, choice: &choice, now, waited: None, has_keys: false }.draw(&mut buf);
    let styled = colour_wanted(stdout.is_terminal());
    let mut out = Output::stdout();
    out.text(&plain::text(&buf, styled))?;
    out.finish()
}

/// When the broker is asked.
struct Asking {
    sampler: Sampler,
    /// The next time.
    due: Instant,
    /// There is a question that has no answer yet.
    asked_at: Option<Instant>,
}

/// All of it while it is shown.
struct Top {
    model: Model,
    choice: Choice,
    asking: Asking,
    decoder: Decoder,
}

impl Top {
    /// Until the user quits or a signal ends it.
    fn show(&mut self, signals: &Signals, screen: &mut Screen) -> Result<()> {
        loop {
            self.draw(screen)?;
            let has_input = self.wait(signals)?;
            while let Some(received) = signals.next() {
                match received.signal {
                    // The next frame has the new size.
                    Signal::SIGWINCH => {}
                    Signal::SIGCONT => screen.take()?,
                    Signal::SIGTSTP => screen.suspend(false)?,
                    signal => return Err(Error::Interrupted(signal)),
                }
            }
            if let Some(outcome) = self.asking.sampler.take()? {
                self.asking.asked_at = None;
                self.answered(outcome);
            }
            let mut pressed = Vec::new();
            if has_input {
                let mut bytes = [0; INPUT_BYTES];
                match nix::unistd::read(std::io::stdin(), &mut bytes) {
                    // The terminal is gone.
                    Ok(0) => return Ok(()),
                    Ok(count) => pressed = self.decoder.decode(&bytes[..count]),
                    Err(Errno::EINTR | Errno::EAGAIN) => {}
                    Err(errno) => return Err(errno).context(|| "read keys from the terminal"),
                }
            } else if self.decoder.is_waiting() {
                pressed.extend(self.decoder.give_up());
            }
            for key in pressed {
                match self.choice.press(key) {
                    Act::Draw => {}
                    Act::Repaint => screen.clear()?,
                    Act::Suspend => screen.suspend(true)?,
                    Act::Quit => return Ok(()),
                }
            }
            self.ask_if_due()?;
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> Result<()> {
        let now = Instant::now();
        let waited = self.asking.asked_at.map(|at| now.saturating_duration_since(at));
        let view = View { model: &self.model, choice: &self.choice, now, waited, has_keys: true };
        if let Some(shown) = screen.draw(|buf| view.draw(buf))? {
            self.choice.shown = shown;
        }
        Ok(())
    }

    /// Waits for a key, a signal, an answer or the next time to ask; says whether there is input.
    fn wait(&self, signals: &Signals) -> Result<bool> {
        let until_due = self.asking.due.saturating_duration_since(Instant::now());
        let limit = match self.asking.asked_at {
            _ if self.decoder.is_waiting() => SEQUENCE_WAIT,
            Some(_) => RETRY_INTERVAL,
            None if self.choice.is_paused => RETRY_INTERVAL,
            None => until_due,
        };
        // Rounded up: a wait that ends too early would be repeated without rest.
        let limit = i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX);
        let stdin = std::io::stdin();
        let mut fds = [stdin.as_fd(), signals.as_fd(), self.asking.sampler.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) {
            Ok(_) => Ok(fds[0].any().unwrap_or(true)),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno).context(|| "wait for keys"),
        }
    }

    /// A pause shows what it was begun with, whatever comes then.
    fn answered(&mut self, outcome: Result<Sample>) {
        match outcome {
            _ if self.choice.is_paused => {}
            Ok(sample) => self.model.update(sample),
            Err(error) => {
                self.model.lose(Instant::now(), error.to_string());
                self.asking.due = Instant::now() + RETRY_INTERVAL;
            }
        }
    }

    fn ask_if_due(&mut self) -> Result<()> {
        let now = Instant::now();
        // A shorter interval counts at once.
        self.asking.due = self.asking.due.min(now + self.choice.interval.max(RETRY_INTERVAL));
        if self.asking.asked_at.is_none() && !self.choice.is_paused && now >= self.asking.due {
            self.asking.sampler.ask()?;
            self.asking.asked_at = Some(now);
            self.asking.due = now + self.choice.interval;
        }
        Ok(())
    }
}
