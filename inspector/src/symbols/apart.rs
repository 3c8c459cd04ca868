//! Reading the program's own files, in a child process that can be lost.
//!
//! The files are whatever the program says they are: debug information that makes its reader panic, run out of its
//! stack or of memory, or never end; links to pipes that nobody writes to. All of that happens to the child. Its
//! parent then goes on without that file, and shows addresses.

use super::words::cut;
use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A child that sleeps so long waits for something that may never come: reading a file is work, or a wait for the
/// disk, which the kernel calls something else.
const ASLEEP: Duration = Duration::from_secs(1);
/// One that works longer than this on an answer does not get to its end.
const AT_WORK: Duration = Duration::from_secs(20);
/// Children that may be lost before symbols are given up.
const MOST_LOST: usize = 3;
/// Memory of the child besides the files that it maps.
const CHILD_BYTES: u64 = 2 << 30;
/// Longest answer, and what it is made of.
const MOST_ANSWER: u64 = 8 << 20;
const MOST_NAME: usize = 16 << 10;
const MOST_INLINED: usize = 100;

/// One function at an address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Symbol {
    pub function: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Into the next one.
    pub inlined: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum SymbolDetail {
    BuildId,
    /// The function's name alone.
    Name,
    /// What was inlined too, with files and lines.
    Full,
}

#[derive(Serialize, Deserialize)]
struct Question {
    what: SymbolDetail,
    path: Vec<u8>,
    address: u64,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Nothing(String),
    BuildId(Option<Vec<u8>>),
    /// Innermost first.
    Symbols(Vec<Symbol>),
}

/// The child, from its first question on.
#[derive(Debug)]
pub(super) struct Apart {
    debug_dirs: Vec<PathBuf>,
    child: RefCell<Option<Child>>,
    /// Files over which a child was lost.
    lost: RefCell<HashSet<PathBuf>>,
    off: Cell<bool>,
}

impl Apart {
    /// `debug_dirs`: directories with separate debug information.
    pub(super) fn new(debug_dirs: Vec<PathBuf>) -> Self {
        Self { debug_dirs, child: RefCell::default(), lost: RefCell::default(), off: Cell::new(false) }
    }

    /// Does not read these files: another reader was lost over them.
    pub(super) fn give_up(&mut self, lost: HashSet<PathBuf>) {
        self.off.set(lost.len() >= MOST_LOST);
        self.lost = RefCell::new(lost);
    }

    /// The files over which a child was lost.
    pub(super) fn into_lost(self) -> HashSet<PathBuf> {
        self.lost.into_inner()
    }

    /// The build id of a file, which may have none; `None` where it is no regular file, or cannot be read.
    pub(super) fn build_id(&self, path: &Path) -> Option<Option<Vec<u8>>> {
        match self.ask(SymbolDetail::BuildId, path, 0)? {
            Answer::BuildId(id) => Some(id),
            _ => None,
        }
    }

    /// The name of the function at an address of a file.
    pub(super) fn name(&self, path: &Path, address: u64) -> Option<String> {
        match self.ask(SymbolDetail::Name, path, address)? {
            Answer::Symbols(symbols) => symbols.into_iter().next().map(|symbol| symbol.function),
            _ => None,
        }
    }

    /// The functions at an address of a file, innermost first.
    pub(super) fn symbols(&self, path: &Path, address: u64) -> Option<Vec<Symbol>> {
        match self.ask(SymbolDetail::Full, path, address)? {
            Answer::Symbols(symbols) => Some(symbols).filter(|symbols| !symbols.is_empty()),
            _ => None,
        }
    }

