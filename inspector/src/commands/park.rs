//! `gpumem park`: moves the device memory of running processes to host memory.

use crate::args::{candidates, span};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::parking::driver::{Driver, Step};
use crate::parking::obstacles::{self, Obstacle};
use crate::parking::plan::{self, Member};
use crate::parking::progress::Progress;
use crate::parking::registry::{self, OnCard, Parked};
use crate::parking::room;
use crate::parking::worker::{self, Action, Order, Said};
use crate::source::nvml::Books;
use crate::source::process::Process;
use crate::source::world::World;
use crate::source::{choose, find};
use crate::text::{clean, count};
use crate::view::table::{DIM, paint};
use gpumem_wire::units;
use serde::Serialize;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

/// How often a park begins, if a descendant begins to use the GPU meanwhile. The workers of torch.compile do.
const TRIES: u32 = 4;

/// Move the device memory of running processes to host memory, so that others can use the GPU
///
/// The next GPU call of each process waits until `gpumem resume` brings the memory back. The processes may run with or
/// without libgpumem.so. Descendants that use a GPU are also parked. Needs driver 570 (on Arm 595), and as much host
/// memory as the processes have device memory. If a process cannot be parked, gpumem refuses and says why. See gpumem
/// help one-card.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The processes: pids or names
    #[arg(value_name = "PID|NAME", required_unless_present = "worker", add = candidates::offer([candidates::running]))]
    targets: Vec<String>,
    /// Say what would be parked, how much that frees, and why something cannot be parked; park nothing
    #[arg(long)]
    dry_run: bool,
    /// Park only the named processes, not their descendants
    #[arg(long)]
    alone: bool,
    /// How long to wait for the work of each process on the GPU to end
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span)]
    lock_time: Duration,
    /// Try it although a process communicates by NCCL
    #[arg(long)]
    i_know: bool,
    /// Carry out an order from the input (used by gpumem itself)
    #[arg(long, hide = true)]
    worker: bool,
}

#[derive(Serialize)]
struct Report {
    dry_run: bool,
    processes: Vec<Row>,
    /// Device bytes of all of them together.
    bytes: u64,
    /// The fall of used memory on each card; `None` if NVML does not tell, or nothing was parked.
    freed_bytes: Option<u64>,
    seconds: f64,
}

