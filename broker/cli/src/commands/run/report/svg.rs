//! Draws samples as SVG 1.1: steps over time, the cap, and the direct way. Must never write text that is not escaped.

use super::Sample;
use crate::output::commas;
use std::fmt::Write;
use std::time::Duration;

/// The picture, in pixels.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const LEGEND_LEFT: f64 = 20.0;

/// Marks on an axis, about.
const MARKS: f64 = 6.0;

/// From this ratio of the direct way to what there was, a linear scale would show nothing of the latter.
const RATIO_FOR_LOGARITHMS: u64 = 4;

/// Longest command that is shown, in characters.
const COMMAND_LENGTH: usize = 90;

/// A line of the picture.
struct Line {
    name: &'static str,
    colour: &'static str,
    dashes: &'static str,
    value: fn(&Sample) -> Option<u64>,
}

const LINES: [Line; 5] = [
    Line { name: "direct way", colour: "#b07aa1", dashes: "2 3", value: |it| Some(it.direct) },
    Line { name: "cap", colour: "#d62728", dashes: "8 4", value: |it| it.cap },
    Line { name: "node", colour: "#222222", dashes: "", value: |it| Some(it.node) },
    Line { name: "broker", colour: "#1f77b4", dashes: "", value: |it| Some(it.broker) },
    Line { name: "ranks", colour: "#2ca02c", dashes: "", value: |it| Some(it.ranks) },
];

/// From counts and times to places.
struct Scale {
    seconds: f64,
    most: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn x(&self, at: Duration) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * at.as_secs_f64() / self.seconds
    }

    #[allow(clippy::cast_precision_loss)] // a pixel
    fn y(&self, count: u64) -> f64 {
        let part = match self.is_logarithmic {
            true => (count as f64 + 1.0).log10() / (self.most + 1.0).log10(),
            false => count as f64 / self.most,
        };
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part.clamp(0.0, 1.0)
    }
}

/// A whole SVG file. Without samples it says so.
pub fn draw(samples: &[Sample], command: &str) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, samples, command);
    out
}

#[allow(clippy::cast_precision_loss)] // a pixel
fn write(out: &mut String, samples: &[Sample], command: &str) -> std::fmt::Result {
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>
<text x="{LEFT}" y="24" font-size="15">fds of shared memory: {}</text>"##,
        escaped(command)
    )?;
    let Some(last) = samples.last() else {
        return writeln!(out, "<text x=\"{LEFT}\" y=\"60\">the broker was not seen</text>\n</svg>");
    };
    let peak = |value: fn(&Sample) -> Option<u64>| samples.iter().filter_map(value).max();
    let node = peak(|it| Some(it.node)).unwrap_or_default();
    let direct = peak(|it| Some(it.direct)).unwrap_or_default();
    // A cap far above everything would press the lines to the ground: then it is only named.
    let cap = peak(|it| it.cap).filter(|cap| *cap <= node.max(direct).saturating_mul(2));
    let most = node.max(direct).max(cap.unwrap_or(0)).max(1);
    let is_logarithmic = direct > node.max(1).saturating_mul(RATIO_FOR_LOGARITHMS);
    let seconds = last.at.as_secs_f64().max(0.001);
    let scale = Scale { seconds, most: most as f64, is_logarithmic };

    axes(out, &scale, most)?;
    for (number, line) in LINES.iter().enumerate() {
        let x = LEGEND_LEFT + (WIDTH - 2.0 * LEGEND_LEFT) * number as f64 / LINES.len() as f64;
        let shown = match peak(line.value) {
            Some(peak) if line.name == "cap" => commas(peak),
            Some(peak) => format!("max {}", commas(peak)),
            None => "none".into(),
        };
        let Line { name, colour, dashes, value } = line;
        writeln!(
            out,
            r#"<line x1="{x}" y1="44" x2="{}" y2="44" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>
<text x="{}" y="48">{name}: {shown}</text>"#,
            x + 20.0,
            x + 25.0
        )?;
        if *name == "cap" && cap.is_none() {
            continue;
        }
        write!(
            out,
            r#"<path fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}" d=""#
        )?;
        let mut former = None;
        for (sample, count) in samples.iter().filter_map(|it| Some((it, value(it)?))) {
            let (x, y) = (scale.x(sample.at), scale.y(count));
            match former {
                None => write!(out, "M{x:.1} {y:.1}")?,
                // What does not change is one line, however long.
                Some(former) if former == count => write!(out, "H{x:.1}")?,
                Some(_) => write!(out, "H{x:.1}V{y:.1}")?,
            }
            former = Some(count);
        }
        writeln!(out, "\"/>")?;
    }
    writeln!(out, "</svg>")
}

