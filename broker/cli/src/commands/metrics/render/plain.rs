//! The page in Prometheus' text format of before OpenMetrics, version 0.0.4. Must never change a
//! sample: only what the lines about families say is another thing there.

use std::collections::HashMap;
use std::fmt::Write;

/// From a page of OpenMetrics. A family there has the name of its series, so that a counter ends
/// with `_total`; there are no units and no infos, and no mark of the end.
pub fn plain(page: &str) -> String {
    let kinds: HashMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let about = |what| line.strip_prefix(what).and_then(|rest: &str| rest.split_once(' '));
        if let Some((family, help)) = about("# HELP ") {
            let suffix = suffix(kinds.get(family).copied());
            let _ = writeln!(text, "# HELP {family}{suffix} {help}");
        } else if let Some((family, kind)) = about("# TYPE ") {
            let (suffix, kind) = (suffix(Some(kind)), if kind == "info" { "gauge" } else { kind });
            let _ = writeln!(text, "# TYPE {family}{suffix} {kind}");
        } else if line != "# EOF" && !line.starts_with("# UNIT ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// What the names of a family's series have behind the family's.
fn suffix(kind: Option<&str>) -> &'static str {
    match kind {
        Some("counter") => "_total",
        Some("info") => "_info",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_when_of_each_type_then_families_are_called_as_their_series() {
        let page = "\
# HELP a_b how \\\\ often
# TYPE a_b counter
# UNIT a_b b
a_b_total{x=\"# TYPE\"} 1
# HELP c help
# TYPE c info
c_info{v=\"1\"} 1
# HELP d_seconds help
# TYPE d_seconds histogram
# UNIT d_seconds seconds
d_seconds_bucket{le=\"+Inf\"} 0
d_seconds_sum 0.0
# EOF
";
        let expected = "\
# HELP a_b_total how \\\\ often
# TYPE a_b_total counter
a_b_total{x=\"# TYPE\"} 1
# HELP c_info help
# TYPE c_info gauge
c_info{v=\"1\"} 1
# HELP d_seconds help
# TYPE d_seconds histogram
d_seconds_bucket{le=\"+Inf\"} 0
d_seconds_sum 0.0
";
        assert_eq!(plain(page), expected);
    }
}