    fn ask(&self, what: SymbolDetail, path: &Path, address: u64) -> Option<Answer> {
        if self.off.get() || self.lost.borrow().contains(path) {
            return None;
        }
        let mut child = self.child.borrow_mut();
        if child.is_none() {
            *child = Child::start(&self.debug_dirs).map_err(|error| tracing::debug!("no child: {error}")).ok();
        }
        let question = Question { what, path: path.as_os_str().as_bytes().to_owned(), address };
        match child.as_mut()?.answer(&question) {
            Ok(Answer::Nothing(why)) => {
                tracing::debug!("{}: {why}", path.display());
                None
            }
            Ok(answer) => Some(answer),
            Err(error) => {
                *child = None;
                let mut lost = self.lost.borrow_mut();
                lost.insert(path.to_owned());
                self.off.set(lost.len() >= MOST_LOST);
                let more = if self.off.get() { "; no further files are read for symbols" } else { "" };
                tracing::warn!("{}: its symbols cannot be read: {error}{more}", path.display());
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
    fn start(debug_dirs: &[PathBuf]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // SAFETY: the child may run our code only if no lock that the child needs is held by
        // another thread at the fork. The inspector has one thread here. Where others run (in
        // tests), glibc keeps the heap usable, and the child neither prints nor logs.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                // Nothing may unwind into what the parent was about to do.
                let _ = catch_unwind(AssertUnwindSafe(|| serve(theirs, debug_dirs)));
                // SAFETY: _exit takes a number and ends this process at once. It runs none of what
                // the parent registered for its own end.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Self { pid, stream: BufReader::new(ours) }),
        }
    }

    fn answer(&mut self, question: &Question) -> io::Result<Answer> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        send_all(self.stream.get_ref().as_fd(), &line)?;
        let begin = Instant::now();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if self.stream.buffer().is_empty() {
                self.wait(begin)?;
            }
            let room = MOST_ANSWER - line.len() as u64;
            // What is there is taken: one read, which does not wait.
            let available = self.stream.fill_buf()?;
            let upto = available.iter().position(|&byte| byte == b'\n').map_or(available.len(), |at| at + 1);
            if upto == 0 {
                return Err(io::Error::other("reading it ended in a crash"));
            }
            if upto as u64 > room {
                return Err(io::Error::other("it has names beyond all bounds"));
            }
            line.extend_from_slice(&available[..upto]);
            self.stream.consume(upto);
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Until there is something to read.
    fn wait(&self, begin: Instant) -> io::Result<()> {
        let mut asleep = Duration::ZERO;
        loop {
            let step = Duration::from_millis(100);
            if readable(self.stream.get_ref(), step)? {
                return Ok(());
            }
            let stat = std::fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            let sleeps = gpumem_wire::place::stat_fields(&stat).next() == Some("S");
            asleep = if sleeps { asleep + step } else { Duration::ZERO };
            if asleep >= ASLEEP || begin.elapsed() >= AT_WORK {
                return Err(io::Error::other("reading it does not come to an end"));
            }
        }
    }
}

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

fn readable(stream: &UnixStream, most: Duration) -> io::Result<bool> {
    let mut fd = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `fd` is a local, the one pollfd that poll is told of, and `stream` keeps its
    // descriptor open.
    match unsafe { libc::poll(&mut fd, 1, most.as_millis() as libc::c_int) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        ready => Ok(ready > 0),
    }
}

/// Without the SIGPIPE that a write to a child that is gone would bring.
fn send_all(stream: BorrowedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, rustix::net::SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(io::Error::other("reading it ended in a crash")),
        }
    }
    Ok(())
}

/// The child: answers until its parent is gone.
fn serve(stream: UnixStream, debug_dirs: &[PathBuf]) {
    std::panic::set_hook(Box::new(|_| {}));
    // SAFETY: all arguments are numbers, or limits that are alive during the call. Closing 0 to 2
    // takes the parent's terminal and pipes from the child, and nothing in the child uses them.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let limit = |most| libc::rlimit { rlim_cur: most, rlim_max: most };
        libc::setrlimit(libc::RLIMIT_CORE, &limit(0));
        libc::setrlimit(libc::RLIMIT_DATA, &limit(CHILD_BYTES));
        (0..=2).for_each(|fd| {
            libc::close(fd);
        });
    }
    // In their place, so that no file of the program's becomes the standard error.
    let nothing: Vec<_> = (0..3).map(|_| std::fs::File::options().read(true).write(true).open("/dev/null")).collect();
    let mut reader = Reader { debug_dirs, names: None, full: None };
    let mut lines = BufReader::new(&stream);
    let mut line = Vec::new();
    while lines.by_ref().take(MOST_ANSWER).read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        let Ok(question) = serde_json::from_slice::<Question>(&line) else { break };
        let answer = catch_unwind(AssertUnwindSafe(|| reader.answer(&question))).unwrap_or_else(|_| {
            // They may be in the middle of a change.
            (reader.names, reader.full) = (None, None);
            Answer::Nothing("its symbols cannot be read: the reader panicked".into())
        });
        let Ok(mut bytes) = serde_json::to_vec(&answer) else { break };
        bytes.push(b'\n');
        if (&stream).write_all(&bytes).is_err() {
            break;
        }
        line.clear();
    }
    drop(nothing);
}

