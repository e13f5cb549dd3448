//! `fdbroker top`: shows the node live on a terminal, or prints one frame. Must never leave the
//! terminal changed, nor stop answering keys and signals while the broker does not answer.

mod args;
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

pub use args::Args;

use crate::admin::{Selection, viewing};
use crate::error::{Context, Error, Result};
use crate::events::stream::{self, Stream, Told, Watching, unix_us};
use crate::output::{Output, colour_wanted, terminal};
use crate::signals::Signals;
use events::Event;
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

/// Time between two tries to reach a broker that is gone, and between two frames while the broker
/// hangs.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of keys that are read at once.
const INPUT_BYTES: usize = 256;
/// Shortest time between two looks at events. Each look draws a frame, and a busy broker sends
/// thousands of events a second.
const EVENTS_INTERVAL: Duration = Duration::from_millis(100);
/// Most messages of events that are read for `--once`: more than a broker keeps for a watcher.
const PLAIN_MESSAGES: usize = 32;
/// The size of a frame if stdout is not a terminal.
const PLAIN_SIZE: (u16, u16) = (80, 24);

/// Shows the broker that the environment names.
pub fn run(Args { once, interval }: Args) -> Result<()> {
    if once {
        return print_once(interval);
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "top needs a terminal for its keys and its screen; elsewhere use `fdbroker top --once`, which prints one frame, or `fdbroker watch`".into(),
        ));
    }
    let mut admin = viewing::connect()?;
    let first = Sample::take(&mut admin)?;
    let signals = Signals::take_over_with(&[Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT])?;
    // After the signals are blocked: the thread must not receive them.
    let sampler = Sampler::start(admin)?;
    // Before the first frame: no event after it is missed. If it fails, the thread tries again and
    // says why.
    let watching = viewing::connect_again().and_then(|it| Watching::begin(it, Selection::ALL)).ok();
    let events = stream::start(watching, Selection::ALL, None, viewing::connect_again)?;
    let watched = Watched { stream: Some(events), due: first.at };
    let choice = Choice { interval, ..Choice::default() };
    let asking = Asking { sampler, due: first.at + interval, asked_at: None };
    let (model, decoder) = (Model::new(first), Decoder::default());
    let mut top = Top { model, choice, asking, watched, decoder };
    top.show(&signals, &mut Screen::open()?)
}

fn print_once(interval: Duration) -> Result<()> {
    let mut admin = viewing::connect()?;
    let mut model = Model::new(Sample::take(&mut admin)?);
    let watching = viewing::connect_again().and_then(|it| Watching::begin(it, Selection::ALL));
    std::thread::sleep(interval);
    model.update(Sample::take(&mut admin)?);
    match watching.and_then(|it| happened(it, &mut model)) {
        Ok(()) => {}
        Err(error) => model.events.add(Event::none(unix_us(), &error), false),
    }
    let stdout = std::io::stdout();
    // One line less than the terminal has, for the prompt.
    let size =
        terminal::size(std::io::stdout()).map(|(width, height)| (width, height.saturating_sub(1)));
    let (width, height) = size.unwrap_or(PLAIN_SIZE);
    let mut buf = Buffer::empty(Rect::new(0, 0, width, height.max(1)));
    let choice = Choice { interval, ..Choice::default() };
    View { model: &model, choice: &choice, waited: None, has_keys: false }.draw(&mut buf);
    let styled = colour_wanted(stdout.is_terminal());
    let mut out = Output::stdout();
    out.text(&plain::text(&buf, styled))?;
    out.finish()
}

/// Adds the events that have arrived to the model.
fn happened(mut watching: Watching, model: &mut Model) -> Result<()> {
    for _ in 0..PLAIN_MESSAGES {
        let Some(records) = watching.try_next()? else { break };
        model.events.tell(&Told::Events(records), false);
    }
    Ok(())
}

