//! The state of a process at one moment, as plain data, for reports and recordings.

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// Reads a list and keeps at most `MOST` items, whatever the file has: items that are short in the file may be long in
/// memory.
///
/// # Errors
/// Those of the list.
pub(crate) fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct Few<T, const MOST: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Few<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while let Some(item) = list.next_element()? {
                if kept.len() < MOST {
                    kept.push(item);
                }
            }
            Ok(kept)
        }
    }

    from.deserialize_seq(Few::<T, MOST>(PhantomData))
}

/// The whole summary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Summary {
    pub process: About,
    /// Warnings that a reader needs before the numbers.
    #[serde(deserialize_with = "few::<_, _, 100>")]
    pub warnings: Vec<String>,
    /// Problems with the samples behind the verdicts.
    #[serde(deserialize_with = "few::<_, _, 100>")]
    pub remarks: Vec<String>,
    #[serde(deserialize_with = "few::<_, _, 50>")]
    pub numbers: Vec<Number>,
    /// Call sites of memory and of graphs, tags and classes, the likeliest leak first.
    #[serde(deserialize_with = "few::<_, _, 1000>")]
    pub holders: Vec<Holder>,
    /// Number of all holders.
    pub holders_total: u64,
    /// The graph cache in words, a line each.
    #[serde(deserialize_with = "few::<_, _, 50>")]
    pub graph_cache: Vec<String>,
    #[serde(deserialize_with = "few::<_, _, 1000>")]
    pub graphs: Vec<GraphsOf>,
    #[serde(deserialize_with = "few::<_, _, 200>")]
    pub environment: Vec<Setting>,
    #[serde(deserialize_with = "few::<_, _, 500>")]
    pub findings: Vec<Finding>,
}

/// The process, and how it is recorded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    pub pid: u32,
    pub name: String,
    pub cmdline: String,
    /// "running", "exited 12 s ago".
    pub life: String,
    /// Start of the ledger, and the moment of this summary: nanoseconds since 1970.
    pub began_unix_ns: u64,
    pub at_unix_ns: u64,
    pub interception: String,
    pub mode: String,
    pub driver_version: String,
    pub shim_version: String,
    #[serde(deserialize_with = "few::<_, _, 100>")]
    pub devices: Vec<String>,
}

impl Summary {
    /// Returns the value of a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.numbers.iter().find(|number| number.name == name).map_or(0, |number| number.value)
    }
}

/// Name of the number of live device memory, which is always there, and of its peak.
pub(crate) const LIVE: &str = "device memory live";
pub(crate) const PEAK: &str = "highest so far";

/// A number with its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Number {
    pub name: String,
    pub value: u64,
    /// `bytes`; empty for a count.
    pub unit: String,
    pub remark: String,
}

/// A holder of memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Holder {
    /// `site`, `graphs`, `tag` or `class`.
    pub kind: String,
    pub name: String,
    pub verdict: String,
    pub grows: bool,
    pub bytes: u64,
    pub live: u64,
    pub peak_bytes: u64,
    pub oldest_age_ns: u64,
    pub newest_age_ns: u64,
    /// Number ever made, if that is counted.
    pub total: Option<u64>,
    pub freed_share: Option<f64>,
    /// Since the first sample.
    pub bytes_change: i64,
    pub bytes_per_minute: f64,
    pub caveat: String,
    /// The next command to type.
    pub next: String,
    /// Innermost frame first.
    #[serde(deserialize_with = "few::<_, _, 200>")]
    pub stack: Vec<String>,
}

/// Graphs and execs of one class or call site.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GraphsOf {
    pub name: String,
    pub graphs: u64,
    pub execs: u64,
    pub launches: u64,
    pub host_bytes: u64,
    pub device_bytes: u64,
    pub resident: u64,
    pub folded: u64,
    pub pinned: String,
}

/// A variable in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Setting {
    pub name: String,
    pub value: String,
    pub source: String,
}

/// Finding of a check, and what to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Finding {
    pub id: String,
    pub severity: String,
    pub finding: String,
    pub paste: String,
    pub fix: String,
}
