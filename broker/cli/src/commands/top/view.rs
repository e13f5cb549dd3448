//! Draws a frame of `top` from the model and the user's choice into a buffer. Must never fail,
//! whatever the size, nor read a clock.

use super::grid;
use super::keys::{Choice, Shown};
use super::model::{Model, client_columns, columns, is_open};
use crate::admin::OWN_PART;
use crate::output::{commas, human_time};
use crate::records::{self, UseView, leases};
use fdbroker_protocol::Resource;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use std::time::Duration;

/// Columns of the oldest leases by their keys.
const LEASE_KEYS: [&str; 8] =
    ["age_seconds", "allocation", "state", "size_bytes", "pid", "name", "owner_pid", "ended"];
/// Least width of a bar.
const LEAST_BAR: u16 = 6;
/// The bar of a cap that is used to this percentage stands out.
const NEARLY_FULL_PERCENT: u64 = 90;

/// The input of a frame.
pub struct View<'a> {
    pub model: &'a Model,
    pub choice: &'a Choice,
    /// Time since a question that the broker has not answered.
    pub waited: Option<Duration>,
    /// The last line explains the keys.
    pub has_keys: bool,
}

/// Number of lines of each part, between the header and the line of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heights {
    caps: u16,
    rates: u16,
    clients: u16,
    leases: u16,
    events: u16,
}

