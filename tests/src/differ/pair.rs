//! Runs one program natively and preloaded, and compares.

use super::child::{Child, End, Ran, Setup};
use super::program::Program;
use super::world::{OPEN, STOOD_STILL};
use std::fmt;

/// A difference. The native run's part comes first in each pair.
#[derive(Clone, Debug)]
pub struct Difference {
    /// A few words, which are the same for each difference of the same kind.
    pub what: String,
    pub native: Vec<String>,
    pub preloaded: Vec<String>,
    /// Line at which the traces part.
    pub at: usize,
    /// The stacks of each run's threads, if the run stood still.
    pub stacks: [Vec<String>; 2],
}

impl Difference {
    /// True if only the preloaded run stood still, at a place where the native run opened a gate.
    pub fn stood_still(&self) -> bool {
        let at = |trace: &[String], end: &str| trace.get(self.at).is_some_and(|line| line.ends_with(end));
        at(&self.native, OPEN) && at(&self.preloaded, STOOD_STILL)
    }

    /// True if the preloaded run stood still while the driver instantiated an exec for gpumem. With bounds below the
    /// default a launch or an instantiate may wait there for running work (docs/decisions/drivers.md).
    pub fn waited_to_instantiate(&self) -> bool {
        let frames = &self.stacks[1];
        let of = |line: &String, library: &str| line.contains(library);
        self.stood_still()
            && frames.windows(2).any(|pair| {
                of(&pair[0], "libcuda.so") && of(&pair[0], " cuGraphInstantiate") && of(&pair[1], "libgpumem.so")
            })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        let from = self.at.saturating_sub(3);
        for line in &self.native[from.min(self.native.len())..self.at.min(self.native.len())] {
            writeln!(f, "            {line}")?;
        }
        for (name, trace) in [("native   ", &self.native), ("preloaded", &self.preloaded)] {
            let shown = trace.iter().skip(self.at).take(3);
            let lines: Vec<&str> = shown.map(String::as_str).collect();
            writeln!(f, "  {name} {}", if lines.is_empty() { "(nothing more)" } else { lines[0] })?;
            lines.iter().skip(1).try_for_each(|line| writeln!(f, "            {line}"))?;
        }
        for (name, stacks) in ["native", "preloaded"].iter().zip(&self.stacks).filter(|(_, stacks)| !stacks.is_empty())
        {
            writeln!(f, "  where the {name} run stood still:")?;
            stacks.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        }
        Ok(())
    }
}

/// Two processes that run the same programs.
pub struct Pair {
    setup: Setup,
    native: Option<Child>,
    preloaded: Option<Child>,
}

/// The outcome of a program.
pub enum Verdict {
    Same,
    Differs(Box<Difference>),
    /// The native run stood still beside a gate: the driver waited for what the program would have done next. Both runs
    /// agreed until then.
    StoodStill(String),
    /// The native run died, did not end, or broke a rule of the driver: the program is not well defined,
    /// or the driver is not well.
    Ill(String),
}

impl Verdict {
    /// True if both processes did all of the program, so that the next one may run there. A run that stood still leaves out
    /// the rest of its program: an error of that rest that stays would then be the next program's, in the other run alone.
    pub fn left_both_alike(&self) -> bool {
        matches!(self, Self::Same)
    }
}

impl Pair {
    pub fn new(setup: &Setup) -> Self {
        Self { setup: setup.clone(), native: None, preloaded: None }
    }

    fn ready(slot: &mut Option<Child>, setup: &Setup, preload: bool) -> Result<(), String> {
        if slot.is_none() {
            *slot = Some(Child::start(setup, preload)?);
        }
        Ok(())
    }

    /// Starts those of the two processes that do not run yet.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(&mut self) -> Result<(), String> {
        Self::ready(&mut self.native, &self.setup, false)?;
        Self::ready(&mut self.preloaded, &self.setup, true)
    }

    /// Runs a program in both processes.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn run(&mut self, program: &Program) -> Result<Verdict, String> {
        self.run_two(program, program)
    }

    /// Runs `native` natively and `preloaded` preloaded.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn run_two(&mut self, native: &Program, preloaded: &Program) -> Result<Verdict, String> {
        self.start()?;
        let (Some(first), Some(second)) = (&mut self.native, &mut self.preloaded) else {
            return Err("not started".into());
        };
        first.give(native);
        second.give(preloaded);
        let (first, second) = (first.finish(), second.finish());
        if first.end != End::Finished {
            self.native = None;
        }
        if second.end != End::Finished {
            self.preloaded = None;
        }
        Ok(judge(first, second))
    }
}

/// True if two runs printed the same. The native run alone may stand still: the driver waits for the device when it
/// destroys an exec, and the preloaded run destroys the exec later.
fn alike(native: &str, preloaded: &str) -> bool {
    native == preloaded
        || native.strip_suffix(STOOD_STILL).is_some_and(|before| preloaded.strip_suffix(OPEN) == Some(before))
}

/// Codes after which every call of a context fails.
const BROKEN: [&str; 8] = ["700", "702", "714", "715", "716", "717", "718", "719"];

/// True if a line says that the context broke.
fn says_broken(line: &str) -> bool {
    line.rsplit_once(" = ").is_some_and(|(_, code)| BROKEN.contains(&code))
}

