//! Processes being recorded, each into a file of its own.

use super::{Args, place::RecordingFile};
use crate::args::Target;
use crate::commands::report::gather;
use crate::context::Context;
use crate::failure::Result;
use crate::model::recording::Recorder;
use crate::model::recording::line::{End, Line, StartedBy};
use crate::model::{Ledger, totals};
use crate::source::liveness::Life;
use crate::source::recording;
use crate::source::world::clock;
use crate::text::{self, units};
use rustix::time::ClockId;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of summaries: the process, its growth, and the remedies.
const SUMMARY: Duration = Duration::from_secs(60);
/// Looks use at most one part in this many of one core, but there is at least one look within this time.
const SHARE: u32 = 20;
const LONGEST: Duration = Duration::from_secs(10);

/// All processes being recorded.
pub(super) struct Sessions<'a> {
    args: &'a Args,
    context: &'a Context,
    begun: Instant,
    sessions: Vec<Session>,
    /// Processor time of a look.
    cost: Duration,
    progress: bool,
}

struct Session {
    recorder: Recorder,
    place: RecordingFile,
    ledger: Ledger,
    /// Path from which its ledger is read.
    path: PathBuf,
    summed_up: Instant,
    ticks: u64,
    ended: bool,
}

impl<'a> Sessions<'a> {
    pub(super) fn new(args: &'a Args, context: &'a Context) -> Self {
        let progress = std::io::stderr().is_terminal();
        Self { args, context, begun: Instant::now(), sessions: Vec::new(), cost: Duration::ZERO, progress }
    }

    /// Begins to record a process. `started_by`: if it was started to be recorded.
    ///
    /// # Errors
    /// Those of making the file and writing to it.
    pub(super) fn add(&mut self, ledger: Ledger, started_by: Option<StartedBy>) -> Result<()> {
        let name = self.name(ledger.pid());
        let place = RecordingFile::new(&name, self.args.max_size)?;
        let interval = u64::try_from(self.args.interval.as_nanos()).unwrap_or(u64::MAX);
        let mut recorder = Recorder::new(&ledger, interval, self.args.events_from);
        let nothing = started_by.map(|started_by| recorder.begin_with_nothing(&ledger, started_by));
        let path = ledger.path.clone();
        let who = format!("{} (pid {})", text::clean(&ledger.name()), ledger.pid());
        let name = text::path(place.path());
        let mut session = Session { recorder, place, ledger, path, summed_up: Instant::now(), ticks: 0, ended: false };
        session.place.write(&[session.recorder.begin()])?;
        session.place.write(nothing.as_slice())?;
        session.tick(self.context, true)?;
        super::say(format_args!("gpumem: recording {who} to {name}\n"));
        self.sessions.push(session);
        Ok(())
    }

    /// Returns the file of a process. That of the first has the user's name, and names those of the others.
    fn name(&self, pid: u32) -> PathBuf {
        match self.sessions.first() {
            Some(first) => recording::of_process(first.place.path(), pid),
            None => self.args.output.clone().unwrap_or_else(|| format!("gpumem-{pid}.rec.gz").into()),
        }
    }

