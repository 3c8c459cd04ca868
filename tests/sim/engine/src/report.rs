//! Reports of the strict simulator: violations, and numbers for tests.

use crate::config::config;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
static STATS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// How many violations there were.
pub fn violations() -> u64 {
    VIOLATIONS.load(Relaxed)
}

/// Records a violation: one JSON line to the file that `SIM_REPORT` names, and
/// one line to stderr.
pub fn violation(kind: &str, text: &str) {
    VIOLATIONS.fetch_add(1, Relaxed);
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(escaped, "\\u{:04x}", c as u32);
            }
            c => escaped.push(c),
        }
    }
    let pid = std::process::id();
    // One write each, so that lines of several processes do not mix.
    let line = format!("{{\"pid\":{pid},\"violation\":\"{kind}\",\"text\":\"{escaped}\"}}\n");
    if let Some(path) = &config().report
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
    let _ = std::io::stderr().write_all(format!("sim: violation: {kind}: {text}\n").as_bytes());
}

/// With `SIM_STATS`: appends these numbers and those counted, as one line.
pub fn write_stats(numbers: &[(&str, u64)]) {
    let Some(path) = &config().stats else { return };
    let counted = STATS.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let all = numbers.iter().map(|(n, v)| (n.to_string(), *v)).chain(counted);
    let mut line = format!("{{\"pid\":{}", std::process::id());
    for (name, value) in all {
        let _ = write!(line, ",\"{name}\":{value}");
    }
    line += "}\n";
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Adds to a named number that `stat` answers.
pub fn count(name: &str, by: u64) {
    let mut stats = STATS.lock().unwrap_or_else(|e| e.into_inner());
    match stats.get_mut(name) {
        Some(n) => *n += by,
        None => {
            stats.insert(name.to_owned(), by);
        }
    }
}

/// A named number; 0 if nothing ever counted under that name.
pub fn counted(name: &str) -> u64 {
    STATS.lock().unwrap_or_else(|e| e.into_inner()).get(name).copied().unwrap_or(0)
}