/// Divides `height` lines. Caps and clients come first; parts without room are left out.
fn heights(height: u16, has_keys: bool) -> Heights {
    let all_caps = u16::try_from(Resource::COUNT).unwrap_or(u16::MAX);
    let caps = match height {
        0..6 => 1,
        6..16 => 3,
        16..32 => 6,
        32..40 => 9,
        _ => all_caps,
    };
    let rates = u16::from(height >= 8);
    let rest = height.saturating_sub(1 + u16::from(has_keys) + caps + rates);
    let events = if rest >= 9 { (rest / 5).max(3) } else { 0 };
    let leases = if rest >= 12 { (rest / 4).max(4) } else { 0 };
    Heights { caps, rates, clients: rest - events - leases, leases, events }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

fn alarm() -> Style {
    bold().fg(Color::Red)
}

impl View<'_> {
    /// Fills `buf`; gives the sizes for keys that scroll.
    pub fn draw(&self, buf: &mut Buffer) -> Shown {
        let area = buf.area;
        let heights = heights(area.height, self.has_keys);
        let mut y = area.y;
        let mut next = |height: u16| {
            let part = Rect::new(area.x, y, area.width, height).intersection(area);
            y = y.saturating_add(height);
            part
        };
        self.header(buf, next(1));
        if self.choice.helps {
            help(buf, next(area.height.saturating_sub(1)));
            return self.choice.shown;
        }
        self.caps(buf, next(heights.caps));
        self.rates(buf, next(heights.rates));
        let shown = self.clients(buf, next(heights.clients));
        self.leases(buf, next(heights.leases));
        self.events(buf, next(heights.events));
        if self.has_keys {
            self.keys(buf, next(1));
        }
        shown
    }

    fn header(&self, buf: &mut Buffer, area: Rect) {
        let status = &self.model.latest.status;
        let waited = self.waited.filter(|waited| *waited >= Duration::from_secs(2));
        let (text, style) = match (&self.model.lost, waited) {
            (Some(why), _) => {
                (format!("fdbroker top: NO BROKER, trying again each second; {why}"), alarm())
            }
            (None, Some(waited)) => {
                let seconds = waited.as_secs();
                (format!("fdbroker top: the broker has not answered for {seconds} s"), alarm())
            }
            (None, None) => {
                let whose = if status.scope == OWN_PART { "your own part of " } else { "" };
                let text = format!(
                    "fdbroker top: {whose}broker {}, up {}, {} connections, {} parked, every {} s",
                    status.pid,
                    human_time(status.uptime_ms),
                    commas(status.uses.connections.now),
                    commas(status.uses.parked_requests.now),
                    self.choice.interval.as_secs_f64(),
                );
                (text, bold())
            }
        };
        let text = if self.choice.is_paused { format!("PAUSED {text}") } else { text };
        put(buf, area, 0, &text, style);
    }

    fn caps(&self, buf: &mut Buffer, area: Rect) {
        for (line, (resource, item)) in (0..area.height).zip(self.model.uses()) {
            let show = |number| records::amount(resource, number);
            cap(buf, line_of(area, line), resource.name(), item, &show);
        }
    }

    fn rates(&self, buf: &mut Buffer, area: Rect) {
        let text = match self.model.rates_named() {
            None if self.model.latest.status.counters.is_none() => {
                "per s: counted of the whole node alone".to_owned()
            }
            None => "per s: not known yet".to_owned(),
            Some(rates) => {
                let mut text = "per s:".to_owned();
                for (name, rate) in rates {
                    let one = format!("  {} {name}", rate_shown(rate));
                    if text.len() + one.len() > usize::from(area.width) {
                        break;
                    }
                    text += &one;
                }
                text
            }
        };
        put(buf, area, 0, &text, Style::new());
    }

    fn clients(&self, buf: &mut Buffer, area: Rect) -> Shown {
        let (choice, sample) = (self.choice, &self.model.latest);
        let clients = self.model.clients(choice.order, &choice.filter);
        let page = usize::from(area.height.saturating_sub(2));
        let columns = client_columns();
        let from = choice.scroll.min(clients.len().saturating_sub(1));
        let mut title = format!("CLIENTS {}", commas(clients.len() as u64));
        if clients.len() != sample.clients.len() {
            title += &format!(" of {}", commas(sample.clients.len() as u64));
        }
        if sample.clients_cut {
            title += " (the first; there are more)";
        }
        if let Some(column) = columns.get(choice.order.column) {
            let way = if choice.order.is_descending(column) { "descending" } else { "ascending" };
            title += &format!(", by {} {way}", column.name);
        }
        if from > 0 {
            title += &format!(", from the {}.", from + 1);
        }
        if !choice.filter.0.is_empty() {
            title += &format!(", filter: {}", choice.filter.0);
        }
        put(buf, area, 0, &title, reversed());
        grid::draw(buf, below(area), &columns, &clients[from..], Some(choice.order.column));
        Shown { clients: clients.len(), page }
    }

    fn leases(&self, buf: &mut Buffer, area: Rect) {
        let leases = self.model.oldest_leases(&self.choice.filter);
        let open = leases.iter().filter(|it| is_open(it)).count();
        let (open, all) = (commas(open as u64), commas(leases.len() as u64));
        let mut title = format!("OLDEST LEASES, open ones first: {open} open of {all}");
        if self.model.latest.leases_cut {
            title += " (the first; there are more)";
        }
        put(buf, area, 0, &title, reversed());
        grid::draw(buf, below(area), &columns(leases::COLUMNS, &LEASE_KEYS), &leases, None);
    }

    fn events(&self, buf: &mut Buffer, area: Rect) {
        put(buf, area, 0, "EVENTS, newest first", reversed());
        for (line, event) in (1..area.height).zip(self.model.events.shown()) {
            let style = if event.is_bad() { alarm() } else { Style::new() };
            put(buf, area, line, &event.line(), style);
        }
    }

    fn keys(&self, buf: &mut Buffer, area: Rect) {
        let text = match self.choice.typing_over {
            Some(_) => {
                let filter = &self.choice.filter.0;
                format!(
                    "filter: {filter}_   (pid, uid or part of a name; Enter: done, Esc: as before)"
                )
            }
            None => {
                "q quit  h help  p pause  s sort  r reverse  / filter  arrows scroll  +- interval"
                    .to_owned()
            }
        };
        put(buf, area, 0, &text, reversed());
    }
}

const HELP: &str = "
  q, Ctrl-C           quit
  h, ?                this help; any key ends it
  p, space            pause and go on
  s                   sort the clients by the next column
  r                   the other way round
  /                   filter: pid or uid, pid:N, uid:N, or part of a name
  Esc                 no filter
  arrows, PgUp, PgDn  scroll the clients; also Home and End
  + and -             a longer or shorter interval
  Ctrl-L              paint anew
  Ctrl-Z              suspend; fg comes back

  Bars: # in use, + reserved, - the most ever, and the cap on the right.
  Resources are named as in `fdbroker status`, columns as in `fdbroker clients -H`
  and `fdbroker holders -H`, events as in `fdbroker watch`; times are UTC.";

