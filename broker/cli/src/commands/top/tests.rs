//! Records for the tests of `top`, and the frames that are made of them at every size.

use super::keys::{Choice, Key};
use super::model::Model;
use super::sample::Sample;
use super::view::View;
use crate::events::stream::Told;
use crate::events::view::tests::{grant, record};
use crate::records::{StatusView, UseView};
use fdbroker_protocol::Scope;
use fdbroker_protocol::admin::{ClientRecord, EventKind, LeaseRecord, NodeStatus};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

pub fn sample(clients: &[ClientRecord]) -> Sample {
    let mut status = NodeStatus::new_zeroed();
    status.scope = (Scope::Node as u32).into();
    status.pid = 77.into();
    Sample {
        at: Instant::now(),
        status: StatusView::from(&status),
        clients: clients.to_vec(),
        clients_cut: false,
        leases: Vec::new(),
        leases_cut: false,
    }
}

pub fn client(pid: u32, name: &str) -> ClientRecord {
    let mut record = ClientRecord::new_zeroed();
    record.pid = pid.into();
    record.client = pid.into();
    record.name[..name.len()].copy_from_slice(name.as_bytes());
    record
}

pub fn lease(number: u64, age_ms: u64, state: u32) -> LeaseRecord {
    let mut record = LeaseRecord::new_zeroed();
    record.lease = number.into();
    record.age_ms = age_ms.into();
    record.state = state.into();
    record.name[..6].copy_from_slice(b"holder");
    record
}

pub fn lines(buf: &Buffer) -> Vec<String> {
    super::plain::text(buf, false).lines().map(str::to_owned).collect()
}

/// A node in use: 40 clients, leases, rates, a cap that is reached.
fn busy() -> Model {
    let mut clients: Vec<_> = (1..=40).map(|n| client(1000 + n, &format!("rank-{n}"))).collect();
    clients.iter_mut().zip(0u64..).for_each(|(it, fds)| it.uses.fds = fds.into());
    let mut old = sample(&clients);
    old.status.uptime_ms = 61_000;
    old.status.uses.connections.now = 40;
    old.leases = (1..100).map(|n| lease(n, 1000 * n, 1)).collect();
    let mut new = old.clone();
    new.at += Duration::from_secs(1);
    new.status.counters.as_mut().expect("of the node").grants += 12_345;
    new.status.counters.as_mut().expect("of the node").refusals += 2;
    new.status.uses.fds =
        UseView { now: 256, reserved: 0, peak: 256, cap: Some(256), is_counted: true };
    new.status.uses.held_fds =
        UseView { now: 64, reserved: 32, peak: 128, cap: Some(256), is_counted: true };
    let mut model = Model::new(old);
    model.update(new);
    let happened = vec![record(EventKind::Drain), grant()];
    model.events.tell(&Told::Events(happened), false);
    model
}

fn frame(model: &Model, choice: &Choice, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let view = View { model, choice, waited: None, has_keys: true };
    let draw = |frame: &mut ratatui::Frame<'_>| {
        view.draw(frame.buffer_mut());
    };
    terminal.draw(draw).expect("drawn");
    lines(terminal.backend().buffer())
}

fn every_second() -> Choice {
    Choice { interval: Duration::from_secs(1), ..Choice::default() }
}

fn has(frame: &[String], text: &str) -> bool {
    frame.iter().any(|line| line.contains(text))
}

#[test]
fn frame_when_less_than_a_hundredth_of_a_cap_is_used_then_less_than_1_percent() {
    let mut sample = sample(&[]);
    for (now, percent) in [(0, " 0%"), (1, "<1%"), (19, "<1%"), (20, " 1%"), (39, " 1%")] {
        sample.status.uses.fds =
            UseView { now, reserved: 0, peak: 39, cap: Some(2000), is_counted: true };
        let frame = frame(&Model::new(sample.clone()), &every_second(), 80, 24);
        assert!(frame[1].contains(&format!(" {percent}  peak 39")), "{}", frame[1]);
    }
}

#[test]
fn frame_when_80x24_then_every_part_is_there_and_whole() {
    let frame = frame(&busy(), &every_second(), 80, 24);
    assert_eq!(frame.len(), 24);
    assert_eq!(
        frame[0],
        "fdbroker top: broker 77, up 1 min 1 s, 40 connections, 0 parked, every 1 s"
    );
    let expected = "fds              [##############]        256 of 256        100%  peak 256";
    assert_eq!(frame[1], expected);
    let expected = "held_fds         [###++--       ]      64+32 of 256         37%  peak 128";
    assert_eq!(frame[2], expected);
    let expected = "per s:  12,345 grants  2.0 refusals  0 requests_parked  0 recalls  0 evictions";
    assert_eq!(frame[7], expected);
    assert_eq!(frame[8], "CLIENTS 40, by FDS descending");
    assert!(frame[9].contains("PID NAME") && frame[9].contains("SILENT"), "{frame:#?}");
    assert!(frame[10].starts_with("1040 rank-40"), "{frame:#?}");
    assert_eq!(frame[16], "OLDEST LEASES, open ones first: 99 open of 99");
    assert!(frame[18].starts_with("1 min 39 s"), "{frame:#?}");
    assert_eq!(frame[20], "EVENTS, newest first");
    assert_eq!(frame[21], "23:59:58.007Z  grant      pid 77 app  12.3  64 KiB");
    assert_eq!(frame[22], "23:59:58.007Z  drain");
    assert!(frame[23].starts_with("q quit  h help"), "{frame:#?}");
}