/// Samples of the broker.
struct Asking {
    sampler: Sampler,
    /// Time of the next question.
    due: Instant,
    /// Time of a question without an answer.
    asked_at: Option<Instant>,
}

/// Events of the broker.
struct Watched {
    /// `None`: the stream has ended for good.
    stream: Option<Stream>,
    /// Time of the next look.
    due: Instant,
}

/// Everything that a live top needs.
struct Top {
    model: Model,
    choice: Choice,
    asking: Asking,
    watched: Watched,
    decoder: Decoder,
}

impl Top {
    /// Runs until the user quits or a signal ends it.
    fn show(&mut self, signals: &Signals, screen: &mut Screen) -> Result<()> {
        loop {
            self.draw(screen)?;
            let has_input = self.wait(signals)?;
            while let Some(received) = signals.next() {
                match received.signal {
                    // The next frame will have the new size.
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
            self.take_events()?;
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
            self.ask_if_due();
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> Result<()> {
        let waited = self.asking.asked_at.map(|at| at.elapsed());
        let view = View { model: &self.model, choice: &self.choice, waited, has_keys: true };
        if let Some(shown) = screen.draw(|buf| view.draw(buf))? {
            self.choice.shown = shown;
        }
        Ok(())
    }

    /// Waits for a key, a signal, an answer, events or the time of the next question; gives whether
    /// there is input.
    fn wait(&self, signals: &Signals) -> Result<bool> {
        let now = Instant::now();
        let until_due = self.asking.due.saturating_duration_since(now);
        let until_events = self.watched.due.saturating_duration_since(now);
        let limit = match self.asking.asked_at {
            _ if self.decoder.is_waiting() => SEQUENCE_WAIT,
            Some(_) => RETRY_INTERVAL,
            None if self.choice.is_paused => RETRY_INTERVAL,
            None => until_due,
        };
        // Events are waited for from the time of the next look on.
        let limit = if until_events.is_zero() { limit } else { limit.min(until_events) };
        // Rounded up: a wait that ends too early would be repeated without a pause.
        let limit = i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX);
        let stdin = std::io::stdin();
        let mut fds = vec![stdin.as_fd(), signals.as_fd(), self.asking.sampler.as_fd()];
        fds.extend(
            self.watched.stream.as_ref().filter(|_| until_events.is_zero()).map(AsFd::as_fd),
        );
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) {
            Ok(_) => Ok(fds[0].any().unwrap_or(true)),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno).context(|| "wait for keys"),
        }
    }

    /// Takes an answer. While paused, the model does not change.
    fn answered(&mut self, outcome: Result<Sample>) {
        match outcome {
            _ if self.choice.is_paused => {}
            Ok(sample) => self.model.update(sample),
            Err(error) => {
                self.model.lose(error.to_string());
                self.asking.due = Instant::now() + RETRY_INTERVAL;
            }
        }
    }

    /// Adds new events to the model, if it is time for a look.
    fn take_events(&mut self) -> Result<()> {
        if !self.choice.is_paused {
            self.model.events.go_on();
        }
        let now = Instant::now();
        let Some(stream) = self.watched.stream.as_ref().filter(|_| now >= self.watched.due) else {
            return Ok(());
        };
        let all = stream.take()?;
        if !all.is_empty() {
            self.watched.due = now + EVENTS_INTERVAL;
        }
        for told in &all {
            self.model.events.tell(told, self.choice.is_paused);
        }
        if matches!(all.last(), Some(Told::Over { .. })) {
            self.watched.stream = None;
        }
        Ok(())
    }

    fn ask_if_due(&mut self) {
        let now = Instant::now();
        // A shorter interval takes effect at once.
        self.asking.due = self.asking.due.min(now + self.choice.interval.max(RETRY_INTERVAL));
        if self.asking.asked_at.is_none() && !self.choice.is_paused && now >= self.asking.due {
            self.asking.sampler.ask();
            self.asking.asked_at = Some(now);
            self.asking.due = now + self.choice.interval;
        }
    }
}
