//! Reads the program's own files in a child process, so that a crash loses only the child.
//!
//! The program decides what the files are: their debug information may make its reader panic, exhaust its stack or
//! memory, or never end. All of that happens to the [child](super::reader). Its parent then goes on without that file
//! and shows addresses.

use super::answers::Answers;
use super::question::{Answer, CodeFile, Content, MOST_ANSWER, Question, Symbol, SymbolDetail};
use super::reader;
use crate::source::ask::send;
use crate::text;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A child that sleeps this long waits for something that may never come: reading a file is work, or a disk wait, which
/// the kernel reports as another state.
const ASLEEP: Duration = Duration::from_secs(1);
/// Children that may be lost before symbols are given up.
const MOST_LOST: usize = 3;

/// Time limits of symbol lookups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Processor time for one answer.
    work: Duration,
    /// Time from a question to its answer.
    answer: Duration,
    /// Time for all answers together.
    all: Duration,
}

impl Patience {
    /// Limits if a person waits for the command.
    pub(super) const OF_A_PERSON: Self =
        Self { work: Duration::from_secs(20), answer: Duration::from_secs(20), all: Duration::from_secs(20) };
    /// Returns the same limits, with `all` left after earlier lookups.
    pub(super) fn of_a_person(all: Duration) -> Self {
        Self { all, ..Self::OF_A_PERSON }
    }

    /// Limits if a background thread looks names up again and again, and nothing waits for it.
    pub(super) const IN_BACKGROUND: Self =
        Self { work: Duration::from_secs(2), answer: Duration::from_secs(10), all: Duration::MAX };
}

impl Default for Patience {
    fn default() -> Self {
        Self::OF_A_PERSON
    }
}

/// Files that made a child crash or hang, with the detail that was asked.
pub(super) type Lost = HashMap<CodeFile, SymbolDetail>;

/// The child process, which starts at the first question.
#[derive(Debug, Default)]
pub(super) struct Apart {
    child: RefCell<Option<Child>>,
    lost: RefCell<Lost>,
    off: Cell<bool>,
    patience: Patience,
    waited: Cell<Duration>,
    /// The files whose build id is known.
    contents: RefCell<HashMap<CodeFile, Content>>,
    answers: Rc<Answers>,
}

impl Apart {
    /// Takes answers from these, and adds to them.
    pub(super) fn share(&mut self, answers: Rc<Answers>) {
        self.answers = answers;
    }