#[test]
fn frame_when_120x60_then_more_of_everything() {
    let frame = frame(&busy(), &every_second(), 120, 60);
    assert_eq!(frame.len(), 60);
    for text in ["ALLOCATIONS", "pinned_bytes", "2.0 refusals", "pid 77 app"] {
        assert!(has(&frame, text), "{text}: {frame:#?}");
    }
    assert!(frame.iter().filter(|line| line.contains("rank-")).count() > 8, "{frame:#?}");
}

#[test]
fn frame_when_of_any_size_then_as_many_lines_and_never_a_panic() {
    let model = busy();
    let helps = Choice { helps: true, ..every_second() };
    let typing = Choice { typing_over: Some(Default::default()), ..every_second() };
    for height in 1..45 {
        for width in [1, 2, 5, 13, 20, 37, 60, 79, 80, 200] {
            for choice in [&every_second(), &helps, &typing] {
                assert_eq!(frame(&model, choice, width, height).len(), usize::from(height));
            }
        }
    }
}

#[test]
fn frame_when_small_then_the_caps_come_first() {
    let small = frame(&busy(), &every_second(), 40, 5);
    assert!(small[1].starts_with("fds"), "{small:#?}");
    assert!(small[2].starts_with("CLIENTS 40"), "{small:#?}");
}

#[test]
fn frame_when_filtered_then_only_those_and_the_title_says_so() {
    let mut choice = every_second();
    for key in "/rank-4".chars() {
        choice.press(Key::Char(key));
    }
    let frame = frame(&busy(), &choice, 80, 24);
    assert!(has(&frame, "CLIENTS 2 of 40, by FDS descending, filter: rank-4"), "{frame:#?}");
    assert!(has(&frame, "filter: rank-4_"), "{frame:#?}");
    assert!(has(&frame, "open ones first: 0 open of 0"), "{frame:#?}");
    assert!(!has(&frame, "rank-39"), "{frame:#?}");
}

#[test]
fn frame_when_scrolled_then_from_there_and_never_past_the_last() {
    let choice = Choice { scroll: 3, ..every_second() };
    let scrolled = frame(&busy(), &choice, 80, 24);
    assert!(has(&scrolled, "from the 4."), "{scrolled:#?}");
    assert!(scrolled[10].starts_with("1037 rank-37"), "{scrolled:#?}");
    let choice = Choice { scroll: 1000, ..every_second() };
    assert!(frame(&busy(), &choice, 80, 24)[10].starts_with("1001 rank-1"));
}

#[test]
fn frame_when_paused_or_without_a_broker_then_the_first_line_says_so() {
    let mut model = busy();
    let choice = Choice { is_paused: true, ..every_second() };
    assert!(frame(&model, &choice, 80, 24)[0].starts_with("PAUSED fdbroker top"));
    model.lose("gone".into());
    let lost = frame(&model, &every_second(), 80, 24);
    assert_eq!(lost[0], "fdbroker top: NO BROKER, trying again each second; gone");
    assert!(has(&lost, "rank-40"), "what was known last stays: {lost:#?}");
}

#[test]
fn frame_when_the_broker_hangs_then_it_says_for_how_long() {
    let model = busy();
    let choice = every_second();
    let mut buf = Buffer::empty(ratatui::layout::Rect::new(0, 0, 80, 24));
    let waited = Some(Duration::from_secs(7));
    View { model: &model, choice: &choice, waited, has_keys: true }.draw(&mut buf);
    assert_eq!(lines(&buf)[0], "fdbroker top: the broker has not answered for 7 s");
}

#[test]
fn frame_when_not_all_was_read_then_it_says_so() {
    let mut model = busy();
    model.latest.clients_cut = true;
    model.latest.leases_cut = true;
    let frame = frame(&model, &every_second(), 80, 24);
    assert!(has(&frame, "CLIENTS 40 (the first; there are more)"), "{frame:#?}");
    assert!(has(&frame, "of 99 (the first; there are more)"), "{frame:#?}");
}

#[test]
fn frame_when_help_at_80x24_then_every_line_of_it_fits() {
    let choice = Choice { helps: true, ..every_second() };
    let frame = frame(&busy(), &choice, 80, 24);
    for text in ["q, Ctrl-C", "part of a name", "and `fdbroker holders -H`", "times are UTC."] {
        assert!(has(&frame, text), "{text}: {frame:#?}");
    }
}

#[test]
fn interval_when_out_of_range_or_no_number_then_refused() {
    assert_eq!(super::args::interval("0.1"), Ok(Duration::from_millis(100)));
    assert_eq!(super::args::interval("2"), Ok(Duration::from_secs(2)));
    for text in ["0", "0.09", "-1", "x", "nan", "inf", "3601", ""] {
        assert!(super::args::interval(text).is_err(), "{text}");
    }
}
