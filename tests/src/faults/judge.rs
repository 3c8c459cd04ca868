//! Compares the two runs of a plan.

use super::left::{self, LeftFiles};
use super::need;
use super::plan::Plan;
use super::run::{End, Manner, Ran, run};
use super::trouble::{CallTrouble, Trouble};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Longest time of a native run. A native run that takes longer is not judged.
const NATIVE: Duration = Duration::from_secs(6);
/// Longest time of a preloaded run whose native run took next to no time.
pub const PATIENCE: Duration = Duration::from_secs(25);
/// How often the native run is repeated when it ended in another way than the preloaded run.
const AGAIN: usize = 3;

/// The faults of the preloaded run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    Death,
    Hang,
    Answer,
    Rule,
    Ledger,
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub wrong: Wrong,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.wrong, self.what)
    }
}

/// The outcome of a plan.
#[derive(Default)]
pub struct Verdict {
    pub findings: Vec<Finding>,
    /// Why the plan cannot be judged, if it cannot.
    pub ill: Option<String>,
    /// How the native run ended. `None` if the plan is not judged.
    pub native: Option<End>,
    pub ledgers: usize,
    pub refused: usize,
    /// True if the outputs of both runs were compared.
    pub compared: bool,
    /// The native run ends the same way too, but only with a little less of a limit, or when another call fails.
    pub excused: bool,
    pub struck: bool,
    /// The run had no file system of its own, because only root can mount one.
    pub diskless: bool,
}

/// Runs a plan natively and preloaded.
///
/// # Errors
/// When a program is not there.
pub fn judge(plan: &Plan, patience: Duration) -> Result<Verdict, String> {
    let file = &plan.program.file;
    std::fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let plan = &need::settled(plan);
    let native = match run(plan, Manner::native(NATIVE)) {
        Ok(native) => native,
        Err(why) => return Ok(Verdict { ill: Some(why), ..Verdict::default() }),
    };
    if let End::Hang(_) = native.end {
        return Ok(Verdict { ill: Some("the native run does not end".into()), ..Verdict::default() });
    }
    let limit = patience * waits(plan) + 10 * native.took;
    let ran = match run(plan, Manner::preloaded(limit)) {
        Ok(ran) => ran,
        Err(why) => return Ok(Verdict { ill: Some(why), ..Verdict::default() }),
    };
    let left = left::look(ran.place.path());
    let mut verdict = Verdict {
        native: Some(native.end.clone()),
        ledgers: left.ledgers,
        refused: left.refused,
        compared: plan.tells(),
        diskless: !ran.place.is_mounted(),
        struck: !ran.struck.is_empty(),
        ..Verdict::default()
    };
    let LeftFiles { wrong, .. } = left;
    verdict.findings.extend(wrong.into_iter().map(|what| Finding { wrong: Wrong::Ledger, what }));
    if let Some(finding) = difference(plan, &native, &ran) {
        if excused(plan, &finding, &ran) {
            verdict.excused = true;
        } else {
            verdict.findings.push(finding);
        }
    }
    Ok(verdict)
}

/// How many times the patience a plan gets: where guards are read at each free, the free waits for work that the plan makes
/// slow.
fn waits(plan: &Plan) -> u32 {
    let has = |wanted: &str| {
        plan.troubles.iter().any(|trouble| match trouble {
            Trouble::Setting(name, value) => name == wanted && value != "0",
            Trouble::Driver(name, _) => *name == wanted,
            _ => false,
        })
    };
    if has("GPUMEM_GUARD") && has("SIM_LAG_US") { 4 } else { 1 }
}

/// True if the loader itself cannot start the program with these libraries. The program may then end by a signal, since
/// the loader does not look at what its own allocator answers (`init_tls` of glibc 2.36's `rtld.c`).
fn loader_fails(plan: &Plan) -> bool {
    let manner = Manner { load_only: true, ..Manner::preloaded(NATIVE) };
    run(plan, manner).is_ok_and(|ran| ran.end != End::Exit(0))
}

/// True if the plan sent the signal that ended the run.
fn was_sent(plan: &Plan, end: &End) -> bool {
    plan.troubles.iter().any(|trouble| matches!(trouble, Trouble::Kill { signal, .. } if *end == End::Signal(*signal)))
}

