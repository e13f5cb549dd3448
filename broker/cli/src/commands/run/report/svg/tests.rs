//! Pictures of made-up samples, read back as XML.

use super::*;
use std::time::Duration;

fn sample(ms: u64, node: u64, direct: u64, cap: Option<u64>) -> Sample {
    let at = Duration::from_millis(ms);
    Sample { at, node, broker: node / 2, ranks: node - node / 2, direct, cap }
}

/// All texts, and the colours of all lines with more than three points.
fn parse(picture: &str) -> (Vec<String>, Vec<String>) {
    let document = roxmltree::Document::parse(picture).expect("XML");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let all =
        |name: &'static str| document.descendants().filter(move |it| it.tag_name().name() == name);
    let texts = all("text").filter_map(|it| it.text().map(|text| text.trim().to_owned()));
    let lines = all("polyline");
    let long =
        lines.filter(|it| it.attribute("points").is_some_and(|it| it.matches(',').count() > 3));
    let colours = long.filter_map(|it| it.attribute("stroke").map(str::to_owned));
    (texts.collect(), colours.collect())
}

#[test]
fn draw_when_there_are_samples_then_each_line_and_its_peak() {
    let samples =
        [sample(0, 0, 0, Some(64)), sample(500, 60, 100, Some(64)), sample(900, 10, 20, Some(64))];
    let picture = draw(&samples, "mpirun -n 4 ./app").expect("drawn");
    let (texts, colours) = parse(&picture);
    for text in [
        "direct way: max 100",
        "cap: 64",
        "node: max 60",
        "broker: max 30",
        "ranks: max 30",
        "open fds (logarithmic)",
        "100",
    ] {
        assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
    }
    assert_eq!(texts.iter().filter(|text| text.contains("mpirun -n 4 ./app")).count(), 1);
    assert_eq!(colours, ["#B07AA1", "#222222", "#1F77B4", "#2CA02C"]);
    assert!(picture.contains("#D62728"), "the cap: {picture}");
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
}

#[test]
fn draw_when_the_direct_way_is_far_above_then_logarithmic() {
    let picture = draw(&[sample(0, 10, 10, None), sample(10, 60, 60_000, None)], "x");
    let (texts, _) = parse(&picture.expect("drawn"));
    for text in ["open fds (logarithmic)", "cap: none", "0", "1", "10", "100", "1,000", "10,000"] {
        assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
    }
}

#[test]
fn draw_when_all_is_at_one_moment_then_still_a_picture() {
    let still = draw(&[sample(0, 1, 1, None)], "x").expect("drawn");
    assert!(!still.contains("NaN") && !still.contains("inf"), "{still}");
    parse(&still);
}

#[test]
fn draw_when_the_command_has_markup_then_it_is_text() {
    let command = "a <b> & \"c\" 'd'\n\u{1}\u{ffff}";
    let picture = draw(&[sample(0, 1, 1, None)], command).expect("drawn");
    let (texts, _) = parse(&picture);
    assert!(texts.iter().any(|text| text.ends_with("a <b> & \"c\" 'd'  ?")), "{texts:?}");
    assert_eq!(shown(&"x".repeat(500)).chars().count(), COMMAND_LENGTH + 1);
}

#[test]
fn steps_when_a_count_changes_then_it_does_so_at_once() {
    let values = [(0.0, 1), (1.0, 1), (2.0, 1), (3.0, 5), (4.0, 5)];
    let points = [(0.0, 1), (2.0, 1), (3.0, 1), (3.0, 5), (4.0, 5)];
    assert_eq!(steps(values.into_iter()), points);
}

#[test]
fn key_points_when_logarithmic_then_powers_of_ten() {
    let scale = Scale(1200);
    assert_eq!(scale.key_points(10), [0, 1, 10, 100, 1000]);
}