#[derive(Serialize)]
struct Row {
    pid: u32,
    name: String,
    bytes: u64,
    cards: Vec<OnCard>,
    /// Host memory that the copy can have; `None` if unknown.
    host_room_bytes: Option<u64>,
    /// True if libgpumem.so is in it.
    preloaded: bool,
    lock_seconds: f64,
    park_seconds: f64,
    /// Answer of libgpumem.so in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    obstacles: Vec<String>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// The driver cannot park, a process cannot be parked, or the driver refused.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let world = &context.world;
        if self.worker {
            return worker::serve(world);
        }
        let driver = Driver::open().map_err(|why| Failure::error(format!("nothing can be parked: {why}")))?;
        let books = Books::default();
        let pids = pids(world, &self.targets)?;
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let members = self.members(world, &driver, &books, &pids)?;
            let found: Vec<Vec<Obstacle>> = members.iter().map(|member| self.against(world, member, &books)).collect();
            let mut report = self.report(world, &members, &found);
            if self.dry_run {
                return context.print(&report, print);
            }
            refuse(&members, &found)?;
            let used = used(&books, &members);
            let begin = Instant::now();
            let families = if self.alone { Vec::new() } else { pids.clone() };
            let order = Order { action: Action::Park, members: notes(&members), lock: self.lock_time, families };
            let processes = members.iter().map(|member| member.process.clone()).collect();
            let progress = Progress::begin(world, processes, report.bytes);
            let end = worker::run(world, &order, &mut |said| report.hear(said))?;
            drop(progress);
            books.look_again();
            if let Said::Newcomer { why } = &end
                && tries > 0
            {
                tracing::info!("{why}: once more, with it");
                continue;
            }
            report.seconds = begin.elapsed().as_secs_f64();
            ended(end, "parked")?;
            report.freed_bytes = used.zip(self::used(&books, &members)).map(|(before, now)| before.saturating_sub(now));
            return context.print(&report, print);
        }
    }

    /// Returns the processes that are to be parked.
    ///
    /// # Errors
    /// A process that the user named does not use a GPU, or belongs to another user.
    fn members(&self, world: &World, driver: &Driver, books: &Books, pids: &[u32]) -> Result<Vec<Member>> {
        let members = plan::members(world, driver, books, pids, self.alone);
        let is_found = |pid: u32| {
            let mut all = members.iter().map(|member| member.process.pid);
            all.any(|member| member == pid || plan::descends(world, member, &[pid]))
        };
        match pids.iter().find(|&&pid| !is_found(pid)) {
            Some(&pid) => Err(of_another_user(world, pid).unwrap_or_else(|| {
                Failure::nothing(format!(
                    "pid {pid} does not use CUDA, says the NVIDIA driver, nor does a descendant of it; so there is nothing to park"
                ))
            })),
            None => Ok(members),
        }
    }

    fn against(&self, world: &World, member: &Member, books: &Books) -> Vec<Obstacle> {
        let mut all = obstacles::of(world, member, books);
        all.retain(|obstacle| !(obstacle.passable && self.i_know));
        all
    }

    fn report(&self, world: &World, members: &[Member], found: &[Vec<Obstacle>]) -> Report {
        let row = |(member, against): (&Member, &Vec<Obstacle>)| Row {
            pid: member.process.pid,
            name: member.name.clone(),
            bytes: member.bytes(),
            cards: member.cards.clone(),
            host_room_bytes: room::on_host(world, &member.process).map(|room| room.bytes),
            preloaded: member.ledger.is_some(),
            lock_seconds: 0.0,
            park_seconds: 0.0,
            said: None,
            obstacles: against.iter().map(|obstacle| obstacle.what.clone()).collect(),
        };
        let processes = members.iter().zip(found).map(row).collect();
        let bytes = members.iter().map(Member::bytes).sum();
        Report { dry_run: self.dry_run, processes, bytes, freed_bytes: None, seconds: 0.0 }
    }
}

impl Report {
    /// Notes what the worker says, and shows it on a terminal.
    fn hear(&mut self, said: &Said) {
        let (pid, text) = match said {
            Said::Call(call) => (call.pid, format!("{}, {:.1} s", call.step, call.seconds)),
            Said::Shim { pid, text } => (*pid, text.clone()),
            _ => return,
        };
        tracing::info!("pid {pid}: {text}");
        let Some(row) = self.processes.iter_mut().find(|row| row.pid == pid) else { return };
        match said {
            Said::Call(call) if call.step == Step::Lock => row.lock_seconds = call.seconds,
            Said::Call(call) if call.step == Step::Checkpoint => row.park_seconds = call.seconds,
            Said::Shim { .. } if row.said.is_none() => row.said = Some(text),
            _ => {}
        }
    }
}

/// Says that a process belongs to another user, if so: the driver tells nothing of it.
pub(super) fn of_another_user(world: &World, pid: u32) -> Option<Failure> {
    let obstacle = obstacles::of_user(world, &Process::of(world, pid)?)?;
    Some(Failure::error(format!("pid {pid}: {}", obstacle.what)))
}

