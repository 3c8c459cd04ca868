//! Parts that the random testers share: programs as lists of operations, and the outcome of a hunt for differences.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An operation and the thread that does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line<O> {
    #[serde(default, skip_serializing_if = "zero")]
    pub t: usize,
    #[serde(flatten)]
    pub op: O,
}

impl<O> From<O> for Line<O> {
    fn from(op: O) -> Self {
        Self { t: 0, op }
    }
}

/// A program: one operation a line, each a JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program<O>(pub Vec<Line<O>>);

impl<O> Default for Program<O> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<O: Serialize> Program<O> {
    /// Leaves out operations whose text holds one of these.
    pub fn leave_out(&mut self, parts: &[String]) {
        self.0.retain(|line| {
            let text = serde_json::to_string(line).unwrap_or_default();
            !parts.iter().any(|part| text.contains(part))
        });
    }
}

impl<O: Serialize> fmt::Display for Program<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.0 {
            writeln!(f, "{}", serde_json::to_string(line).map_err(|_| fmt::Error)?)?;
        }
        Ok(())
    }
}

impl<O: DeserializeOwned> FromStr for Program<O> {
    type Err = String;

    /// Reads one operation from each line. Empty lines and lines that begin with `#` are skipped.
    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let parsed =
            lines.map(|(i, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", i + 1)));
        Ok(Self(parsed.collect::<Result<_, _>>()?))
    }
}

/// A difference and the smallest program that shows it.
pub struct Finding<O, D> {
    pub seed: u64,
    pub program: Program<O>,
    pub difference: D,
    /// Environment variables of the runs.
    pub setting: String,
}

impl<O: Serialize, D: fmt::Display> Finding<O, D> {
    /// The text of a file for a tester's command `pair`.
    pub fn file(&self) -> String {
        let told: String = self.difference.to_string().lines().map(|line| format!("# {line}\n")).collect();
        format!("# seed {}\n# {}\n{told}{}", self.seed, self.setting, self.program)
    }
}

/// Result of a hunt.
pub struct Tally<O, D> {
    pub programs: u64,
    pub operations: u64,
    /// Programs that were not well defined or failed natively, with the reason.
    pub ill: Vec<(u64, String)>,
    /// Programs whose native run stood still, so that they were passed over.
    pub stood_still: Vec<(u64, String)>,
    /// Programs whose preloaded run alone stood still, and did so only once.
    pub stood_still_preloaded: Vec<(u64, String)>,
    /// Programs whose preloaded run waited where docs/limitations.md says that it may.
    pub waited_to_instantiate: u64,
    pub found: Vec<Finding<O, D>>,
    /// Differences that did not come again.
    pub fleeting: Vec<(u64, String)>,
}

impl<O, D> Default for Tally<O, D> {
    fn default() -> Self {
        Self {
            programs: 0,
            operations: 0,
            ill: Vec::new(),
            stood_still: Vec::new(),
            stood_still_preloaded: Vec::new(),
            waited_to_instantiate: 0,
            found: Vec::new(),
            fleeting: Vec::new(),
        }
    }
}

impl<O, D> Tally<O, D> {
    /// Counts a program that did not run natively.
    ///
    /// # Errors
    /// When none of the first eight did.
    pub fn count_ill(&mut self, seed: u64, why: String) -> Result<(), String> {
        self.ill.push((seed, why.clone()));
        if self.ill.len() == 8 && self.programs == 8 {
            return Err(format!("no program runs natively: {why}"));
        }
        Ok(())
    }
}

/// True if a field has its default value and need not be written.
pub fn zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
