//! `gpumem resume`: moves the memory of parked processes back to their GPUs.

use super::park::{ended, of_another_user, pids};
use crate::args::candidates;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::sums;
use crate::parking::driver::{Checkpoints, Driver, State, Step};
use crate::parking::registry::{self, OnCard, Parked};
use crate::parking::worker::{self, Action, Order, Said};
use crate::parking::{plan, room};
use crate::source::nvml::Books;
use crate::source::world::World;
use crate::text::clean;
use gpumem_wire::units;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// Move the memory of parked processes back to their GPUs and let them run
///
/// If the driver finds no room for the memory, it never tries again, and the process can only be killed. So gpumem
/// checks first. On each card the process's bytes and 1 GiB more must be free, and no other program's memory may be
/// growing.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Pids or names. Not needed if all parked processes were parked by one gpumem park command
    #[arg(value_name = "PID|NAME", add = candidates::offer([candidates::running]))]
    targets: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    processes: Vec<Row>,
    bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Row {
    pid: u32,
    name: String,
    bytes: u64,
    cards: Vec<OnCard>,
    seconds: f64,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Nothing is parked, there is no room, or the driver refused.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let world = &context.world;
        let driver = Driver::open().map_err(|why| Failure::error(format!("nothing can be resumed: {why}")))?;
        let members = self.members(world, &driver)?;
        let wanted = wanted(&driver, &members);
        has_room(&Books::default(), &wanted)?;
        let row = |member: &Parked| Row {
            pid: member.pid,
            name: member.name.clone(),
            bytes: member.bytes(),
            cards: member.cards.clone(),
            seconds: 0.0,
        };
        let bytes = members.iter().map(Parked::bytes).sum();
        let mut report = Report { processes: members.iter().map(row).collect(), bytes, seconds: 0.0 };
        let begin = Instant::now();
        let order = Order { action: Action::Resume, members, lock: Duration::ZERO, families: Vec::new() };
        let end = worker::run(world, &order, &mut |said| report.hear(said))?;
        report.seconds = begin.elapsed().as_secs_f64();
        ended(end, "resumed")?;
        context.print(&report, print)
    }

    /// Returns the processes to resume, in the order in which they were parked.
    fn members(&self, world: &World, driver: &Driver) -> Result<Vec<Parked>> {
        let noted = registry::all(world);
        if self.targets.is_empty() {
            let first = noted.first().ok_or_else(|| Failure::nothing("no process is parked by this user"))?;
            if let Some(other) = noted.iter().find(|parked| parked.job != first.job) {
                let what = format!(
                    "several jobs are parked: pid {} ({}) and pid {} ({}) among them",
                    first.pid, first.name, other.pid, other.name
                );
                return Err(Failure::new(crate::failure::Code::Several, what).fix("name one: gpumem resume PID"));
            }
            return Ok(in_order(noted));
        }
        let named = |target: &String| {
            noted.iter().filter(|parked| parked.name == *target).map(|parked| parked.pid).collect::<Vec<_>>()
        };
        let by_note: Vec<u32> = self.targets.iter().flat_map(named).collect();
        let rest: Vec<String> = self.targets.iter().filter(|target| named(target).is_empty()).cloned().collect();
        let asked: Vec<u32> = by_note.into_iter().chain(pids(world, &rest)?).collect();
        // A job comes back whole.
        let jobs: Vec<u32> =
            noted.iter().filter(|parked| asked.contains(&parked.pid)).flat_map(|parked| parked.job.clone()).collect();
        let mut members: Vec<Parked> =
            noted.into_iter().filter(|parked| jobs.contains(&parked.pid) || asked.contains(&parked.pid)).collect();
        for &pid in asked.iter().filter(|&&pid| !jobs.contains(&pid)) {
            members.push(by_other_tool(world, driver, pid)?);
        }
        Ok(in_order(members))
    }
}

/// Sorts the processes of each job by the order of its calls.
fn in_order(mut members: Vec<Parked>) -> Vec<Parked> {
    let place = |parked: &Parked| parked.job.iter().position(|&pid| pid == parked.pid).unwrap_or(0);
    members.sort_by_key(|parked| (parked.since, place(parked)));
    members
}

/// Describes a process that another tool has parked, or another user's gpumem. What it needs is what libgpumem.so in it
/// has recorded.
fn by_other_tool(world: &World, driver: &Driver, pid: u32) -> Result<Parked> {
    let found = plan::members(world, driver, &Books::default(), &[pid], true).into_iter().next();
    let member = found.ok_or_else(|| {
        of_another_user(world, pid).unwrap_or_else(|| {
            Failure::nothing(format!(
                "pid {pid} does not use CUDA, says the NVIDIA driver; so there is nothing to resume"
            ))
        })
    })?;
    if member.state != State::Locked && (member.state != State::Checkpointed || member.cards.is_empty()) {
        let why = match member.state {
            State::Checkpointed => {
                "it was parked by another tool, and how much room it needs is not known: let that tool resume it".into()
            }
            state => format!("it is {state}"),
        };
        return Err(Failure::error(format!("{}: {why}", member.whose())));
    }
    Ok(member.note(0, vec![pid]))
}

/// Returns the bytes that are to go back to each card. One that is only locked, or runs, has its memory there.
fn wanted(driver: &Driver, members: &[Parked]) -> BTreeMap<String, u64> {
    let away = members.iter().filter(|member| driver.state(member.pid) == Ok(State::Checkpointed));
    let cards = away.flat_map(|member| &member.cards);
    sums::by(cards.map(|card| (card.uuid.clone(), card.bytes))).into_iter().collect()
}

/// Time between the two looks at a card.
const BETWEEN: Duration = Duration::from_secs(1);

/// Fails if a card has no room for what goes back to it.
fn has_room(books: &Books, wanted: &BTreeMap<String, u64>) -> Result<()> {
    let look = |uuid: &String| {
        books.card(uuid).map_err(|why| {
            let what = format!("nothing was resumed: how much memory is free on {uuid} is not known ({why})");
            Failure::error(what).fix("a resume without room would be final")
        })
    };
    let before = wanted.keys().map(look).collect::<Result<Vec<_>>>()?;
    if !wanted.is_empty() {
        std::thread::sleep(BETWEEN);
    }
    books.look_again();
    for ((uuid, &bytes), before) in wanted.iter().zip(before) {
        if let Some(why) = room::lacking(uuid, bytes, &before, &*look(uuid)?) {
            return Err(
                Failure::error(format!("nothing was resumed: {why}")).fix("a resume without room would be final")
            );
        }
    }
    Ok(())
}

impl Report {
    fn hear(&mut self, said: &Said) {
        let Said::Call(call) = said else { return };
        tracing::info!("pid {}: {}, {:.1} s", call.pid, call.step, call.seconds);
        if let Some(row) = self.processes.iter_mut().find(|row| row.pid == call.pid && call.step == Step::Restore) {
            row.seconds = call.seconds;
        }
    }
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for row in &report.processes {
        let text = units::bytes(row.bytes);
        writeln!(out, "resumed pid {} ({}): {text} are back; {:.1} s", row.pid, clean(&row.name), row.seconds)?;
    }
    Ok(())
}