fn judge(mut native: Ran, mut preloaded: Ran) -> Verdict {
    // Operations after that are not run.
    let stood_still = native.trace.iter().position(|line| line.ends_with(STOOD_STILL));
    if let Some(at) = stood_still {
        native.trace.truncate(at + 1);
        preloaded.trace.truncate(at + 1);
    }
    let last = |ran: &Ran| ran.trace.last().cloned().unwrap_or_default();
    match &native.end {
        End::Finished => {}
        End::Died(status, said) => return Verdict::Ill(format!("the native run ended with {status}: {said}")),
        End::Stuck => {
            let stacks = native.stacks.join("\n    ");
            return Verdict::Ill(format!("the native run stood still after: {}\n    {stacks}", last(&native)));
        }
    }
    let same = native.trace.iter().zip(&preloaded.trace).take_while(|(a, b)| alike(a, b)).count();
    let differs = |what: String| {
        let stacks = [native.stacks.clone(), preloaded.stacks.clone()];
        let (native, preloaded) = (native.trace.clone(), preloaded.trace.clone());
        Verdict::Differs(Box::new(Difference { what, native, preloaded, at: same, stacks }))
    };
    match &preloaded.end {
        End::Died(status, said) => return differs(format!("died: the preloaded run ended with {status}: {said}")),
        End::Stuck => return differs("stuck: the preloaded run stood still".into()),
        // The fault is the driver's, because programs are well defined (docs/decisions/drivers.md has one that breaks a
        // context).
        End::Finished if native.trace.get(same).is_some_and(|line| says_broken(line)) => {
            return Verdict::Ill(format!("the native run alone broke its context: {}", native.trace[same]));
        }
        End::Finished if same < native.trace.len().max(preloaded.trace.len()) => {
            return differs("answers differ".into());
        }
        End::Finished => {}
    }
    let mut left = native.violations.clone();
    for violation in &preloaded.violations {
        match left.iter().position(|other| other == violation) {
            Some(i) => drop(left.swap_remove(i)),
            None => return differs(format!("violation in the preloaded run alone: {violation}")),
        }
    }
    let own = |violation: &&String| !violation.contains("capture_disturbed");
    match native.violations.iter().find(own) {
        Some(violation) => Verdict::Ill(format!("violation in the native run: {violation}")),
        None => match stood_still {
            Some(at) => {
                let before = native.trace[..at].last().map_or("the beginning", String::as_str);
                Verdict::StoodStill(format!("the native run stood still after: {before}"))
            }
            None => Verdict::Same,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(trace: &[&str]) -> Ran {
        let trace = trace.iter().map(|&line| line.into()).collect();
        Ran { trace, violations: Vec::new(), end: End::Finished, stacks: Vec::new() }
    }

    #[test]
    fn only_the_preloaded_run_may_not_break_its_context() {
        let lines = |code: &str| ["1 launch e0 = 0".to_owned(), format!("2 synchronize = {code}")];
        let ends = |code: &str| ran(&lines(code).each_ref().map(String::as_str));
        assert!(matches!(judge(ends("700"), ends("700")), Verdict::Same));
        assert!(matches!(judge(ends("700"), ends("0")), Verdict::Ill(_)));
        assert!(matches!(judge(ends("0"), ends("700")), Verdict::Differs(_)));
        assert!(matches!(judge(ends("400"), ends("0")), Verdict::Differs(_)));
    }

    #[test]
    fn only_the_preloaded_run_may_not_stand_still() {
        let ran = |gate: &str| ran(&["1 launch e0 = 0", &format!("2 {gate}"), "2 synchronize = 0"]);
        assert!(matches!(judge(ran(OPEN), ran(OPEN)), Verdict::Same));
        assert!(matches!(judge(ran(STOOD_STILL), ran(STOOD_STILL)), Verdict::StoodStill(_)));
        let verdict = judge(ran(STOOD_STILL), ran(OPEN));
        assert!(matches!(verdict, Verdict::StoodStill(_)));
        assert!(!verdict.left_both_alike(), "the preloaded run went on where the native one did not");
        let mut other = ran(OPEN);
        other.trace[0] = "1 launch e0 = 1".into();
        assert!(matches!(judge(ran(STOOD_STILL), other), Verdict::Differs(_)), "before it stood still");
        let Verdict::Differs(difference) = judge(ran(OPEN), ran(STOOD_STILL)) else { panic!("it stood still") };
        assert_eq!((difference.what.as_str(), difference.at), ("answers differ", 1));
        assert!(difference.stood_still());
        let Verdict::Differs(difference) = judge(ran(OPEN), ran("open: 1")) else { panic!("it differs") };
        assert!(!difference.stood_still());
    }

    #[test]
    fn a_wait_of_the_drivers_instantiate_is_told_apart() {
        let stands = |frames: &[&str]| {
            let mut preloaded = ran(&[&format!("2 {STOOD_STILL}")]);
            preloaded.stacks = frames.iter().map(|&frame| frame.into()).collect();
            let Verdict::Differs(difference) = judge(ran(&[&format!("2 {OPEN}")]), preloaded) else {
                panic!("it differs")
            };
            difference.waited_to_instantiate()
        };
        let (driver, ours) = ("#19 libcuda.so+0x356e30 cuGraphInstantiateWithFlags+0x20", "#20 libgpumem.so+0x1815d9");
        assert!(stands(&["thread 1 differ", "#18 libcuda.so+0x37078b", driver, ours, "#21 libgpumem.so+0x15ad6b"]));
        assert!(!stands(&[driver, "#20 differ+0xc72b1", ours]));
        assert!(!stands(&["#1 libc.so.6+0x45330", ours]));
    }
}
