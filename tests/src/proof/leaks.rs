//! Claims about `gpumem leaks`: compares its verdicts with growth that was planted.

use super::{Bench, Measured};
use crate::stage::{finish, ledger_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

/// Programs, each with a hundred call sites, and the steps that each of them takes.
const PROGRAMS: u64 = 10;
const STEPS: [&str; 4] = ["64", "96", "150", "240"];

/// Wrong verdicts that are allowed: five of a hundred.
pub const WRONG: f64 = 0.05;
/// Number of wrong verdicts in the note. Each is printed on stderr.
const NOTED: usize = 50;

/// Call sites of random programs, and whether the programs' own heaps grow.
pub fn verdicts(bench: &Bench<'_>) -> Result<Measured, String> {
    let (programs, first) = (bench.chance.programs.unwrap_or(PROGRAMS), bench.chance.seed);
    let mut told = Told::default();
    for number in 0..programs {
        let seed = first.wrapping_add(number);
        let steps = STEPS[seed as usize % STEPS.len()];
        bench.step(&format!("program {} of {programs}, seed {seed}, {steps} steps", number + 1));
        let ledgers = bench.ledgers();
        let mut command = bench.stage.command(&bench.stage.program("leaks")?, Some(&ledgers))?;
        // Samples are taken when the program asks for them: whatever else the machine does, one a step.
        command.env("GPUMEM_GROWTH_INTERVAL", "0").arg(seed.to_string()).arg(steps);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let run = finish(child.map_err(|error| format!("leaks: {error}"))?, Some(&ledgers))?;
        if run.status != 0 {
            return Err(format!("leaks: status {}: {}", run.status, run.stderr.trim()));
        }
        let planted: Value = serde_json::from_str(run.stdout.trim()).map_err(|error| format!("leaks: {error}"))?;
        let ledger = run.ledger.ok_or("leaks left no ledger")?;
        let said = bench.stage.inspect("leaks", &ledger)?;
        let before = told.wrong.len();
        for (site, truth) in planted["sites"].as_array().into_iter().flatten().enumerate() {
            let verdict = verdict_on(&said, &format!("site_{site:02} "));
            let truth = truth.as_str().unwrap_or("nothing");
            told.add(truth, verdict == truth, || format!("site {site} of seed {seed}: {truth} is called {verdict}"));
        }
        let (truth, grows) = (planted["heap"] == true, said["heap"]["verdict"] == "grows-steadily");
        told.add("heap", truth == grows, || format!("the heap of seed {seed}: growth {truth} is called {grows}"));
        told.wrong[before..].iter().for_each(|wrong| bench.step(wrong));
        told.programs_with_wrong += u64::from(told.wrong.len() > before);
        if told.wrong.len() == before {
            let _ = std::fs::remove_dir_all(&ledgers);
        }
    }
    Ok(told.measured(first, programs))
}

/// Programs that are looked at while they run, and the steps that each of them takes: samples of one to fifteen minutes,
/// and of an hour.
const LOOKED_AT: u64 = 3;
const STEPS_OF_LOOKS: [&str; 3] = ["240", "900", "3600"];
/// How often.
const LOOKS: usize = 10;
/// Call sites with a wrong answer that are allowed: three of a hundred.
pub const CHANGED: f64 = 0.03;

/// Call sites of memory, physical memory, code, streams, events and execs in random programs: whether what is said of one
/// changes from look to look although nothing that was planted has changed.
pub fn changes(bench: &Bench<'_>) -> Result<Measured, String> {
    let (programs, first) = (bench.chance.programs.unwrap_or(LOOKED_AT), bench.chance.seed);
    let mut told = Told::default();
    for number in 0..programs {
        let seed = first.wrapping_add(number);
        let steps = STEPS_OF_LOOKS[seed as usize % STEPS_OF_LOOKS.len()];
        bench.step(&format!("program {} of {programs}, seed {seed}, {steps} steps", number + 1));
        let ledgers = bench.ledgers();
        let mut command = bench.stage.command(&bench.stage.program("leaks")?, Some(&ledgers))?;
        command.env("GPUMEM_GROWTH_INTERVAL", "0").env("SIM_DEVICE_MEM", "256G");
        command.arg(seed.to_string()).arg(steps).arg(LOOKS.to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let (planted, looks) = looked_at(bench, child.map_err(|error| format!("leaks: {error}"))?, &ledgers)?;
        let before = told.wrong.len();
        let of = |field: &str, site: usize| planted[field][site].as_str().unwrap_or("nothing").to_owned();
        for site in 0..planted["sites"].as_array().map_or(0, Vec::len) {
            let (truth, kind) = (of("sites", site), of("kinds", site));
            let said: Vec<Value> = looks.iter().map(|look| verdict_on(look, &format!("site_{site:02} "))).collect();
            let wrong = || format!("site {site} of seed {seed}, {kind}: {truth} is called {said:?}");
            told.add(&kind, stays_right(&truth, &said), wrong);
        }
        told.wrong[before..].iter().for_each(|wrong| bench.step(wrong));
        told.programs_with_wrong += u64::from(told.wrong.len() > before);
        let _ = std::fs::remove_dir_all(&ledgers);
    }
    Ok(told.measured(first, programs))
}

/// Asks each time that the program stops for it; what was planted, and the answers.
fn looked_at(bench: &Bench<'_>, mut child: Child, ledgers: &Path) -> Result<(Value, Vec<Value>), String> {
    let mut input = child.stdin.take().ok_or("no stdin")?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    let mut line = || lines.next().and_then(Result::ok).ok_or("leaks ended early");
    let planted = serde_json::from_str(&line()?).map_err(|error| format!("leaks: {error}"))?;
    let mut looks = Vec::new();
    for _ in 0..LOOKS {
        line()?;
        let ledger = ledger_of(ledgers, child.id()).ok_or("leaks has no ledger")?;
        looks.push(bench.stage.inspect("leaks", &ledger)?);
        input.write_all(b"\n").map_err(|error| format!("leaks: {error}"))?;
    }
    drop(input);
    let run = finish(child, Some(ledgers))?;
    if run.status == 0 { Ok((planted, looks)) } else { Err(format!("leaks: status {}: {}", run.status, run.stderr)) }
}

/// True if answers on a call site change only with what was planted. A site that grows from the start must be said to
/// grow from the first look on that says more than "too little". A cache may be said to grow until it is full. No site
/// may be said to grow after it was said not to.
fn stays_right(truth: &str, said: &[Value]) -> bool {
    const GROWS: &str = "grows-steadily";
    let mut said = said.iter().filter_map(Value::as_str).filter(|&verdict| verdict != "too-little").peekable();
    if truth == GROWS {
        return said.peek().is_some() && said.all(|verdict| verdict == GROWS);
    }
    let after: Vec<&str> = said.skip_while(|&verdict| verdict == GROWS).collect();
    !after.is_empty() && after.iter().all(|&verdict| verdict != GROWS)
}

/// Verdicts that were compared with what was planted.
#[derive(Default)]
struct Told {
    /// For each planted kind of growth: the number of verdicts, and how many of them are wrong.
    of: BTreeMap<String, (u64, u64)>,
    wrong: Vec<String>,
    programs_with_wrong: u64,
}

impl Told {
    fn add(&mut self, truth: &str, is_right: bool, wrong: impl FnOnce() -> String) {
        let (all, wrong_ones) = self.of.entry(truth.to_owned()).or_default();
        *all += 1;
        if !is_right {
            *wrong_ones += 1;
            self.wrong.push(wrong());
        }
    }

    fn measured(self, seed: u64, programs: u64) -> Measured {
        let all: u64 = self.of.values().map(|(all, _)| all).sum();
        let of: Vec<String> = self.of.iter().map(|(truth, (all, wrong))| format!("{truth} {wrong} of {all}")).collect();
        let mut note = format!(
            "seed {seed}, {programs} programs, {} of them with a wrong verdict; wrong: {}",
            self.programs_with_wrong,
            of.join(", ")
        );
        for wrong in self.wrong.iter().take(NOTED) {
            note.push_str("; ");
            note.push_str(wrong);
        }
        Measured { native: all as f64, preloaded: self.wrong.len() as f64, note, ..Measured::default() }
    }
}

/// The verdict on the call site whose name has `site`. Null if there is none.
fn verdict_on(said: &Value, site: &str) -> Value {
    let rows = said["suspects"].as_array().into_iter().flatten();
    let mut rows = rows.filter(|row| row["key"].as_str().is_some_and(|key| key.contains(site)));
    rows.next().map_or(Value::Null, |row| row["verdict"].clone())
}