fn help(buf: &mut Buffer, area: Rect) {
    for (line, text) in (0..area.height).zip(HELP.lines()) {
        put(buf, area, line, text, Style::new());
    }
}

/// `NAME [###++--  ] NOW+RESERVED of CAP  PERCENT  peak PEAK`; the bar takes the rest of the line.
fn cap(buf: &mut Buffer, area: Rect, name: &str, item: &UseView, show: &dyn Fn(u64) -> String) {
    let peak = show(item.peak);
    let now = match item.reserved {
        0 => show(item.now),
        reserved => format!("{}+{}", show(item.now), show(reserved)),
    };
    let end = match item.cap {
        None => format!("{now:>10}{:<19}  peak {peak:<10}", ", no cap"),
        Some(cap) => {
            let percent = match share(item.counted(), cap, 100) {
                1 if u128::from(item.counted()) * 100 < cap.into() => "<1%".into(),
                percent => format!("{percent}%"),
            };
            format!("{now:>10} of {:<10} {percent:>4}  peak {peak:<10}", show(cap))
        }
    };
    let name = format!("{name:<16} ");
    let taken = u16::try_from(name.len() + end.len() + "[] ".len()).unwrap_or(u16::MAX);
    let room = area.width.saturating_sub(taken);
    put(buf, area, 0, &name, Style::new());
    let mut x = area.x + u16::try_from(name.len()).unwrap_or(0);
    if room >= LEAST_BAR {
        let bar = bar(item, room);
        let is_nearly_full = |cap| share(item.counted(), cap, 100) >= NEARLY_FULL_PERCENT;
        let is_full = item.cap.is_some_and(is_nearly_full);
        let style = Style::new().fg(if is_full { Color::Yellow } else { Color::Green });
        let bar = if item.cap.is_some() { format!("[{bar}] ") } else { format!(" {bar}  ") };
        x = buf.set_stringn(x, area.y, bar, usize::from(room) + 3, style).0;
    }
    let left = area.right().saturating_sub(x);
    if left > 0 && !area.is_empty() {
        buf.set_stringn(x, area.y, end.trim_end(), left.into(), Style::new());
    }
}

fn bar(item: &UseView, width: u16) -> String {
    let filled = |amount| item.cap.map_or(0, |cap| share(amount, cap, width.into()));
    let (now, counted, peak) = (filled(item.now), filled(item.counted()), filled(item.peak));
    let mark = |place| match place {
        _ if place < now => '#',
        _ if place < counted => '+',
        _ if place < peak => '-',
        _ => ' ',
    };
    (0..u64::from(width)).map(mark).collect()
}

/// `amount` of `whole` in `parts`, at most `parts`, and at least 1 unless `amount` is 0.
fn share(amount: u64, whole: u64, parts: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    let exact = u128::from(amount) * u128::from(parts) / u128::from(whole.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX).clamp(1, parts)
}

fn rate_shown(rate: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are small and not negative"
    )]
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => commas(rate.round() as u64),
    }
}

fn line_of(area: Rect, line: u16) -> Rect {
    Rect::new(area.x, area.y.saturating_add(line), area.width, 1).intersection(area)
}

/// `area` without its first line.
fn below(area: Rect) -> Rect {
    let y = area.y.saturating_add(1);
    Rect::new(area.x, y, area.width, area.height.saturating_sub(1)).intersection(area)
}

/// Writes `text` to a line of `area`, cut at its end; a reversed style fills the line.
fn put(buf: &mut Buffer, area: Rect, line: u16, text: &str, style: Style) {
    let line = line_of(area, line);
    if line.is_empty() {
        return;
    }
    if style.add_modifier.contains(Modifier::REVERSED) {
        buf.set_style(line, style);
    }
    buf.set_stringn(line.x, line.y, text, line.width.into(), style);
}
