//! The order of the calls that park and resume the processes of one job, and their undoing if one is refused.
//!
//! All are locked before the first is parked, so that none waits for another that is parked already. They are resumed
//! in the same order, and unlocked when all are back.

use super::driver::{Checkpoints, Refusal, State, Step};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub pid: u32,
    pub step: Step,
    /// The driver's answer, a `CUresult`; 0 is success.
    pub answer: i32,
    pub seconds: f64,
}

/// Reason why a job was not parked or resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stop {
    pub pid: u32,
    pub step: Step,
    pub why: String,
    /// Processes that do not run now, with the reason.
    pub left: Vec<(u32, String)>,
}

/// Makes the calls and tells each.
struct Caller<'a> {
    driver: &'a dyn Checkpoints,
    tell: &'a mut dyn FnMut(Call),
    /// How long a lock may wait.
    limit: Duration,
}

impl Caller<'_> {
    fn call(&mut self, pid: u32, step: Step) -> Result<(), Stop> {
        let begin = Instant::now();
        let answer = self.driver.make(step, pid, self.limit);
        let code = answer.err().map_or(0, |refusal| refusal.0);
        (self.tell)(Call { pid, step, answer: code, seconds: begin.elapsed().as_secs_f64() });
        answer.map_err(|refusal| stop(pid, step, refusal))
    }

    /// Brings processes back that were locked, the first `parked` of them parked. Returns those that do not run now.
    fn undo(&mut self, locked: &[u32], parked: usize) -> Vec<(u32, String)> {
        let (mut left, mut back) = (Vec::new(), Vec::new());
        for (at, &pid) in locked.iter().enumerate() {
            match if at < parked { self.call(pid, Step::Restore) } else { Ok(()) } {
                Ok(()) => back.push(pid),
                Err(stop) => left.push((pid, format!("it is parked, and resuming it failed: {}", stop.why))),
            }
        }
        for pid in back {
            if let Err(stop) = self.call(pid, Step::Unlock) {
                left.push((pid, format!("it is locked, and unlocking it failed: {}", stop.why)));
            }
        }
        // One that has ended needs nothing any more.
        left.retain(|&(pid, _)| self.driver.state(pid).is_ok());
        left
    }
}

fn stop(pid: u32, step: Step, refusal: Refusal) -> Stop {
    let why = match (step, refusal) {
        (Step::Restore, Refusal::NO_ROOM) => format!("{refusal}: it can only be killed now"),
        (Step::Lock, Refusal::BUSY) => format!("{refusal}: a longer --lock-time may help"),
        _ => refusal.to_string(),
    };
    Stop { pid, step, why, left: Vec::new() }
}

/// Fails if a process is in another state than these.
fn expect(driver: &dyn Checkpoints, pid: u32, wanted: &[State]) -> Result<State, Stop> {
    let state = driver.state(pid).map_err(|refusal| stop(pid, Step::Look, refusal))?;
    match wanted.contains(&state) {
        true => Ok(state),
        false => Err(Stop { pid, step: Step::Look, why: format!("it is {state}"), left: Vec::new() }),
    }
}

/// Fails unless all of the processes run.
///
/// # Errors
/// Names the first that does not.
pub(crate) fn all_run(driver: &dyn Checkpoints, pids: &[u32]) -> Result<(), Stop> {
    pids.iter().try_for_each(|&pid| expect(driver, pid, &[State::Running]).map(drop))
}

