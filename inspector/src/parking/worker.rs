//! The process that parks and resumes. A caller that dies while the driver works leaves the other process unusable
//! (checkpoint-restore/criu#2547), so nothing ends this one: it is in a group of its own, holds all signals back, and
//! finishes even if nobody reads what it says.
//!
//! It is `gpumem park --worker`: it reads an [`Order`] a line from its input, and writes a line of JSON for each thing
//! that happened.

use super::driver::{Checkpoints, Driver, State};
use super::plan;
use super::registry::{self, Parked};
use super::sequence::{self, Call, Stop};
use crate::failure::{Failure, Result};
use crate::model::Ledger;
use crate::source::ask::ask_patiently;
use crate::source::nvml::Books;
use crate::source::process::Process;
use crate::source::world::World;
use gpumem_wire::command::Request;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Task of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    Park,
    Resume,
}

/// An action, and the processes of one job, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub action: Action,
    pub members: Vec<Parked>,
    /// How long the work of a process may take to end before it is locked.
    pub lock: Duration,
    /// Processes whose descendants belong to the job.
    pub families: Vec<u32>,
}

/// A line from the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "kebab-case")]
pub(crate) enum Said {
    /// A call of the driver was made.
    Call(Call),
    /// libgpumem.so in a process answered.
    Shim { pid: u32, text: String },
    /// All was done.
    Done,
    /// A call was refused, and what could be undone was.
    Stopped(Stop),
    /// Nothing was done.
    Failed { why: String },
    /// A descendant began to use the GPU meanwhile, so everything was undone.
    Newcomer { why: String },
}

/// Longest wait for libgpumem.so in a process that is to be parked: it gives idle memory back first.
const TELL: Duration = Duration::from_secs(15);

/// A running worker. It ends when this is dropped, after the order at hand.
pub(crate) struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker, in a process group of its own.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn start(world: &World) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["park", "--worker", "--dir"]).arg(&world.own_dir).process_group(0);
        // libgpumem.so has nothing to do in it.
        command.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(said)) => Ok(Self { child, orders: Some(orders), said: BufReader::new(said) }),
            _ => Err(failed(&std::io::Error::other("no pipe to it"))),
        }
    }

    /// Gives it an order, and passes each line to `hear` until the last, which is returned.
    ///
    /// # Errors
    /// The worker ended without an end.
    pub(crate) fn carry_out(&mut self, order: &Order, hear: &mut dyn FnMut(&Said)) -> Result<Said> {
        let mut line = serde_json::to_vec(order).map_err(|error| failed(&error.into()))?;
        line.push(b'\n');
        let sent = self.orders.as_mut().map(|orders| orders.write_all(&line));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.ended_early());
        }
        loop {
            let mut line = String::new();
            match self.said.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(self.ended_early()),
                Ok(_) => {}
            }
            let Ok(said) = serde_json::from_str::<Said>(&line) else { continue };
            match said {
                Said::Done | Said::Stopped(_) | Said::Failed { .. } | Said::Newcomer { .. } => return Ok(said),
                said => hear(&said),
            }
        }
    }

    fn ended_early(&mut self) -> Failure {
        self.orders = None;
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::error(format!("the process that makes the driver's calls ended early ({status})"))
            .fix("gpumem resume brings back what is locked or parked")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}

fn failed(error: &std::io::Error) -> Failure {
    Failure::io("cannot start the process that makes the driver's calls", error)
}