    pub(super) fn wait(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Skips these files: another reader was lost over them.
    pub(super) fn give_up(&mut self, lost: Lost) {
        self.off.set(lost.len() >= MOST_LOST);
        self.lost = RefCell::new(lost);
    }

    /// Returns the files over which a child was lost.
    pub(super) fn into_lost(self) -> Lost {
        self.lost.into_inner()
    }

    /// Returns the build id of a file, if it has one; `None` if the file is not regular or cannot be read.
    pub(super) fn build_id(&self, file: &CodeFile) -> Option<Option<Vec<u8>>> {
        match self.ask(SymbolDetail::BuildId, file, 0)? {
            Answer::BuildId(id, content) => {
                self.contents.borrow_mut().insert(file.clone(), content);
                Some(id)
            }
            _ => None,
        }
    }

    /// Returns the name of the function at an address of a file.
    pub(super) fn name(&self, file: &CodeFile, address: u64) -> Option<String> {
        self.known_or_asked(SymbolDetail::Name, file, address)?.into_iter().next().map(|symbol| symbol.function)
    }

    /// Returns the functions at an address of a file, innermost first. Only the name if debug information takes too
    /// much.
    pub(super) fn symbols(&self, file: &CodeFile, address: u64) -> Option<Vec<Symbol>> {
        let full = self.known_or_asked(SymbolDetail::Full, file, address);
        let symbols = full.or_else(|| self.known_or_asked(SymbolDetail::Name, file, address))?;
        Some(symbols).filter(|symbols| !symbols.is_empty())
    }

    fn known_or_asked(&self, what: SymbolDetail, file: &CodeFile, address: u64) -> Option<Vec<Symbol>> {
        let content = self.contents.borrow().get(file).copied();
        if let Some(known) = content.and_then(|content| self.answers.get(content, what, address)) {
            return Some(known);
        }
        let Answer::Symbols(symbols) = self.ask(what, file, address)? else { return None };
        if let Some(content) = content {
            self.answers.keep(content, what, address, &symbols);
        }
        Some(symbols)
    }

    fn ask(&self, what: SymbolDetail, file: &CodeFile, address: u64) -> Option<Answer> {
        let is_lost = |lost: &SymbolDetail| *lost != SymbolDetail::Full || what == SymbolDetail::Full;
        if self.off.get() || self.lost.borrow().get(file).is_some_and(is_lost) {
            return None;
        }
        let left = self.patience.all.saturating_sub(self.waited.get());
        if left.is_zero() {
            self.off.set(true);
            tracing::warn!("looking names up takes too long: those that are missing are shown as addresses");
            return None;
        }
        let mut child: RefMut<'_, Option<Child>> = self.child.borrow_mut();
        if child.is_none() {
            *child = Child::start().map_err(|error| tracing::debug!("no child: {error}")).ok();
        }
        let question = Question { what, file: file.clone(), address };
        let begin = Instant::now();
        let answer = self.patience.answer.min(left);
        let running: &mut Child = child.as_mut()?;
        let answer = running.answer(&question, Patience { answer, ..self.patience });
        self.waited.set(self.waited.get().saturating_add(begin.elapsed()));
        let path = Path::new(&file.path).display();
        match answer {
            Ok(Answer::Nothing(why)) => {
                tracing::debug!("{path}: {why}");
                None
            }
            Ok(answer) => Some(answer),
            Err(error) => {
                *child = None;
                let mut lost = self.lost.borrow_mut();
                lost.insert(file.clone(), what);
                self.off.set(lost.len() >= MOST_LOST || self.waited.get() >= self.patience.all);
                let what = if what == SymbolDetail::Full { "debug information" } else { "symbols" };
                let more = if self.off.get() { "; no further files are read for symbols" } else { "" };
                tracing::warn!("{}: its {what} cannot be read: {error}{more}", text::clean(&path.to_string()));
                None
            }
        }
    }
}

#[derive(Debug)]
struct Child {
    pid: libc::pid_t,
    stream: BufReader<UnixStream>,
}

impl Child {
    fn start() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(STEP))?;
        // SAFETY: the child may run our code only if no lock that the child needs is held by another thread at the
        // fork. The inspector has one thread here. If others run (in tests), glibc keeps the heap usable, and the child
        // neither prints nor logs.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                // No panic may unwind into the parent's code.
                let _ = catch_unwind(AssertUnwindSafe(|| reader::serve(theirs)));
                // SAFETY: _exit takes a number and ends this process at once. It runs none of what
                // the parent registered for its own end.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Self { pid, stream: BufReader::new(ours) }),
        }
    }

    fn answer(&mut self, question: &Question, patience: Patience) -> io::Result<Answer> {
        let (begin, crashed) = (Instant::now(), || io::Error::other("reading it ended in a crash"));
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        send(self.stream.get_ref(), &line, begin + patience.answer).map_err(|_| crashed())?;
        let mut watch = Watch { begin, patience, asleep: Duration::ZERO, worked_before: None };
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let room = MOST_ANSWER - line.len() as u64;
            // Takes the bytes that are available: one read, which waits for a step.
            let available = match self.stream.fill_buf() {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    watch.look(self.pid)?;
                    continue;
                }
                available => available?,
            };
            let upto = available.iter().position(|&byte| byte == b'\n').map_or(available.len(), |at| at + 1);
            if upto == 0 {
                return Err(crashed());
            }
            if upto as u64 > room {
                return Err(io::Error::other("it has names beyond all bounds"));
            }
            line.extend_from_slice(&available[..upto]);
            self.stream.consume(upto);
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

