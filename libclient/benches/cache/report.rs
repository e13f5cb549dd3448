//! The table at the end. Must never leave out a figure that was measured.

/// One line: what, the figure, its unit, the target.
struct Line {
    what: &'static str,
    value: f64,
    unit: &'static str,
    target: Option<f64>,
}

#[derive(Default)]
pub struct Report(Vec<Line>);

impl Report {
    /// A figure with a target to stay below.
    pub fn add(&mut self, what: &'static str, value: f64, unit: &'static str, target: f64) {
        self.0.push(Line { what, value, unit, target: Some(target) });
    }

    /// A figure for comparison.
    pub fn note(&mut self, what: &'static str, value: f64, unit: &'static str) {
        self.0.push(Line { what, value, unit, target: None });
    }

    pub fn print(&self) {
        println!("{:<58} {:>10} {:<5} {:>8}", "", "median", "", "target");
        for Line { what, value, unit, target } in &self.0 {
            let (target, verdict) = match target {
                None => (String::new(), ""),
                Some(target) if value <= target => (format!("{target}"), "reached"),
                Some(target) => (format!("{target}"), "MISSED"),
            };
            println!("{what:<58} {value:>10.2} {unit:<5} {target:>8} {verdict}");
        }
    }
}

/// The one in the middle.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
