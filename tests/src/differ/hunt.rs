//! Runs a program of each seed until one differs. That program is then made smaller.

use super::child::Setup;
use super::generate;
use super::pair::{Difference, Pair, Verdict};
use super::program::{Line, Op, Program};
use super::random::Random;
use super::shrink::shrink;
use crate::tester;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How many programs one process runs. What one program leaves in the cache, the next one meets.
const BATCH: u64 = 16;
/// The most runs that are spent on making a program smaller.
const PATIENCE: usize = 2000;
/// How many native runs of a differing program are compared with each other. What differs there does not come from the
/// preload.
const NATIVE_RUNS: usize = 12;
/// The most time that is spent on making a program smaller.
const SHRINKING: Duration = Duration::from_secs(90);

pub struct Hunt {
    pub setup: Setup,
    pub seeds: Range<u64>,
    pub time: Duration,
    /// About how many operations a program has.
    pub length: usize,
    /// Values of GPUMEM_GRAPH_CACHE, of which each seed picks one. An empty value alone means that all bounds are the
    /// default ones.
    pub caps: Vec<String>,
    /// The hunt stops after this many differences.
    pub most: usize,
    /// Operations whose text contains one of these are left out. So a known difference does not hide others.
    pub without: Vec<String>,
}

pub type Finding = tester::Finding<Op, Difference>;
pub type Tally = tester::Tally<Op, Difference>;

/// Environment variables of a batch, picked by its first seed: those of both runs, and those of the preloaded run.
pub fn setting(seed: u64, caps: &[String]) -> [Vec<(String, String)>; 2] {
    let mut random = Random::new(seed ^ 0xca9);
    let mut both = Vec::new();
    let mut preloaded = Vec::new();
    let mut set = |list: &mut Vec<(String, String)>, name: &str, values: &[&str]| {
        let value = *random.pick(values);
        if !value.is_empty() {
            list.push((name.into(), value.into()));
        }
    };
    set(&mut both, "SIM_LAG_US", &["", "", "100", "500"]);
    set(&mut both, "SIM_REUSE_HANDLES", &["", "1"]);
    set(&mut both, "DIFFER_RUNTIME", &["", "", "1"]);
    let caps: Vec<&str> = caps.iter().map(String::as_str).collect();
    if !caps.is_empty() {
        set(&mut preloaded, "GPUMEM_GRAPH_CACHE", &caps);
    }
    let or_default = |values: &'static [&'static str]| if caps == [""] { &[""] } else { values };
    set(&mut preloaded, "GPUMEM_GRAPH_IDLE", or_default(&["", "0", "1ms"]));
    set(&mut preloaded, "GPUMEM_GRAPH_FOLD", &["", "", "0"]);
    set(&mut preloaded, "GPUMEM_GRAPH_CACHE_BYTES", or_default(&["", "", "64KiB", "0"]));
    set(&mut preloaded, "GPUMEM_STACKS", &["0", ""]);
    [both, preloaded]
}

