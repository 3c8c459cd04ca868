//! The child that reads files: it answers questions until its parent is gone.

use super::dwarf::Dwarf;
use super::files::{Opened, Parsed};
use super::question::{Answer, CodeFile, MOST_ANSWER, MOST_NAME, Question, Symbol, SymbolDetail};
use super::words::cut;
use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

/// Memory of the child, besides the files it maps and the memory it inherits from its parent.
const CHILD_BYTES: u64 = 512 << 20;

/// Answers questions until the parent is gone.
pub(super) fn serve(stream: UnixStream) {
    std::panic::set_hook(Box::new(|_| {}));
    let inherited = inherited_bytes();
    // SAFETY: all arguments are numbers, or limits that are alive during the call. Closing 0 to 2
    // takes the parent's terminal and pipes from the child, and nothing in the child uses them.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let limit = |most| libc::rlimit { rlim_cur: most, rlim_max: most };
        libc::setrlimit(libc::RLIMIT_CORE, &limit(0));
        libc::setrlimit(libc::RLIMIT_DATA, &limit(inherited + CHILD_BYTES));
        // Each file takes two descriptors.
        let mut files = limit(0);
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) == 0 {
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit(files.rlim_max));
        }
        (0..=2).for_each(|fd| {
            libc::close(fd);
        });
    }
    // Occupies descriptors 0 to 2, so that no file of the program becomes the standard error.
    let nothing: Vec<_> = (0..3).map(|_| std::fs::File::options().read(true).write(true).open("/dev/null")).collect();
    let mut reader = Reader::default();
    let mut lines = BufReader::new(&stream);
    let mut line = Vec::new();
    while lines.by_ref().take(MOST_ANSWER).read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        let Ok(question) = serde_json::from_slice::<Question>(&line) else { break };
        let answer = catch_unwind(AssertUnwindSafe(|| reader.answer(&question))).unwrap_or_else(|_| {
            // The panic may have interrupted a change.
            reader = Reader::default();
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

/// Returns the bytes of data that this process inherited: the kernel counts them too.
fn inherited_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = statm.split_ascii_whitespace().nth(5).and_then(|pages| pages.parse().ok());
    // If unknown, as much as a large ledger may take.
    pages.map_or(2 << 30, |pages| pages.saturating_mul(rustix::param::page_size() as u64))
}

#[derive(Default)]
struct Reader {
    files: HashMap<CodeFile, FileSymbols>,
    /// Finds the function of an address by the symbol table, without debug information.
    names: Option<Symbolizer>,
}

struct FileSymbols {
    opened: Rc<Opened>,
    dwarf: Option<Option<Dwarf>>,
}

impl Reader {
    fn answer(&mut self, question: &Question) -> Answer {
        if !self.files.contains_key(&question.file) {
            match Opened::of(&question.file) {
                Ok(opened) => {
                    let symbols = FileSymbols { opened: Rc::new(opened), dwarf: None };
                    self.files.insert(question.file.clone(), symbols);
                }
                Err(error) => return Answer::Nothing(error.to_string()),
            }
        }
        match question.what {
            SymbolDetail::BuildId => {
                let opened: &Opened = &self.files[&question.file].opened;
                match read_elf_build_id(&opened.path()) {
                    Ok(id) => Answer::BuildId(id.map(|id| id.to_vec()), opened.content()),
                    Err(error) => Answer::Nothing(format!("{error:#}")),
                }
            }
            SymbolDetail::Name => {
                Answer::Symbols(self.by_table(&question.file, question.address).into_iter().collect())
            }
            SymbolDetail::Full => Answer::Symbols(self.full(&question.file, question.address)),
        }
    }

    fn full(&mut self, file: &CodeFile, address: u64) -> Vec<Symbol> {
        let Some(of) = self.files.get_mut(file) else { return Vec::new() };
        let opened = || Rc::clone(&of.opened);
        let dwarf = of.dwarf.get_or_insert_with(|| Parsed::of(file, opened()).map(|file| Dwarf::of(&file))).as_ref();
        let mut symbols = dwarf.map(|dwarf| dwarf.symbols(address)).unwrap_or_default();
        let tables = dwarf.and_then(Dwarf::with_names).into_iter().chain([of.opened.path()]);
        if symbols.last().is_none_or(|outermost| outermost.function.is_empty()) {
            let names = names(&mut self.names);
            match tables.into_iter().find_map(|path| name(names, &path, address)) {
                Some(named) => {
                    let place = symbols.pop().unwrap_or_default();
                    symbols.push(Symbol { function: named, ..place });
                }
                None => symbols.clear(),
            }
        }
        symbols
    }

    fn by_table(&mut self, file: &CodeFile, address: u64) -> Option<Symbol> {
        let path = self.files.get(file)?.opened.path();
        let function = name(names(&mut self.names), &path, address)?;
        Some(Symbol { function, ..Symbol::default() })
    }
}

fn names(names: &mut Option<Symbolizer>) -> &Symbolizer {
    names.get_or_insert_with(|| {
        Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).enable_demangling(true).build()
    })
}

/// Returns the function at an address, by a file's symbol table.
fn name(names: &Symbolizer, path: &Path, address: u64) -> Option<String> {
    let mut elf = Elf::new(path);
    elf.debug_syms = false;
    let found = names.symbolize_single(&Source::Elf(elf), Input::VirtOffset(address)).ok()?;
    Some(cut(&found.into_sym()?.name, MOST_NAME).to_owned())
}
