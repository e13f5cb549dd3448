//! Samples as comma-separated values. Must never write a number with commas of its own.

use super::series::{LINES, Sample};

/// A heading, then one row for each sample. A cell is empty where there is no number, such as no
/// cap.
pub fn table(samples: &[Sample]) -> String {
    let columns = LINES.map(|line| line.column).join(",");
    let row = |sample: &Sample| {
        let cells =
            LINES.map(|line| (line.value)(sample).map_or(String::new(), |it| it.to_string()));
        format!("{:.3},{}\n", sample.at.as_secs_f64(), cells.join(","))
    };
    format!("seconds,{columns}\n") + &samples.iter().map(row).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn table_when_there_are_samples_then_a_heading_and_their_numbers() {
        let at = Duration::from_millis(1500);
        let first = Sample { at, node: 6, broker: 4, ranks: 2, direct: 11_200, cap: Some(64) };
        let text = table(&[first, Sample { cap: None, ..first }]);
        assert_eq!(
            text,
            "seconds,direct_way_fds,fds,held_fds,rank_fds,fds_cap\n\
             1.500,11200,6,4,2,64\n1.500,11200,6,4,2,\n"
        );
    }
}
