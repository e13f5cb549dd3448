//! The figures of one phase, of all phases together, and the median of many. Must never decide by
//! one phase alone.

/// The good client's report of one phase. Times in ns.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Acquires with their releases.
    pub count: u64,
    pub p99_ns: u64,
    pub errors: u64,
    pub texts: String,
}

impl Phase {
    /// Parses the line that the good client prints.
    pub fn parse(line: &str) -> Option<Phase> {
        let mut words = line.splitn(5, ' ');
        let mut number = || words.next()?.parse().ok();
        let (count, p99_ns, _worst, errors) = (number()?, number()?, number()?, number()?);
        let texts = words.next().unwrap_or_default().to_owned();
        Some(Phase { count, p99_ns, errors, texts })
    }
}

/// What all phases of one kind gave together. Times in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pooled {
    pub count: u64,
    pub p99_ns: u64,
    pub worst_ns: u64,
}

impl Pooled {
    /// Parses the line that the good client prints.
    pub fn parse(line: &str) -> Option<Pooled> {
        let mut numbers = line.split(' ').map(str::parse);
        let mut number = || numbers.next()?.ok();
        Some(Pooled { count: number()?, p99_ns: number()?, worst_ns: number()? })
    }
}

/// Quiet and under attack, of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    pub quiet: Pooled,
    pub attack: Pooled,
}

impl Pair {
    /// How often the p99 under attack is the quiet one; 0 where nothing was measured.
    pub fn p99_ratio(&self) -> f64 {
        self.attack.p99_ns as f64 / self.quiet.p99_ns.max(1) as f64
    }

    /// How often the worst under attack is the quiet p99.
    pub fn worst_ratio(&self) -> f64 {
        self.attack.worst_ns as f64 / self.quiet.p99_ns.max(1) as f64
    }
}

/// The middle value; of two the higher; 0 if there is none.
pub fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