/// Time between two looks at a child that has not answered.
const STEP: Duration = Duration::from_millis(100);

/// Progress of a child that has not answered yet.
struct Watch {
    begin: Instant,
    patience: Patience,
    asleep: Duration,
    worked_before: Option<Duration>,
}

impl Watch {
    /// Fails if the child takes too long.
    fn look(&mut self, pid: libc::pid_t) -> io::Result<()> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat: Vec<_> = gpumem_wire::place::stat_fields(&stat).collect();
        let sleeps = stat.first() == Some(&"S");
        self.asleep = if sleeps { self.asleep + STEP } else { Duration::ZERO };
        // Time in user and kernel mode.
        let ticks: u64 = stat.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        let worked = Duration::from_millis(ticks * TICK_MS);
        let work = worked.saturating_sub(*self.worked_before.get_or_insert(worked));
        let Patience { work: most, answer, .. } = self.patience;
        if self.asleep >= ASLEEP {
            return Err(io::Error::other("reading it does not come to an end"));
        }
        if work + STEP >= most || self.begin.elapsed() >= answer {
            let seconds = most.min(answer).as_secs_f64().round();
            return Err(io::Error::other(format!("it takes longer than {seconds} s")));
        }
        Ok(())
    }
}

/// The kernel counts a process's time in hundredths of a second.
const TICK_MS: u64 = 10;

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: `pid` is our child and only this drop waits for it, so no other process can have
        // its number. waitpid accepts a null status.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exe() -> CodeFile {
        CodeFile { root: "/".into(), path: std::env::current_exe().unwrap().into(), kept: None }
    }

    /// Returns the same file, by another path.
    fn again() -> CodeFile {
        CodeFile { kept: Some("/proc/self/exe".into()), ..exe() }
    }

    #[test]
    fn what_was_lost_stays_given_up() {
        let exe = exe();
        let mut apart = Apart::default();
        apart.give_up(HashMap::from([(exe.clone(), SymbolDetail::BuildId)]));
        assert!(apart.build_id(&exe).is_none());
        assert!(apart.build_id(&again()).is_some());
        assert_eq!(apart.into_lost(), HashMap::from([(exe, SymbolDetail::BuildId)]));
    }

    #[test]
    fn files_of_another_process_are_read_once() {
        use object::Object;
        let exe = exe();
        let bytes = std::fs::read(&exe.path).unwrap();
        let entry = object::File::parse(&*bytes).unwrap().entry() + 1;
        let (mut one, mut other) = (Apart::default(), Apart::default());
        let answers = Rc::default();
        [&mut one, &mut other].into_iter().for_each(|apart| apart.share(Rc::clone(&answers)));
        assert!(one.build_id(&exe).is_some());
        let name = one.name(&exe, entry);
        assert!(name.is_some());
        assert!(other.build_id(&again()).is_some());
        other.off.set(true);
        assert_eq!(other.name(&again(), entry), name);
        assert!(other.known_or_asked(SymbolDetail::Full, &again(), entry).is_none(), "it was not asked for");
    }

    #[test]
    fn a_lost_child_costs_one_file() {
        let apart = Apart::default();
        let exe = exe();
        assert!(apart.build_id(&exe).is_some());
        // SAFETY: `apart` has not waited for its child yet, so no other process can have its
        // number.
        unsafe { libc::kill(apart.child.borrow().as_ref().unwrap().pid, libc::SIGKILL) };
        assert!(apart.build_id(&exe).is_none(), "lost, and not asked about again");
        assert!(apart.build_id(&exe).is_none());
        assert!(apart.build_id(&again()).is_some(), "another child answers for other files");
    }
}