impl Hunt {
    /// Runs until the seeds or the time are at their end; `say` gets a line now and then.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn run(&self, say: &mut dyn FnMut(String)) -> Result<Tally, String> {
        let (begin, mut tally, mut told) = (Instant::now(), Tally::default(), Instant::now());
        let mut first = self.seeds.start;
        while first < self.seeds.end && begin.elapsed() < self.time && tally.found.len() < self.most {
            let last = (first + BATCH - first % BATCH).min(self.seeds.end);
            let setup = self.batch_setup(first);
            let (mut pair, mut history) = (Pair::new(&setup), Vec::new());
            for seed in first..last {
                if begin.elapsed() > self.time || tally.found.len() >= self.most {
                    break;
                }
                let mut program = generate::program(seed, self.length);
                program.leave_out(&self.without);
                tally.programs += 1;
                tally.operations += program.0.len() as u64;
                let mut verdict = pair.run(&program)?;
                // The threads of a race meet in a different way each time, so a race gets more tries.
                let races = program.0.iter().any(|line| matches!(line.op, Op::Race { .. }));
                for _ in 0..if races { 4 } else { 0 } {
                    if matches!(verdict, Verdict::Same) {
                        verdict = pair.run(&program)?;
                    }
                }
                let goes_on = verdict.left_both_alike();
                match verdict {
                    Verdict::Same => history.push(program),
                    Verdict::StoodStill(why) => {
                        say(format!("seed {seed}: {why}"));
                        tally.stood_still.push((seed, why));
                    }
                    Verdict::Ill(why) => {
                        say(format!("seed {seed}: {why}"));
                        tally.count_ill(seed, why)?;
                    }
                    Verdict::Differs(difference) => {
                        say(format!("seed {seed} ({}): {difference}", words(&setup)));
                        self.pursue(seed, &setup, &history, program, *difference, &mut tally, say)?;
                    }
                }
                if !goes_on {
                    (pair, history) = (Pair::new(&setup), Vec::new());
                }
                if told.elapsed() > Duration::from_secs(10) {
                    told = Instant::now();
                    say(format!(
                        "seed {seed}: {} programs, {} operations, {} differences, {} s",
                        tally.programs,
                        tally.operations,
                        tally.found.len(),
                        begin.elapsed().as_secs()
                    ));
                }
            }
            first = last;
        }
        Ok(tally)
    }

    fn batch_setup(&self, first: u64) -> Setup {
        let [both, preloaded] = setting(first - first % BATCH, &self.caps);
        let mut setup = self.setup.clone();
        // Variables that the caller asked for come later in the list and win.
        setup.both.splice(0..0, both);
        setup.preloaded.splice(0..0, preloaded);
        setup
    }

    fn pursue(
        &self,
        seed: u64,
        setup: &Setup,
        history: &[Program],
        program: Program,
        seen: Difference,
        tally: &mut Tally,
        say: &mut dyn FnMut(String),
    ) -> Result<(), String> {
        if seen.waited_to_instantiate() && is_bounded(setup) {
            say(format!("seed {seed}: stood still in the driver's instantiate, below the default bound"));
            tally.waited_to_instantiate += 1;
            return Ok(());
        }
        // A difference that also comes between native runs does not come from the preload.
        let mut natives = Pair::new(&Setup { lib: None, ..setup.clone() });
        let mut is_steady =
            |program: &Program| (0..NATIVE_RUNS).all(|_| matches!(natives.run(program), Ok(Verdict::Same)));
        let unsteady = "it differs natively from run to run";
        if !is_steady(&program) {
            say(format!("seed {seed}: {unsteady}"));
            return tally.count_ill(seed, unsteady.into());
        }
        // The difference may come from this program alone, or only after the programs that the same processes ran
        // before. It may come each time, or now and then.
        let mut all = history.to_vec();
        all.push(program.clone());
        let all = separate(&all);
        let rare = |candidate: &Program, runs: usize| {
            let mut pair = Pair::new(setup);
            (1..=runs).find(|_| matches!(pair.run(candidate), Ok(Verdict::Differs(_))))
        };
        let always = [&program, &all].into_iter().find(|candidate| (0..3).all(|_| differs(setup, candidate).is_some()));
        let chosen = match always {
            Some(candidate) => Some((candidate.clone(), 1)),
            None => match rare(&program, 150) {
                Some(run) => Some((program, 4 * run.max(5))),
                None => rare(&all, 20).map(|run| (all, 3 * run)),
            },
        };
        let Some((program, tries)) = chosen else {
            say(format!("seed {seed}: did not differ again"));
            let list = if seen.stood_still() { &mut tally.stood_still_preloaded } else { &mut tally.fleeting };
            list.push((seed, seen.what));
            return Ok(());
        };
        if !is_steady(&program) {
            say(format!("seed {seed}: {unsteady}"));
            return tally.count_ill(seed, unsteady.into());
        }
        say(format!("seed {seed}: making {} operations smaller", program.0.len()));
        let (difference, program) = smallest(setup, &program, tries, seen);
        tally.found.push(Finding { seed, program, difference, setting: words(setup) });
        Ok(())
    }
}

/// Programs one after another as one, each from the beginning.
fn separate(list: &[Program]) -> Program {
    let reset = || Line::from(Op::Reset);
    tester::Program(list.iter().flat_map(|p| p.0.iter().cloned().chain([reset()])).collect())
}

fn words(setup: &Setup) -> String {
    let all = setup.both.iter().chain(&setup.preloaded);
    all.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// True if the graph cache has other bounds than by default.
fn is_bounded(setup: &Setup) -> bool {
    let bounds = ["GPUMEM_GRAPH_CACHE", "GPUMEM_GRAPH_CACHE_BYTES", "GPUMEM_GRAPH_IDLE"];
    setup.preloaded.iter().any(|(name, _)| bounds.contains(&name.as_str()))
}

/// The difference that a program shows in new processes.
fn differs(setup: &Setup, program: &Program) -> Option<Difference> {
    match Pair::new(setup).run(program) {
        Ok(Verdict::Differs(difference)) => Some(*difference),
        _ => None,
    }
}

/// The smallest program that still differs in one of `tries` runs, and its difference. The same processes make the
/// tries after the first.
pub fn smallest(setup: &Setup, program: &Program, tries: usize, seen: Difference) -> (Difference, Program) {
    let mut setup = setup.clone();
    setup.limit = setup.limit.min(Duration::from_secs(12));
    let mut last = seen;
    // Each program is tried in new processes, started during the try before. In old processes the cache's contents
    // would decide.
    let mut next = Pair::new(&setup);
    let begin = Instant::now();
    let small = shrink(program, PATIENCE, &mut |candidate| {
        if begin.elapsed() > SHRINKING {
            return false;
        }
        let mut pair = std::mem::replace(&mut next, Pair::new(&setup));
        let _ = next.start();
        for _ in 0..tries {
            match pair.run(candidate) {
                Ok(Verdict::Same) => {}
                Ok(Verdict::Differs(difference)) => {
                    last = *difference;
                    return true;
                }
                Ok(Verdict::Ill(_) | Verdict::StoodStill(_)) | Err(_) => return false,
            }
        }
        false
    });
    (last, small)
}