    /// True if a ledger is or was being recorded. The ledger of an ended process is found at another path than before,
    /// but keeps its name.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.sessions.iter().any(|session| session.path.file_name() == path.file_name())
    }

    pub(super) fn has_none(&self) -> bool {
        self.sessions.is_empty()
    }

    /// True if there is time and something left to record.
    pub(super) fn go_on(&self) -> bool {
        self.in_time() && self.sessions.iter().any(|session| !session.ended)
    }

    pub(super) fn in_time(&self) -> bool {
        self.args.time.is_none_or(|time| self.begun.elapsed() < time)
    }

    /// Waits for the next look, so that looks stay a small share of a core.
    pub(super) fn wait(&self) {
        let until = Instant::now() + self.args.interval.max(self.cost * SHARE).min(self.args.interval.max(LONGEST));
        // In small steps, because a signal may reach any thread and must end the wait.
        while Instant::now() < until && !super::stopped() && self.in_time() {
            std::thread::sleep(Duration::from_millis(50).min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Looks at each process once.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn look(&mut self) -> Result<()> {
        let begin = clock(ClockId::ProcessCPUTime);
        for session in self.sessions.iter_mut().filter(|session| !session.ended) {
            session.look(self.context)?;
        }
        // A costly look, as when names of new code are looked up, predicts little of the next one.
        let took = clock(ClockId::ProcessCPUTime).saturating_sub(begin);
        self.cost = if self.cost.is_zero() { took } else { took.min(self.cost * 2).max(self.cost / 2) };
        self.say();
        Ok(())
    }

    /// Looks once more, and ends every file.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn end(&mut self, why: &str) -> Result<()> {
        if self.progress {
            super::say(format_args!("\r\x1b[K"));
        }
        for session in &mut self.sessions {
            if !session.ended {
                session.look(self.context)?;
            }
            if !session.ended {
                session.end(self.context, why)?;
            }
        }
        let Some(first) = self.sessions.first() else { return Ok(()) };
        let (name, page) = (text::path(first.place.path()), text::os_word(first.place.path().as_os_str()));
        let (bytes, samples) = (units::bytes(self.bytes()), self.sessions.iter().map(|session| session.ticks).sum());
        let samples = text::count(samples, "sample");
        let others =
            text::if_any(self.sessions.len() - 1, |n| format!(" and {} beside it", text::count(n as u64, "file")));
        super::say(format_args!("gpumem: wrote {name}{others} ({bytes}, {samples}); now type: gpumem report {page}\n"));
        Ok(())
    }

    /// Returns the number of bytes written.
    fn bytes(&self) -> u64 {
        self.sessions.iter().map(|session| session.place.bytes()).sum()
    }

    /// Rewrites a status line on a terminal.
    fn say(&self) {
        if !self.progress {
            return;
        }
        let live = |session: &Session| totals::live(&session.ledger.snapshot, &session.ledger.status).bytes();
        let sum = self.sessions.iter().filter(|session| !session.ended).map(live).fold(0, u64::saturating_add);
        let over = units::span(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let (sum, bytes) = (units::bytes(sum), units::bytes(self.bytes()));
        let ends = if self.args.command.is_empty() { "; Ctrl-C ends it" } else { "" };
        super::say(format_args!("\r\x1b[Krecording for {over}: {sum} live, {bytes} written{ends}"));
    }
}

impl Session {
    fn look(&mut self, context: &Context) -> Result<()> {
        match self.read(context) {
            Some(mut ledger) => {
                ledger.take_symbols_of(&mut self.ledger);
                self.ledger = ledger;
            }
            // A container that ends takes its ledgers with it.
            None => return self.end(context, "its ledger is gone, and the process with it"),
        }
        if self.place.is_full() {
            self.place.next_part()?;
            self.recorder.next_file();
            self.place.write(&[self.recorder.begin()])?;
            self.tick(context, true)?;
        } else {
            self.tick(context, self.summed_up.elapsed() >= SUMMARY)?;
        }
        match self.ledger.status.running() {
            true => Ok(()),
            false => {
                let how = match self.ledger.status.life {
                    Life::Exited => "the process exited",
                    Life::Replaced => "the process runs another program now",
                    _ => "the process was killed, crashed or ended by _exit",
                };
                self.end(context, how)
            }
        }
    }

    /// Reads the current ledger: through /proc while the process runs, afterwards at its path.
    fn read(&self, context: &Context) -> Option<Ledger> {
        let read = |target: OsString| context.ledger(&Target { target: Some(target), ..Target::default() }).ok();
        let same = |ledger: &Ledger| ledger.snapshot.header.start_ticks == self.ledger.snapshot.header.start_ticks;
        read(self.path.clone().into()).or_else(|| read(self.ledger.pid().to_string().into()).filter(same))
    }

    /// Writes the changes, and a summary if requested.
    fn tick(&mut self, context: &Context, sum_up: bool) -> Result<()> {
        let mut lines = self.recorder.tick(&self.ledger);
        self.ticks += 1;
        if sum_up {
            self.summed_up = Instant::now();
            lines.push(Line::Summary(Box::new(gather::summary(context, &self.ledger))));
        }
        self.place.write(&lines)
    }

    fn end(&mut self, context: &Context, why: &str) -> Result<()> {
        self.ended = true;
        let summary = Line::Summary(Box::new(gather::summary(context, &self.ledger)));
        self.place.write(&[summary, Line::End(End { why: why.into() })])?;
        self.place.end()
    }
}