struct Reader<'a> {
    debug_dirs: &'a [PathBuf],
    /// Names only: answers "whose function is this" without reading debug information.
    names: Option<Symbolizer>,
    full: Option<Symbolizer>,
}

impl Reader<'_> {
    fn answer(&mut self, question: &Question) -> Answer {
        let path = Path::new(OsStr::from_bytes(&question.path));
        // A pipe or a device under that name must not be opened.
        if !std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
            return Answer::Nothing("it is no regular file".into());
        }
        if question.what == SymbolDetail::BuildId {
            return match read_elf_build_id(path) {
                Ok(id) => Answer::BuildId(id.map(|id| id.to_vec())),
                Err(error) => Answer::Nothing(format!("{error:#}")),
            };
        }
        let (symbolizer, debug_syms) = match question.what {
            SymbolDetail::Full => (self.full(), true),
            _ => (self.names(), false),
        };
        let mut elf = Elf::new(path);
        elf.debug_syms = debug_syms;
        match symbolizer.symbolize_single(&Source::Elf(elf), Input::VirtOffset(question.address)) {
            Ok(symbolized) => {
                Answer::Symbols(symbolized.into_sym().map(|symbol| functions(&symbol)).unwrap_or_default())
            }
            Err(error) => Answer::Nothing(format!("{error:#}")),
        }
    }

    fn names(&mut self) -> &Symbolizer {
        self.names.get_or_insert_with(|| {
            Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).enable_demangling(true).build()
        })
    }

    fn full(&mut self) -> &Symbolizer {
        self.full.get_or_insert_with(|| {
            let builder = Symbolizer::builder().enable_code_info(true).enable_inlined_fns(true).enable_demangling(true);
            builder.set_debug_dirs(Some(self.debug_dirs)).build()
        })
    }
}

fn functions(symbol: &Sym<'_>) -> Vec<Symbol> {
    let one = |name: &str, info: Option<&CodeInfo<'_>>, inlined| Symbol {
        function: cut(name, MOST_NAME).to_owned(),
        file: info.map(|info| cut(&info.to_path().to_string_lossy(), MOST_NAME).to_owned()),
        line: info.and_then(|info| info.line),
        inlined,
    };
    let inlined = symbol.inlined.iter().rev().take(MOST_INLINED);
    let mut functions: Vec<_> =
        inlined.map(|function| one(&function.name, function.code_info.as_ref(), true)).collect();
    functions.push(one(&symbol.name, symbol.code_info.as_deref(), false));
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_stays_given_up() {
        let exe = std::env::current_exe().unwrap();
        let mut apart = Apart::new(Vec::new());
        apart.give_up(HashSet::from([exe.clone()]));
        assert!(apart.build_id(&exe).is_none());
        assert!(apart.build_id(Path::new("/proc/self/exe")).is_some());
        assert_eq!(apart.into_lost(), HashSet::from([exe]));
    }

    #[test]
    fn a_lost_child_costs_one_file() {
        let apart = Apart::new(Vec::new());
        let exe = std::env::current_exe().unwrap();
        assert!(apart.build_id(&exe).is_some());
        // SAFETY: `apart` has not waited for its child yet, so no other process can have its
        // number.
        unsafe { libc::kill(apart.child.borrow().as_ref().unwrap().pid, libc::SIGKILL) };
        assert!(apart.build_id(&exe).is_none(), "lost, and not asked about again");
        assert!(apart.build_id(&exe).is_none());
        assert!(apart.build_id(Path::new("/proc/self/exe")).is_some(), "another child answers for other files");
    }
}