/// Parks the processes. `limit`: how long the work of each may take to end. `tell` is given each call.
///
/// # Errors
/// The call that was refused. Everything before it was undone, except for [`Stop::left`].
pub(crate) fn park(
    driver: &dyn Checkpoints,
    pids: &[u32],
    limit: Duration,
    tell: &mut dyn FnMut(Call),
) -> Result<(), Stop> {
    all_run(driver, pids)?;
    let mut caller = Caller { driver, tell, limit };
    let calls = [Step::Lock, Step::Checkpoint].into_iter().flat_map(|step| pids.iter().map(move |&pid| (pid, step)));
    let (mut locked, mut parked) = (0, 0);
    for (pid, step) in calls {
        if let Err(mut stop) = caller.call(pid, step) {
            stop.left = caller.undo(&pids[..locked], parked);
            return Err(stop);
        }
        match step {
            Step::Lock => locked += 1,
            _ => parked += 1,
        }
    }
    Ok(())
}

/// Resumes the processes, in the order in which they were parked. One that is locked only is unlocked. Those that run
/// already are left alone, unless all do.
///
/// # Errors
/// The call that was refused. Processes that were back by then run; the others are in [`Stop::left`].
pub(crate) fn resume(driver: &dyn Checkpoints, pids: &[u32], tell: &mut dyn FnMut(Call)) -> Result<(), Stop> {
    let mut waiting = Vec::new();
    for &pid in pids {
        let state = expect(driver, pid, &[State::Checkpointed, State::Locked, State::Running])?;
        waiting.extend((state != State::Running).then_some((pid, state)));
    }
    let (pids, states): (Vec<u32>, Vec<State>) = match waiting.is_empty() {
        false => waiting.into_iter().unzip(),
        true => return expect(driver, pids[0], &[State::Checkpointed]).map(drop),
    };
    let mut caller = Caller { driver, tell, limit: Duration::ZERO };
    for (at, (&pid, state)) in pids.iter().zip(states).enumerate() {
        if state == State::Locked {
            continue;
        }
        if let Err(mut stop) = caller.call(pid, Step::Restore) {
            stop.left = caller.undo(&pids[..at], 0);
            stop.left.extend(pids[at..].iter().map(|&pid| (pid, "it is parked".to_owned())));
            return Err(stop);
        }
    }
    match caller.undo(&pids, 0) {
        left if left.is_empty() => Ok(()),
        left => {
            let (pid, why) = left[0].clone();
            Err(Stop { pid, step: Step::Unlock, why, left })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::Answer;
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// A driver that follows the rules that were measured, and refuses chosen calls.
    #[derive(Default)]
    struct Fake {
        states: RefCell<BTreeMap<u32, i32>>,
        refuses: Vec<(u32, Step, i32)>,
    }

    impl Fake {
        fn of(pids: &[u32], state: i32, refuses: &[(u32, Step, i32)]) -> Self {
            let states = pids.iter().map(|&pid| (pid, state)).collect();
            Self { states: RefCell::new(states), refuses: refuses.to_vec() }
        }

        fn step(&self, pid: u32, step: Step, from: i32, to: i32) -> Answer {
            if let Some((.., code)) = self.refuses.iter().find(|refused| (refused.0, refused.1) == (pid, step)) {
                return Err(Refusal(*code));
            }
            match self.states.borrow_mut().get_mut(&pid) {
                Some(state) if *state == from => *state = to,
                Some(_) => return Err(Refusal(401)),
                None => return Err(Refusal(1)),
            }
            Ok(())
        }

        fn now(&self) -> Vec<i32> {
            self.states.borrow().values().copied().collect()
        }
    }

    impl Checkpoints for Fake {
        fn state(&self, pid: u32) -> Result<State, Refusal> {
            self.states.borrow().get(&pid).map(|&state| State::of(state)).ok_or(Refusal(1))
        }
        fn make(&self, step: Step, pid: u32, limit: Duration) -> Answer {
            match step {
                Step::Look => self.state(pid).map(drop),
                Step::Lock => {
                    assert!(!limit.is_zero());
                    self.step(pid, step, 0, 1)
                }
                Step::Checkpoint => {
                    let all = self.states.borrow().values().all(|&state| state > 0);
                    assert!(all, "all are locked before one is parked");
                    self.step(pid, step, 1, 2)
                }
                Step::Restore => self.step(pid, step, 2, 1),
                Step::Unlock => self.step(pid, step, 1, 0),
            }
        }
    }

    const LIMIT: Duration = Duration::from_secs(2);

    #[test]
    fn a_job_is_parked_and_comes_back() {
        let driver = Fake::of(&[7, 8, 9], 0, &[]);
        let mut calls = Vec::new();
        park(&driver, &[7, 8, 9], LIMIT, &mut |call| calls.push((call.pid, call.step))).unwrap();
        assert_eq!(driver.now(), [2, 2, 2]);
        assert_eq!(calls[..4], [(7, Step::Lock), (8, Step::Lock), (9, Step::Lock), (7, Step::Checkpoint)]);
        calls.clear();
        resume(&driver, &[7, 8, 9], &mut |call| calls.push((call.pid, call.step))).unwrap();
        assert_eq!(driver.now(), [0, 0, 0]);
        assert_eq!(calls[2..4], [(9, Step::Restore), (7, Step::Unlock)], "none runs before all are back");
    }

    #[test]
    fn each_refused_call_is_undone() {
        for step in [Step::Lock, Step::Checkpoint] {
            for pid in [7, 8, 9] {
                let driver = Fake::of(&[7, 8, 9], 0, &[(pid, step, 801)]);
                let stop = park(&driver, &[7, 8, 9], LIMIT, &mut |_| {}).unwrap_err();
                assert_eq!((stop.pid, stop.step, stop.left.len()), (pid, step, 0));
                assert_eq!(driver.now(), [0, 0, 0], "{step:?} of {pid}");
            }
        }
    }

    #[test]
    fn the_way_back_names_whom_it_leaves() {
        let driver = Fake::of(&[7, 8], 0, &[(8, Step::Checkpoint, 801), (7, Step::Restore, 2)]);
        let stop = park(&driver, &[7, 8], LIMIT, &mut |_| {}).unwrap_err();
        assert_eq!(driver.now(), [2, 0], "the other one runs again");
        assert!(stop.left[0].1.contains("can only be killed"), "{stop:?}");
        // A restore without room is final for that process alone.
        let driver = Fake::of(&[7, 8, 9], 2, &[(8, Step::Restore, 2)]);
        let stop = resume(&driver, &[7, 8, 9], &mut |_| {}).unwrap_err();
        assert_eq!(driver.now(), [0, 2, 2]);
        assert_eq!(stop.left.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [8, 9]);
        assert!(stop.why.contains("killed"), "{stop:?}");
    }

    #[test]
    fn nothing_is_called_in_a_wrong_state() {
        let silent = &mut |call: Call| panic!("{call:?}");
        for state in [1, 2, 3, 4, 5, 77] {
            let stop = park(&Fake::of(&[7, 8], state, &[]), &[7, 8], LIMIT, silent).unwrap_err();
            assert_eq!(stop.step, Step::Look, "{state}: {}", stop.why);
        }
        assert_eq!(resume(&Fake::of(&[7], 0, &[]), &[7], silent).unwrap_err().why, "it is running");
        assert_eq!(park(&Fake::default(), &[7], LIMIT, silent).unwrap_err().why, Refusal(1).to_string());
    }

    #[test]
    fn one_that_runs_already_does_not_keep_the_others() {
        let driver = Fake::of(&[7, 8], 2, &[]);
        driver.states.borrow_mut().insert(8, 0);
        resume(&driver, &[7, 8], &mut |call| assert_eq!(call.pid, 7)).unwrap();
        assert_eq!(driver.now(), [0, 0]);
    }

    #[test]
    fn one_that_is_only_locked_is_unlocked() {
        let driver = Fake::of(&[7], 1, &[(7, Step::Restore, 401)]);
        resume(&driver, &[7], &mut |_| {}).unwrap();
        assert_eq!(driver.now(), [0]);
    }
}
