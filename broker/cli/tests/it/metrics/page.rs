//! What a scraper reads. Must never round a value.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone)]
pub struct Page {
    /// Values by series, labels included.
    series: BTreeMap<String, f64>,
    /// Types by family.
    pub families: BTreeMap<String, String>,
}

impl Page {
    pub fn read(text: &str) -> Self {
        assert!(text.ends_with("# EOF\n"), "{text}");
        let (mut series, mut families) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["#", "TYPE", family, kind] = words[..] {
                assert!(families.insert(family.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                let value = value.parse().expect("a number");
                assert!(series.insert(name.to_owned(), value).is_none(), "{name} twice");
            }
        }
        Page { series, families }
    }

    /// `None`: there is no such series.
    pub fn find(&self, series: &str) -> Option<f64> {
        self.series.get(series).copied()
    }

    pub fn get(&self, series: &str) -> f64 {
        self.find(series).unwrap_or_else(|| panic!("no {series}"))
    }

    /// All series with their values.
    pub fn series(&self) -> impl Iterator<Item = (&str, f64)> {
        self.series.iter().map(|(series, value)| (series.as_str(), *value))
    }

    /// The names that the families' series have by their types, whether there are any or not.
    pub fn names(&self) -> BTreeSet<String> {
        let suffixes = |kind: &str| -> &[&str] {
            match kind {
                "gauge" => &[""],
                "counter" => &["_total"],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_count", "_sum"],
                other => panic!("type {other}"),
            }
        };
        let names = self.families.iter().flat_map(|(family, kind)| {
            suffixes(kind).iter().map(move |suffix| format!("{family}{suffix}"))
        });
        names.collect()
    }
}

/// A series without its labels.
pub fn name_of(series: &str) -> &str {
    series.split('{').next().expect("one at least")
}
