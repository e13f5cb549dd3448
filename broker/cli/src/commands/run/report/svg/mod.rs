//! Draws samples as a picture: counts of fds over time. Must never make a file that is no XML.

use super::series::{LINES, Sample};
use crate::error::{Error, Result};
use crate::output::commas;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;

/// The picture, in pixels.
const SIZE: (u32, u32) = (980, 420);

/// The part of it at the right that names the lines.
const LEGEND_WIDTH: u32 = 190;

/// Between two rows of the legend.
const LEGEND_STEP: i32 = 22;

/// The cap is wide and pale, so that a line at the cap is seen on it. Not dashed: dashes of
/// plotters need `hypotf` of glibc 2.35, which the oldest systems that the wheel is for do not
/// have.
const CAP_WIDTH: u32 = 6;

/// How much of the cap's colour covers what is below it.
const CAP_OPACITY: f64 = 0.4;

/// The part of the height up to the highest count; the rest keeps that line off the edge.
const TOP_SHARE: f64 = 0.97;

/// Longest command that is shown, in characters.
const COMMAND_LENGTH: usize = 90;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The vertical axis: counts of fds up to this one. It is logarithmic: the direct way may be far
/// above the node.
#[derive(Clone, Copy)]
struct Scale(u64);

impl Scale {
    fn new(samples: &[Sample]) -> Self {
        let most = samples.iter().map(|it| it.node.max(it.direct)).max().unwrap_or(0).max(1);
        // A cap far above everything would press the lines to the ground: then it is only named.
        let cap = samples.iter().filter_map(|it| it.cap).max();
        let cap = cap.filter(|cap| *cap <= most.saturating_mul(2)).unwrap_or(0);
        Scale(most.max(cap))
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = u64;

    /// Takes the logarithm of the count plus one, so that 0 has a place, too.
    #[expect(clippy::cast_possible_truncation, reason = "a pixel")]
    fn map(&self, count: &u64, (bottom, top): (i32, i32)) -> i32 {
        let part = (*count as f64 + 1.0).log10() / (self.0 as f64 + 1.0).log10();
        bottom + (f64::from(top - bottom) * TOP_SHARE * part).round() as i32
    }

    /// The counts that have a mark.
    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<u64> {
        let powers = std::iter::successors(Some(1_u64), |power| power.checked_mul(10));
        std::iter::once(0).chain(powers.take_while(|power| *power <= self.0)).collect()
    }

    fn range(&self) -> Range<u64> {
        0..self.0
    }
}

impl ValueFormatter<u64> for Scale {
    fn format(count: &u64) -> String {
        commas(*count)
    }
}

/// A whole SVG file.
pub fn draw(samples: &[Sample], command: &str) -> Result<String> {
    let mut picture = String::new();
    let drawn = draw_on(SVGBackend::with_string(&mut picture, SIZE), samples, command);
    drawn.map_err(|cause| Error::Other(format!("cannot draw: {cause}")))?;
    Ok(picture)
}

fn draw_on(
    backend: SVGBackend<'_>,
    samples: &[Sample],
    command: &str,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let scale = Scale::new(samples);
    let seconds = samples.last().map_or(0.0, |it| it.at.as_secs_f64()).max(0.001);
    let area = backend.into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("fds of shared memory: {}", shown(command));
    let (plot, legend) =
        area.titled(&title, ("sans-serif", 19))?.split_horizontally(SIZE.0 - LEGEND_WIDTH);

    let mut chart = ChartBuilder::on(&plot)
        .margin_left(10)
        .margin_right(20)
        .x_label_area_size(50)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..seconds, scale)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 15))
        .x_desc("seconds since the start of the job")
        .y_desc("open fds (logarithmic)")
        .draw()?;
    for (row, line) in (0..).zip(&LINES) {
        let (red, green, blue) = line.colour;
        let colour = RGBColor(red, green, blue);
        let style = if line.name == "cap" {
            colour.mix(CAP_OPACITY).stroke_width(CAP_WIDTH)
        } else {
            colour.stroke_width(2)
        };
        let values = samples.iter().filter_map(|it| Some((it.at.as_secs_f64(), (line.value)(it)?)));
        let peak = values.clone().map(|(_, count)| count).max();
        name(&legend, row, line.name, peak, style)?;
        if line.name == "cap" && peak.is_some_and(|cap| cap > scale.0) {
            continue;
        }
        chart.draw_series(LineSeries::new(steps(values), style))?;
    }
    area.present()?;
    Ok(())
}

/// One row of the legend.
fn name(
    legend: &Area<'_>,
    row: i32,
    name: &str,
    peak: Option<u64>,
    style: ShapeStyle,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let text = match peak {
        Some(peak) if name == "cap" => format!("{name}: {}", commas(peak)),
        Some(peak) => format!("{name}: max {}", commas(peak)),
        None => format!("{name}: none"),
    };
    let y = 20 + row * LEGEND_STEP;
    legend.draw(&PathElement::new([(0, y), (18, y)], style))?;
    legend.draw(&Text::new(text, (25, y - 6), ("sans-serif", 15)))?;
    Ok(())
}

/// A count stays until the next one. While it does not change, only its last time is kept.
fn steps(values: impl Iterator<Item = (f64, u64)>) -> Vec<(f64, u64)> {
    let mut points: Vec<(f64, u64)> = Vec::new();
    for (at, count) in values {
        if let [.., (_, before), (until, last)] = points.as_mut_slice()
            && [*before, *last] == [count, count]
        {
            *until = at;
            continue;
        }
        let former = points.last().map(|(_, former)| *former).filter(|former| *former != count);
        points.extend(former.map(|former| (at, former)));
        points.push((at, count));
    }
    points
}

/// The command, if need be its beginning, without characters that XML 1.0 does not allow.
fn shown(command: &str) -> String {
    let allowed = |character| match character {
        '\u{fffe}' | '\u{ffff}' => '?',
        _ if char::is_control(character) => ' ',
        _ => character,
    };
    let mut text: String = command.chars().take(COMMAND_LENGTH).map(allowed).collect();
    if command.chars().nth(COMMAND_LENGTH).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