/// Carries out one order. Signals that would end this process are held back meanwhile.
///
/// # Errors
/// As [`Worker::start`] and [`Worker::carry_out`].
pub(crate) fn run(world: &World, order: &Order, hear: &mut dyn FnMut(&Said)) -> Result<Said> {
    let _held = HeldSignals::hold(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    Worker::start(world)?.carry_out(order, hear)
}

/// Signals that are held back while this lives.
struct HeldSignals(libc::sigset_t);

impl HeldSignals {
    fn hold(signals: &[libc::c_int]) -> Self {
        // SAFETY: zeroes are a valid sigset, each signal's number is one that libc names, and the sets are locals.
        unsafe {
            let (mut held, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut held);
            for &signal in signals {
                libc::sigaddset(&mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before);
            Self(before)
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: `hold` got this set from the system.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The worker itself: an order a line, until its input ends.
///
/// # Errors
/// An order cannot be read.
pub(crate) fn serve(world: &World) -> Result<()> {
    let all: Vec<_> = (1..=libc::SIGRTMAX()).filter(|signal| ![libc::SIGSEGV, libc::SIGBUS].contains(signal)).collect();
    let _held = HeldSignals::hold(&all);
    let driver = Driver::open();
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let order: Order = serde_json::from_str(&line)
            .map_err(|error| Failure::error(format!("the order cannot be read: {error}")))?;
        let end = match driver.as_ref() {
            Ok(driver) => carry_out(world, driver, &order).err().unwrap_or(Said::Done),
            Err(why) => Said::Failed { why: why.clone() },
        };
        say(&end);
    }
    Ok(())
}

/// Writes a line. Nobody may read it any more.
fn say(said: &Said) {
    if let Ok(mut line) = serde_json::to_vec(said) {
        line.push(b'\n');
        let _ = std::io::stdout().lock().write_all(&line);
    }
}

fn carry_out(world: &World, driver: &Driver, order: &Order) -> std::result::Result<(), Said> {
    // One order at a time, whoever gives it: the state must not change between the look and the calls.
    let _turn = registry::turn(world).map_err(|failure| Said::Failed { why: failure.to_string() })?;
    for member in &order.members {
        let same = |process: &Process| process.start_ticks == member.start_ticks;
        if !Process::of(world, member.pid).is_some_and(|process| same(&process)) {
            return Err(Said::Failed { why: format!("pid {} has ended", member.pid) });
        }
    }
    let pids: Vec<u32> = order.members.iter().map(|member| member.pid).collect();
    let job = Job { world, driver, order, ledgers: plan::ledgers(world, &pids), pids: &pids };
    let tell = &mut |call| say(&Said::Call(call));
    match order.action {
        Action::Park => job.park(tell),
        Action::Resume => {
            let stopped = sequence::resume(driver, &pids, tell);
            job.settle();
            stopped.map_err(Said::Stopped)
        }
    }
}

/// An order that is carried out.
struct Job<'a> {
    world: &'a World,
    driver: &'a Driver,
    order: &'a Order,
    pids: &'a [u32],
    /// The ledgers of those that have libgpumem.so.
    ledgers: BTreeMap<u32, Ledger>,
}

impl Job<'_> {
    fn park(&self, tell: &mut dyn FnMut(Call)) -> std::result::Result<(), Said> {
        let Self { world, driver, order, pids, .. } = *self;
        // One that another has parked has a note already, and knows where it stands.
        sequence::all_run(driver, pids).map_err(Said::Stopped)?;
        if let Err(why) = pids.iter().try_for_each(|&pid| self.tell_shim(pid, &Request::Park)) {
            self.settle();
            return Err(Said::Failed { why });
        }
        // Noted before the first call: whatever happens to this process, the next one knows which cards they need.
        let noted = order.members.iter().try_for_each(|member| registry::note(world, member));
        let parked = noted.map_err(|failure| Said::Failed { why: failure.to_string() }).and_then(|()| {
            sequence::park(driver, pids, order.lock, tell).map_err(Said::Stopped)?;
            let Some(why) = self.newcomer() else { return Ok(()) };
            sequence::resume(driver, pids, tell).map_err(Said::Stopped)?;
            Err(Said::Newcomer { why })
        });
        self.settle();
        parked
    }

    /// Brings notes and libgpumem.so in line with what the driver says of each process.
    fn settle(&self) {
        for member in &self.order.members {
            match self.driver.state(member.pid) {
                Ok(State::Running) | Err(_) => {
                    registry::forget(self.world, member.pid, member.start_ticks);
                    let _ = self.tell_shim(member.pid, &Request::Resumed);
                }
                Ok(State::Checkpointed) => {
                    let _ = self.tell_shim(member.pid, &Request::Parked { bytes: member.bytes() });
                }
                Ok(_) => {}
            }
        }
    }

    /// Names a descendant that uses the GPU and began when the others were being parked. It would wait for them.
    fn newcomer(&self) -> Option<String> {
        let all = plan::members(self.world, self.driver, &Books::closed(), &self.order.families, false);
        let new = all.iter().find(|member| !self.pids.contains(&member.process.pid))?;
        Some(format!("{} has begun to use the GPU meanwhile", new.whose()))
    }

    /// Tells libgpumem.so in a process, if it is there and takes commands.
    ///
    /// # Errors
    /// It refused, or did not answer.
    fn tell_shim(&self, pid: u32, request: &Request) -> std::result::Result<(), String> {
        let ledger = self.ledgers.get(&pid).filter(|ledger| ledger.settings().control);
        let Some(ledger) = ledger else { return Ok(()) };
        match ask_patiently(&ledger.whom(), request, TELL) {
            Ok(text) => {
                say(&Said::Shim { pid, text });
                Ok(())
            }
            // An older one knows nothing of this, and is parked as any program is.
            Err(failure) if failure.what.contains("is no command") => Ok(()),
            Err(failure) => Err(failure.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever gave the order waits for the last line: one that could not be written would be waited for without end.
    #[test]
    fn each_end_is_a_line() {
        let why = || "why".to_owned();
        let stop = Stop { pid: 1, step: super::super::driver::Step::Lock, why: why(), left: vec![(1, why())] };
        for end in [Said::Done, Said::Stopped(stop), Said::Failed { why: why() }, Said::Newcomer { why: why() }] {
            let line = serde_json::to_string(&end).expect("a line");
            let read: Said = serde_json::from_str(&line).expect("the same");
            assert_eq!(serde_json::to_string(&read).expect("a line"), line);
        }
    }
}
