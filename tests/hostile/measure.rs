//! The figures of one phase, and the median of many. Must never decide by one phase alone.

/// The good client's report of one phase. Times in ns.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Acquires with their releases.
    pub count: u64,
    pub p99_ns: u64,
    pub worst_ns: u64,
    pub errors: u64,
    pub texts: String,
}

impl Phase {
    /// Parses the line that the good client prints.
    pub fn parse(line: &str) -> Option<Phase> {
        let mut words = line.splitn(5, ' ');
        let mut number = || words.next()?.parse().ok();
        let (count, p99_ns, worst_ns, errors) = (number()?, number()?, number()?, number()?);
        let texts = words.next().unwrap_or_default().to_owned();
        Some(Phase { count, p99_ns, worst_ns, errors, texts })
    }
}

/// The middle value; of two the higher; 0 if there is none.
pub fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
