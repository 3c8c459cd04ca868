//! A campaign runs many seeds and counts what came of them.

use super::judge::{Finding, PATIENCE, Verdict, Wrong, judge};
use super::place::own_mounts;
use super::plan::Plan;
use super::run::End;
use super::trouble::{DISK, Trouble};
use crate::harness::artifacts;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How often a plan with a finding is run again to see the finding once more. Each smaller plan gets as many tries.
const TRIES: usize = 3;

pub struct Campaign {
    pub seeds: Range<u64>,
    pub jobs: usize,
    /// Plans with findings are tried again with fewer troubles.
    pub shrink: bool,
    /// Troubles that are left out of every plan.
    pub without: Vec<usize>,
    /// Kinds of troubles that are left out of every plan.
    pub leave: Vec<String>,
    /// No run begins after this time.
    pub time: Duration,
}

/// A plan with findings.
pub struct Failed {
    pub plan: Plan,
    pub findings: Vec<Finding>,
    /// Numbers of the troubles that the finding does not need: it comes without them, too.
    pub needless: Vec<usize>,
    /// The finding came again in a second run.
    pub again: bool,
}

/// The outcome of a seed.
struct SeedOutcome {
    plan: Plan,
    verdict: Verdict,
    failed: Option<Failed>,
}

#[derive(Default)]
pub struct Tally {
    /// Seeds that were judged, or for which there was nothing to judge.
    pub runs: u64,
    /// Seeds for which the campaign itself failed, and how.
    pub broken: BTreeMap<u64, String>,
    pub ill: BTreeMap<String, u64>,
    pub failed: Vec<Failed>,
    /// Runs by what went wrong in them.
    pub troubles: BTreeMap<&'static str, u64>,
    pub native: BTreeMap<String, u64>,
    pub compared: u64,
    pub excused: u64,
    pub struck: u64,
    pub ledgers: u64,
    pub refused: u64,
}

impl Tally {
    pub fn count(&self, wrong: Wrong) -> u64 {
        self.failed.iter().filter(|failed| failed.findings.iter().any(|finding| finding.wrong == wrong)).count() as u64
    }

    pub fn json(&self) -> Value {
        let failed: Vec<Value> = self.failed.iter().map(|failed| {
            let findings: Vec<String> = failed.findings.iter().map(ToString::to_string).collect();
            json!({ "seed": failed.plan.seed, "plan": failed.plan.to_string(), "findings": findings, "again": failed.again })
        }).collect();
        json!({
            "runs": self.runs, "broken": self.broken, "not_judged": self.ill, "troubles": self.troubles, "native": self.native,
            "compared": self.compared, "excused": self.excused, "struck": self.struck,
            "ledgers": self.ledgers, "ledgers_refused": self.refused,
            "deaths": self.count(Wrong::Death), "hangs": self.count(Wrong::Hang), "answers": self.count(Wrong::Answer),
            "rules": self.count(Wrong::Rule), "unreadable": self.count(Wrong::Ledger), "failed": failed,
        })
    }

    fn add(&mut self, plan: &Plan, verdict: &Verdict) {
        self.runs += 1;
        if let Some(why) = &verdict.ill {
            let why = why.rsplit('/').next().unwrap_or(why).to_owned();
            *self.ill.entry(why).or_default() += 1;
            return;
        }
        let mut kinds: Vec<&str> = plan.troubles.iter().map(Trouble::kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let kind = if kind == DISK && verdict.diskless { "no disk could be made" } else { kind };
            *self.troubles.entry(kind).or_default() += 1;
        }
        let native = match &verdict.native {
            Some(End::Exit(0)) | None => "exits with 0",
            Some(End::Exit(_)) => "exits with another status",
            Some(_) => "dies by a signal",
        };
        *self.native.entry(native.into()).or_default() += 1;
        self.compared += u64::from(verdict.compared);
        self.excused += u64::from(verdict.excused);
        self.struck += u64::from(verdict.struck);
        self.ledgers += verdict.ledgers as u64;
        self.refused += verdict.refused as u64;
    }
}

impl Campaign {
    /// Runs all seeds. `seen` gets each plan with its findings, as soon as it has been judged.
    pub fn run(&self, seen: impl FnMut(&Tally, Option<&Failed>)) -> Tally {
        // If the programs cannot be built, the campaign fails here, before anything has run.
        artifacts();
        self.run_each(|seed| self.one(seed), seen)
    }

