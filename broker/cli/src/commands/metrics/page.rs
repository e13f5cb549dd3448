//! Writes OpenMetrics text, version 1.0 (the specification of that name): families with type, unit and help, then their
//! samples. Must never write a family twice, nor a label's value unescaped.

use std::fmt::{Display, Write};

/// A page being written. Writing to memory cannot fail: results are not looked at.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
        if let Some(unit) = ["seconds", "bytes"].iter().find(|unit| name.ends_with(*unit)) {
            let _ = writeln!(self.0, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {name} {help}");
    }

    /// One sample of the family begun last; `name` has its suffix.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (number, (label, text)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    /// A family of one value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// A family of one value that only grows; its sample's name has `_total` after it.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(&format!("{name}_total"), &[], value);
    }

    /// The whole page.
    pub fn finish(mut self) -> String {
        self.0.push_str("# EOF\n");
        self.0
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Microseconds as seconds.
pub fn seconds(us: u64) -> String {
    let (whole, part) = (us / 1_000_000, us % 1_000_000);
    let text = format!("{whole}.{part:06}");
    let text = text.trim_end_matches('0');
    // A float has a digit after its point.
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_when_a_label_has_quotes_and_backslashes_then_escaped() {
        let mut page = Page::default();
        page.family("fdbroker_x_bytes", "gauge", "Help.");
        page.sample("fdbroker_x_bytes", &[("job", "unit:a\\x2d\"b\n"), ("uid", "1")], 3);
        let expected = "# TYPE fdbroker_x_bytes gauge\n# UNIT fdbroker_x_bytes bytes\n\
                        # HELP fdbroker_x_bytes Help.\n\
                        fdbroker_x_bytes{job=\"unit:a\\\\x2d\\\"b\\n\",uid=\"1\"} 3\n# EOF\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn seconds_when_whole_or_not_then_exact() {
        assert_eq!(seconds(0), "0.0");
        assert_eq!(seconds(5), "0.000005");
        assert_eq!(seconds(2_500_000), "2.5");
        assert_eq!(seconds(10_000_000), "10.0");
    }
}