fn difference(plan: &Plan, native: &Ran, ran: &Ran) -> Option<Finding> {
    let found = |wrong, what: String| Some(Finding { wrong, what });
    let said = || {
        let last: Vec<&str> = ran.err.lines().rev().take(6).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n    ")
    };
    match &ran.end {
        End::Hang(stacks) => return found(Wrong::Hang, format!("natively {}; its threads:\n{stacks}", native.end)),
        End::Signal(_) if ran.end != native.end && !was_sent(plan, &ran.end) => {
            return found(Wrong::Death, format!("{}, natively {}\n    {}", ran.end, native.end, said()));
        }
        _ => {}
    }
    if !plan.tells() {
        return None;
    }
    if ran.end != native.end {
        return found(Wrong::Answer, format!("{}, natively {}\n    {}", ran.end, native.end, said()));
    }
    if plan.program.prints && ran.out != native.out {
        let lines = ran.out.lines().zip(native.out.lines()).find(|(ours, theirs)| ours != theirs);
        let (ours, theirs) = lines.unwrap_or((&ran.out, &native.out));
        return found(Wrong::Answer, format!("it prints\n    {ours}\n  natively\n    {theirs}"));
    }
    let new: Vec<&String> = ran.violations.iter().filter(|rule| !native.violations.contains(rule)).collect();
    if new.is_empty() { None } else { found(Wrong::Rule, format!("rules of the driver are broken: {new:?}")) }
}

/// True if the program ends this way without the shim, too, or if the loader does before any code of the shim runs. The
/// program is run natively again, with a little less of what is limited, or with a failure at another call of the same
/// function.
fn excused(plan: &Plan, finding: &Finding, ran: &Ran) -> bool {
    let like = |plan: &Plan| {
        let Ok(native) = run(plan, Manner::native(NATIVE)) else { return false };
        match finding.wrong {
            Wrong::Rule => ran.violations.iter().all(|rule| native.violations.contains(rule)),
            Wrong::Answer if native.end.kind() == ran.end.kind() => {
                native.out == ran.out || !plan.program.prints || (native.end != End::Exit(0) && changed(plan))
            }
            _ => native.end.kind() == ran.end.kind(),
        }
    };
    if finding.wrong == Wrong::Death && loader_fails(plan) {
        return true;
    }
    if (0..AGAIN).any(|_| like(plan)) {
        return true;
    }
    variants(plan, &ran.struck).iter().any(like)
}

fn changed(plan: &Plan) -> bool {
    plan.troubles.iter().any(|trouble| matches!(trouble, Trouble::Limit(..)))
}

/// The plan with a smaller limit, or with another call that goes wrong.
fn variants(plan: &Plan, struck: &[String]) -> Vec<Plan> {
    let mut all = Vec::new();
    for (i, trouble) in plan.troubles.iter().enumerate() {
        let with = |other: Trouble| {
            let mut plan = plan.clone();
            plan.troubles[i] = other;
            plan
        };
        match trouble {
            Trouble::Limit(limit, value) => {
                all.extend(limit.smaller(*value).into_iter().map(|value| with(Trouble::Limit(*limit, value))));
            }
            Trouble::Call { name, call, what: what @ CallTrouble::Answers(_) } => {
                let mut calls: BTreeSet<u64> = (1..=6).collect();
                calls.extend(call.saturating_sub(4).max(1)..=call + 4);
                all.extend(calls.into_iter().map(|call| with(Trouble::Call { name, call, what: *what })));
                // The nth of all was a call of this function.
                let hit = struck.iter().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
                for name in hit.filter(|_| *name == "*") {
                    let name: &'static str = String::leak(name.to_owned());
                    all.extend((1..=8).map(|call| with(Trouble::Call { name, call, what: *what })));
                }
            }
            // The setting asks for this: allocations fail although the driver has room.
            Trouble::Setting(name, _)
                if ["GPUMEM_LIMIT", "GPUMEM_LIMIT_GROUP", "GPUMEM_STRANDED"].contains(&name.as_str()) =>
            {
                let refused = |call| Trouble::Call { name: "cuMemAlloc_v2", call, what: CallTrouble::Answers(2) };
                all.extend((1..=8).map(|call| with(refused(call))));
            }
            _ => {}
        }
    }
    all
}