    /// Runs each seed. Whatever happens to one seed, the others are run, and all are counted.
    fn run_each(
        &self,
        one: impl Fn(u64) -> Result<SeedOutcome, String> + Sync,
        mut seen: impl FnMut(&Tally, Option<&Failed>),
    ) -> Tally {
        let (next, begin) = (AtomicU64::new(self.seeds.start), Instant::now());
        let mut tally = Tally::default();
        let (send, come) = channel();
        let work = &|send: Sender<(u64, Result<SeedOutcome, String>)>| {
            own_mounts();
            loop {
                let seed = next.fetch_add(1, Relaxed);
                if seed >= self.seeds.end || begin.elapsed() > self.time {
                    break;
                }
                if send.send((seed, contained(|| one(seed)))).is_err() {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            let start = |_: &usize| {
                let send = send.clone();
                std::thread::Builder::new().spawn_scoped(scope, move || work(send)).is_ok()
            };
            if (0..self.jobs.max(1)).filter(start).count() == 0 {
                tally.broken.insert(self.seeds.start, "no thread can be started".into());
            }
            drop(send);
            for (seed, done) in come {
                match done {
                    Ok(SeedOutcome { plan, verdict, failed }) => {
                        tally.add(&plan, &verdict);
                        seen(&tally, failed.as_ref());
                        tally.failed.extend(failed);
                    }
                    Err(why) => {
                        tally.broken.insert(seed, why);
                        seen(&tally, None);
                    }
                }
            }
        });
        tally
    }

    fn one(&self, seed: u64) -> Result<SeedOutcome, String> {
        let mut plan = Plan::new(seed).without(&self.without);
        plan.troubles.retain(|trouble| !self.leave.iter().any(|kind| kind == trouble.kind()));
        let verdict = judge(&plan, PATIENCE)?;
        if verdict.findings.is_empty() {
            return Ok(SeedOutcome { plan, verdict, failed: None });
        }
        let mut failed =
            Failed { findings: verdict.findings.clone(), needless: Vec::new(), again: false, plan: plan.clone() };
        // The finding is reported even if the search for a smaller plan fails.
        if self.shrink
            && let Err(why) = contained(|| failed.shrink())
        {
            eprintln!("seed {seed}: it was not tried again to the end: {why}");
        }
        Ok(SeedOutcome { plan, verdict, failed: Some(failed) })
    }
}

/// The answer of `f`; its panic as an error.
fn contained<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(format!("a panic: {}", text_of(&*panic))))
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

impl Failed {
    /// Leaves out one trouble after another, as long as the finding still comes.
    fn shrink(&mut self) -> Result<(), String> {
        let wrong = self.findings[0].wrong;
        let fails = |plan: &Plan| -> Result<bool, String> {
            for _ in 0..TRIES {
                if judge(plan, PATIENCE)?.findings.iter().any(|finding| finding.wrong == wrong) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        self.again = fails(&self.plan)?;
        if self.again {
            for i in 0..self.plan.troubles.len() {
                let fewer: Vec<usize> = self.needless.iter().copied().chain([i]).collect();
                if fails(&self.plan.without(&fewer))? {
                    self.needless = fewer;
                }
            }
        }
        Ok(())
    }

    /// The command that shows the finding again.
    pub fn command(&self) -> String {
        let without: String = self.needless.iter().map(|number| format!(" --without {number}")).collect();
        format!("make faults ARGS=\"--runs 1 --seed {}{without}\"", self.plan.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(seeds: Range<u64>, jobs: usize) -> Campaign {
        Campaign { seeds, jobs, shrink: false, without: Vec::new(), leave: Vec::new(), time: Duration::MAX }
    }

    #[test]
    fn a_seed_that_breaks_the_campaign_costs_that_seed_alone() {
        let one = |seed| match seed {
            13 => panic!("nobody foresaw {seed}"),
            17 => Err("it cannot be begun".into()),
            _ => Ok(SeedOutcome {
                plan: Plan::new(seed),
                verdict: Verdict { ledgers: 2, ..Verdict::default() },
                failed: None,
            }),
        };
        let mut told = 0;
        let tally = campaign(10..30, 3).run_each(one, |_, _| told += 1);
        assert_eq!((tally.runs, tally.ledgers, told), (18, 36, 20));
        let broken: Vec<(u64, &str)> = tally.broken.iter().map(|(seed, why)| (*seed, why.as_str())).collect();
        assert_eq!(broken, [(13, "a panic: nobody foresaw 13"), (17, "it cannot be begun")]);
    }
}
