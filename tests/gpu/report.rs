//! The findings: checks that passed, failed or were not run, and figures. Must never call a check
//! passed that did not run to its end.

use serde_json::{Value, json};

#[derive(Debug, Default)]
pub struct Report {
    current: &'static str,
    checks: Vec<(&'static str, Result<(), String>)>,
    figures: Vec<Figure>,
    not_run: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Figure {
    check: &'static str,
    name: String,
    value: f64,
    unit: &'static str,
}

impl Report {
    /// Runs one check and notes how it ended.
    pub fn check(&mut self, name: &'static str, run: impl FnOnce(&mut Report) -> Outcome) {
        self.current = name;
        let start = std::time::Instant::now();
        let outcome = run(self);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(Ran::Whole) => {
                println!("ok       {name} ({seconds:.1} s)");
                self.checks.push((name, Ok(())));
            }
            Ok(Ran::NotHere(why)) => {
                println!("not run  {name}: {why}");
                self.not_run.push((name, why));
            }
            Err(why) => {
                println!("FAILED   {name} ({seconds:.1} s): {why}");
                self.checks.push((name, Err(why)));
            }
        }
    }

    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.push(Figure { check: self.current, name: name.into(), value, unit });
    }

    /// Notes the median of many times.
    pub fn median(&mut self, name: impl Into<String>, values: &[f64]) {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        if let Some(median) = sorted.get(sorted.len() / 2) {
            self.figure(name, (median * 10.0).round() / 10.0, "us");
        }
    }

    /// Prints the table, the JSON lines, and the last line. Returns whether nothing failed.
    pub fn print(&self, head: &Value) -> bool {
        let width = self.figures.iter().map(|figure| figure.name.chars().count()).max();
        let (width, mut last) = (width.unwrap_or(0), "");
        for Figure { check, name, value, unit } in &self.figures {
            if *check != last {
                println!("\n{check}");
                last = check;
            }
            println!("  {name:<width$}  {:>14} {unit}", show(*value));
        }
        println!("\n{head}");
        for Figure { check, name, value, unit } in &self.figures {
            println!("{}", json!({ "check": check, "figure": name, "value": value, "unit": unit }));
        }
        for (name, outcome) in &self.checks {
            let why = outcome.as_ref().err();
            println!("{}", json!({ "check": name, "passed": outcome.is_ok(), "why": why }));
        }
        for (name, why) in &self.not_run {
            println!("{}", json!({ "check": name, "passed": null, "why": why }));
        }
        let failed = self.checks.iter().filter(|(_, outcome)| outcome.is_err()).count();
        if !self.not_run.is_empty() {
            println!("\n{} not run on this device, named above", self.not_run.len());
        }
        println!("{} passed, {failed} failed", self.checks.len() - failed);
        failed == 0
    }
}

/// How a check ended when nothing was wrong.
#[derive(Debug)]
pub enum Ran {
    Whole,
    /// The device lacks what the check needs; the reason.
    NotHere(String),
}

pub type Outcome = Result<Ran, String>;

/// A condition of a check.
pub fn ensure(right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(what()) }
}

fn show(value: f64) -> String {
    if value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}
