//! Runs many seeds.

use super::plan::Plan;
use super::run::{Finding, Place, Wrong, run};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How often the program is run natively to see what a run under the shim has done wrongly.
const NATIVELY: usize = 3;

pub struct Campaign {
    pub place: Place,
    pub seeds: Range<u64>,
    pub jobs: usize,
    /// How long each run is. `None`: short, by its seed.
    pub length: Option<Duration>,
    pub guard: Option<String>,
    /// No run begins after this time.
    pub time: Duration,
}

/// A plan with what went wrong.
pub struct Failed {
    pub plan: Plan,
    pub findings: Vec<Finding>,
}

#[derive(Default)]
pub struct Tally {
    pub runs: u64,
    pub operations: u64,
    pub commands: u64,
    /// Runs whose native run did the same wrongly.
    pub excused: u64,
    pub failed: Vec<Failed>,
    /// Seeds that could not be run, and why.
    pub broken: BTreeMap<u64, String>,
    /// Runs by the value of `GPUMEM_GUARD`.
    pub guards: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn count(&self, wrong: Wrong) -> usize {
        self.failed.iter().filter(|failed| failed.findings.iter().any(|finding| finding.wrong == wrong)).count()
    }
}

/// Result of one seed.
struct Outcome {
    plan: Plan,
    operations: u64,
    commands: u64,
    findings: Vec<Finding>,
    excused: bool,
}

impl Campaign {
    /// Runs all seeds. `seen` gets each plan with findings as soon as there is one.
    pub fn run(&self, mut seen: impl FnMut(&Tally, Option<&Failed>)) -> Tally {
        let (next, begin) = (AtomicU64::new(self.seeds.start), Instant::now());
        let mut tally = Tally::default();
        let (send, come) = channel();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || {
                    loop {
                        let seed = next.fetch_add(1, Relaxed);
                        if seed >= self.seeds.end
                            || begin.elapsed() > self.time
                            || send.send((seed, self.one(seed))).is_err()
                        {
                            break;
                        }
                    }
                });
            }
            drop(send);
            for (seed, outcome) in come {
                match outcome {
                    Err(why) => drop(tally.broken.insert(seed, why)),
                    Ok(Outcome { plan, operations, commands, findings, excused }) => {
                        tally.runs += 1;
                        tally.operations += operations;
                        tally.commands += commands;
                        tally.excused += u64::from(excused);
                        *tally.guards.entry(plan.settings[0].1).or_default() += 1;
                        if !findings.is_empty() && !excused {
                            let failed = Failed { plan, findings };
                            seen(&tally, Some(&failed));
                            tally.failed.push(failed);
                            continue;
                        }
                    }
                }
                seen(&tally, None);
            }
        });
        tally
    }

    fn one(&self, seed: u64) -> Result<Outcome, String> {
        let plan = Plan::new(seed, self.length, self.guard.as_deref());
        let ran = run(&plan, &self.place, true)?;
        let mut excused = false;
        if !ran.findings.is_empty() {
            for _ in 0..NATIVELY {
                let native = run(&plan, &self.place, false)?;
                let has = |wrong| native.findings.iter().any(|finding| finding.wrong == wrong);
                excused |= ran.findings.iter().all(|finding| has(finding.wrong));
            }
        }
        Ok(Outcome { plan, operations: ran.operations, commands: ran.commands, findings: ran.findings, excused })
    }
}