fn axes(out: &mut String, scale: &Scale, most: u64) -> std::fmt::Result {
    for count in counts(most, scale.is_logarithmic) {
        let y = scale.y(count);
        writeln!(
            out,
            r##"<line x1="{LEFT}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}" stroke="#dddddd"/>
<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"##,
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            commas(count)
        )?;
    }
    let step = round_step(scale.seconds / MARKS);
    let ground = HEIGHT - BOTTOM;
    let mut mark = 0.0;
    while mark <= scale.seconds {
        let x = scale.x(Duration::from_secs_f64(mark));
        writeln!(
            out,
            r##"<line x1="{x:.1}" y1="{ground}" x2="{x:.1}" y2="{}" stroke="#888888"/>
<text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"##,
            ground + 5.0,
            ground + 18.0,
            seconds_text(mark, step)
        )?;
        mark += step;
    }
    let kind = if scale.is_logarithmic { ", logarithmic" } else { "" };
    writeln!(
        out,
        r#"<text x="{}" y="{}" text-anchor="middle">seconds</text>
<text transform="translate(16 {}) rotate(-90)" text-anchor="middle">open fds{kind}</text>"#,
        WIDTH / 2.0,
        HEIGHT - 10.0,
        (TOP + ground) / 2.0
    )
}

/// Where the scale of counts has its marks.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // marks
fn counts(most: u64, is_logarithmic: bool) -> Vec<u64> {
    if is_logarithmic {
        let powers = std::iter::successors(Some(1_u64), |power| power.checked_mul(10));
        return std::iter::once(0).chain(powers.take_while(|power| *power <= most)).collect();
    }
    let step = round_step(most as f64 / MARKS).max(1.0) as u64;
    (0..=most / step).map(|number| number * step).collect()
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|one| one * power)
        .find(|step| *step >= least)
        .unwrap_or(power * 10.0)
}

fn seconds_text(seconds: f64, step: f64) -> String {
    let decimals =
        if step >= 1.0 { 0 } else { usize::from(step < 0.1) + usize::from(step < 0.01) + 1 };
    format!("{seconds:.decimals$}")
}

/// Text of an element: markup has no meaning in it, nor has what XML 1.0 does not allow.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(COMMAND_LENGTH) {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ if character.is_control() => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push('?'),
            _ => out.push(character),
        }
    }
    if text.chars().nth(COMMAND_LENGTH).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64, node: u64, direct: u64, cap: Option<u64>) -> Sample {
        let at = Duration::from_millis(ms);
        Sample { at, node, broker: node / 2, ranks: node - node / 2, direct, cap }
    }

    #[test]
    fn draw_when_there_are_samples_then_each_line_and_its_peak() {
        let samples = [
            sample(0, 0, 0, Some(64)),
            sample(500, 60, 100, Some(64)),
            sample(900, 10, 20, Some(64)),
        ];
        let picture = draw(&samples, "mpirun -n 4 ./app");
        for text in
            ["direct way: max 100", "cap: 64", "node: max 60", "broker: max 30", "ranks: max 30"]
        {
            assert!(picture.contains(text), "{text}: {picture}");
        }
        assert_eq!(picture.matches("<path").count(), LINES.len());
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert!(
            !picture.contains("logarithmic")
                && !picture.contains("NaN")
                && !picture.contains("inf")
        );
    }

    #[test]
    fn draw_when_the_direct_way_is_far_above_then_logarithmic() {
        let picture = draw(&[sample(0, 10, 10, None), sample(10, 60, 60_000, None)], "x");
        assert!(picture.contains("logarithmic") && picture.contains("cap: none"), "{picture}");
        assert_eq!(picture.matches("<path").count(), LINES.len() - 1);
    }

    #[test]
    fn draw_when_nothing_was_seen_then_said() {
        assert!(draw(&[], "x").contains("not seen"));
        let still = draw(&[sample(0, 0, 0, None)], "x");
        assert!(!still.contains("NaN") && !still.contains("inf"), "{still}");
    }

    #[test]
    fn escaped_when_the_command_has_markup_then_it_is_text() {
        assert_eq!(escaped("a <b> & \"c\"\n"), "a &lt;b&gt; &amp; &quot;c&quot; ");
        assert_eq!(escaped(&"x".repeat(500)).chars().count(), COMMAND_LENGTH + 1);
    }

    #[test]
    fn round_step_when_asked_then_one_two_or_five() {
        for (least, step) in [(0.3, 0.5), (1.0, 1.0), (7.0, 10.0), (130.0, 200.0)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
        assert_eq!(counts(10, false), [0, 2, 4, 6, 8, 10]);
        assert_eq!(counts(1200, true), [0, 1, 10, 100, 1000]);
        assert_eq!(counts(1, false), [0, 1]);
    }
}