/// Returns the pids that the user means.
pub(super) fn pids(world: &World, targets: &[String]) -> Result<Vec<u32>> {
    let survey = LazyCell::new(|| find::survey(world));
    let mut pids = Vec::new();
    for target in targets {
        match choose::pid(target) {
            Some(pid) if Process::of(world, pid).is_some() => pids.push(pid),
            Some(pid) => return Err(Failure::nothing(format!("there is no process {pid}"))),
            None => {
                let named = survey.found.iter().filter(|found| found.is_live() && found.is_called(target));
                let named: Vec<u32> = named.map(|found| found.pid).collect();
                if named.is_empty() {
                    let what = format!("{target} is not a pid or the name of a running process with libgpumem.so");
                    return Err(Failure::nothing(what).fix("gpumem ps lists them; name others by their pid"));
                }
                pids.extend(named);
            }
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// Fails if anything keeps a process from being parked, with every reason.
fn refuse(members: &[Member], found: &[Vec<Obstacle>]) -> Result<()> {
    let lines = members
        .iter()
        .zip(found)
        .flat_map(|(member, against)| against.iter().map(|obstacle| format!("{}: {}", member.whose(), obstacle.what)));
    match lines.collect::<Vec<_>>() {
        lines if lines.is_empty() => Ok(()),
        lines => Err(Failure::new(Code::Error, format!("nothing was parked: {}", lines.join("\n")))),
    }
}

fn notes(members: &[Member]) -> Vec<Parked> {
    let since = registry::now();
    let job: Vec<u32> = members.iter().map(|member| member.process.pid).collect();
    members.iter().map(|member| member.note(since, job.clone())).collect()
}

/// Returns the used memory of all cards that the members are on; `None` if NVML does not tell.
fn used(books: &Books, members: &[Member]) -> Option<u64> {
    let cards = members.iter().flat_map(|member| &member.cards);
    let uuids: BTreeSet<&str> = cards.map(|card| card.uuid.as_str()).collect();
    let each = uuids.into_iter().map(|uuid| books.card(uuid).ok().map(|card| card.used));
    each.collect::<Option<Vec<_>>>().filter(|each| !each.is_empty()).map(|each| each.into_iter().sum())
}

/// Fails unless the worker carried out its order.
///
/// # Errors
/// Says what stopped the worker, and which processes do not run now.
pub(super) fn ended(end: Said, done: &str) -> Result<()> {
    match end {
        Said::Stopped(stop) => {
            let mut what = format!("nothing was {done}: {} of pid {}: {}", stop.step, stop.pid, stop.why);
            for (pid, why) in &stop.left {
                what.push_str(&format!("\npid {pid} does not run: {why}"));
            }
            Err(Failure::error(what))
        }
        Said::Failed { why } | Said::Newcomer { why } => Err(Failure::error(format!("nothing was {done}: {why}"))),
        _ => Ok(()),
    }
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let verb = if report.dry_run { "would park" } else { "parked" };
    for row in &report.processes {
        let cards: Vec<_> =
            row.cards.iter().map(|card| format!("{} of {}", units::bytes(card.bytes), card.uuid)).collect();
        let on = if cards.is_empty() { "its device memory is not known".into() } else { cards.join(", ") };
        write!(out, "{verb} pid {} ({}): {on}", row.pid, clean(&row.name))?;
        match report.dry_run {
            true => {
                let room = row.host_room_bytes.map_or("unknown".into(), units::bytes);
                writeln!(out, "; the copy takes as much host memory, of which it can have {room}")?;
            }
            false => writeln!(out, "; {:.1} s", row.lock_seconds + row.park_seconds)?,
        }
        if let Some(said) = &row.said {
            writeln!(out, "  {}", paint(DIM, clean(said)))?;
        }
        for against in &row.obstacles {
            writeln!(out, "  it cannot be parked: {}", clean(against))?;
        }
    }
    if report.dry_run {
        return Ok(());
    }
    if let Some(freed) = report.freed_bytes {
        let rate = if report.seconds > 0.0 { report.bytes as f64 / report.seconds / f64::from(1 << 30) } else { 0.0 };
        writeln!(out, "{} given back in {:.1} s ({rate:.1} GiB/s)", units::bytes(freed), report.seconds)?;
    }
    let pids: Vec<_> = report.processes.iter().map(|row| row.pid.to_string()).collect();
    writeln!(out, "to bring {} back: gpumem resume {}", count(pids.len() as u64, "process"), pids.join(" "))
}
