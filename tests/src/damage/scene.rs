//! Cases of more than one file: many ledgers in a directory, a program whose symbols are read, the mappings of a
//! process. Each is placed before the command runs, and taken away after it.

use super::corpus::{Kind, Seedling};
use super::image::Image;
use super::mutate::{self, number};
use crate::differ::random::Random;
use gpumem_inspector::compose::Composer;
use gpumem_wire::layout::{AllocSlot, MAGIC, ModuleSlot, StackSlot, VERSION};
use gpumem_wire::place::{ProcessId, start_ticks};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// See the module.
pub enum Scene {
    Ledgers(Vec<(OsString, Image)>),
    /// A program, a file of debug information beside it, and a ledger that leads to the program.
    Program {
        program: Image,
        debug: Image,
        ledger: Vec<u8>,
    },
    /// Names of files that this process maps, how often each, and if it is removed then.
    Mappings(Vec<(OsString, usize, bool)>),
}

/// The names below the directory of a case.
pub const LEDGERS: &str = "ledgers";
pub const PROGRAM: &str = "program";
const MAPPED: &str = "mapped";

/// Mappings that keep a scene in place, until this is dropped.
#[derive(Default)]
pub struct Placed {
    mapped: Vec<*mut libc::c_void>,
}

const PAGE: usize = 4096;

impl Drop for Placed {
    fn drop(&mut self) {
        for &at in &self.mapped {
            // SAFETY: mmap gave this page, nothing refers into it, and it is given back once.
            unsafe { libc::munmap(at, PAGE) };
        }
    }
}

/// A name that a ledger may have, or a file that lies among them.
fn name(random: &mut Random) -> OsString {
    let me = std::process::id();
    let start = std::fs::read_to_string(format!("/proc/{me}/stat")).ok().and_then(|stat| start_ticks(&stat));
    let (pid, start_ticks) = match random.below(8) {
        0 => (me, start.unwrap_or(1)),
        1 => (me, random.next() % 1_000_000),
        2 => (1, random.next() % 1_000_000),
        _ => (random.next() as u32 % (1 << 22), random.next() % 1_000_000),
    };
    let ledger = ProcessId { pid, start_ticks }.ledger_name();
    match random.below(12) {
        0 => ledger.replace(".ledger", ".sock").into(),
        1 => format!("{}{ledger}", number(random)).into(),
        2 => OsString::from_vec([b"\xff\x1b[2J", ledger.as_bytes()].concat()),
        _ => ledger.into(),
    }
}

/// Many ledgers: whole ones, damaged ones, empty ones.
pub fn ledgers(corpus: &[Seedling], random: &mut Random) -> Scene {
    let many = 1 << random.below(10);
    let all: Vec<&Seedling> = corpus.iter().filter(|of| matches!(of.kind, Kind::Ledger | Kind::Dump)).collect();
    let one = |random: &mut Random| {
        let seedling = *random.pick(&all);
        let image = match random.below(if many > 64 { 40 } else { 6 }) {
            0 => seedling.image.clone(),
            1 => mutate::mutated(std::slice::from_ref(seedling), random).2,
            2 => Image { len: number(random) % (8 << 30), parts: Vec::new() },
            _ => Image::default(),
        };
        (name(random), image)
    };
    Scene::Ledgers((0..many).map(|_| one(random)).collect())
}

/// Names in links to debug information.
const NAMES: &[&str] =
    &["program.debug", "trap", "../trap", "/dev/null", "/proc/self/mem", "", ".", "..", "a/b", "program", "loop"];

/// A program with a damaged file, or whose debug information is.
pub fn program(corpus: &[Seedling], dir: &Path, random: &mut Random) -> Option<Scene> {
    let all: Vec<&Seedling> = corpus.iter().filter(|of| of.kind == Kind::Program).collect();
    let seedling = *all.get(random.below(all.len()))?;
    let (mut program, mut debug) = (seedling.image.clone(), random.pick(&all).image.clone());
    for image in [&mut program, &mut debug] {
        for _ in 0..random.below(5) {
            match random.below(4) {
                0 => mutate::bytes(image, random),
                1 => mutate::length(image, random),
                _ => section(image, random),
            }
        }
    }
    let mut composer = Composer::new();
    (composer.header.magic, composer.header.version, composer.header.byte_order) = (MAGIC, VERSION, 0x0102_0304);
    let path = composer.text(&dir.join(PROGRAM).display().to_string());
    let bias = 0x5555_0000_0000;
    composer.slots([ModuleSlot { path, bias, start: bias, end: bias + (1 << 32), first_ns: 1, ..Default::default() }]);
    for stack in 0..8_u32 {
        let frames: Vec<u64> = (0..8).map(|_| bias + random.next() % (2 * seedling.image.len).max(1)).collect();
        composer.stack(stack as usize, StackSlot { allocs: 1, ..Default::default() }, &frames);
        composer.slots([AllocSlot { stack: stack + 1, bytes: 1, kind: 1, ..Default::default() }]);
    }
    Some(Scene::Program { program, debug, ledger: composer.finish() })
}

/// Changes a field of a section's head, what is in a section, or the name in a link.
fn section(image: &mut Image, random: &mut Random) {
    let word = |image: &Image, at: u64, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(image.at(at, len).filter(|found| found.len() == len)?);
        Some(u64::from_le_bytes(bytes))
    };
    let (Some(heads), Some(count)) = (word(image, 40, 8), word(image, 60, 2)) else { return };
    let head = heads.saturating_add(random.next() % count.max(1) * 64);
    let (Some(at), Some(len)) = (word(image, head + 24, 8), word(image, head + 32, 8)) else { return };
    match random.below(4) {
        0 => mutate::put(
            image,
            head + *random.pick(&[0, 4, 8, 16, 24, 32, 40, 44, 48, 56]),
            &number(random).to_le_bytes(),
        ),
        1 if len <= 64 => {
            let text = [random.pick(NAMES).as_bytes(), &[0; 4]].concat();
            mutate::put(image, at, &text);
        }
        _ => {
            for _ in 0..1 << random.below(7) {
                let place = at.saturating_add(random.next() % len.max(1));
                let word = number(random).to_le_bytes();
                mutate::put(image, place, &word[..1 << random.below(4)]);
            }
        }
    }
}

/// Mappings of files with names that matter, or that no line can hold as they are.
pub fn mappings(random: &mut Random) -> Scene {
    const FILES: &[&[u8]] = &[
        b"libgpumem.so",
        b"libgpumem.so.1 (deleted)",
        b"libcuda.so.1",
        b"libamdhip64.so",
        b"a\nb",
        b"7f00-7f01 r-xp 0 00:00 1 libgpumem.so",
        b"\xff\xfe\x1b[2J",
        b"libcupti.so 12",
    ];
    let one = |random: &mut Random| {
        let file = match random.below(10) {
            0 => vec![b'x'; 1 + random.below(250)],
            _ => random.pick(FILES).to_vec(),
        };
        (OsString::from_vec(file), 1 << random.below(9), random.chance(20))
    };
    Scene::Mappings((0..1 + random.below(8)).map(|_| one(random)).collect())
}

impl Scene {
    /// Makes it so in a directory, where nothing of an earlier scene is left.
    pub fn place(&self, dir: &Path) -> io::Result<Placed> {
        let folder = |name: &str| {
            let path = dir.join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).map(|()| path)
        };
        let write = |path: PathBuf, image: &Image| image.write(&File::create(path)?);
        let mut placed = Placed::default();
        match self {
            Self::Ledgers(files) => {
                let folder = folder(LEDGERS)?;
                for (name, image) in files {
                    write(folder.join(name), image)?;
                }
            }
            Self::Program { program, debug, ledger } => {
                let folder = folder(LEDGERS)?;
                std::fs::write(folder.join("4194304-5.ledger"), ledger)?;
                write(dir.join(PROGRAM), program)?;
                write(dir.join("program.debug"), debug)?;
                // Opening it would wait for ever.
                let trap = dir.join("trap");
                if !trap.exists() {
                    let name = std::ffi::CString::new(trap.into_os_string().into_vec())?;
                    // SAFETY: `name` is a CString that lives until the call returns.
                    unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
                    let _ = std::os::unix::fs::symlink("loop", dir.join("loop"));
                }
            }
            Self::Mappings(files) => {
                folder(LEDGERS)?;
                let folder = folder(MAPPED)?;
                for (name, times, removed) in files {
                    let path = folder.join(name);
                    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
                    file.set_len(PAGE as u64)?;
                    for time in 0..*times {
                        let rights = if time % 2 == 0 { libc::PROT_NONE } else { libc::PROT_READ };
                        let null = std::ptr::null_mut();
                        // SAFETY: a new mapping of a file, at a place that the kernel chooses.
                        let at = unsafe { libc::mmap(null, PAGE, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
                        if at == libc::MAP_FAILED {
                            return Err(io::Error::last_os_error());
                        }
                        placed.mapped.push(at);
                    }
                    if *removed {
                        std::fs::remove_file(&path)?;
                    }
                }
            }
        }
        Ok(placed)
    }

    /// Returns the words of a command that looks at the scene.
    pub fn words(&self, dir: &Path, random: &mut Random) -> Vec<String> {
        let me = std::process::id().to_string();
        let asked: &[&[&str]] = match self {
            Self::Ledgers(_) => &[
                &["ps"],
                &["ps", "--live"],
                &["ps", "--json"],
                &["clean", "--all", "--dry-run"],
                &["doctor", "--all"],
                &["export", "--to", "prometheus"],
                &["allocs", "--no-symbols"],
                &["allocs", "--no-symbols", &me],
                &["leaks", "--no-symbols", "demo"],
            ],
            Self::Program { .. } => &[
                &["allocs", "--stacks"],
                &["leaks", "--all", "--stacks"],
                &["export", "--to", "folded"],
                &["export", "--to", "prometheus"],
                &["report", "-o", "-"],
                &["dump", "-o", "/dev/null"],
            ],
            Self::Mappings(_) => &[&["ps"], &["doctor", &me], &["doctor", "--all"], &["allocs", &me], &["stats", &me]],
        };
        let words = random.pick(asked).iter().map(|&word| word.to_owned());
        let dir = dir.join(LEDGERS).to_str().expect("a scratch directory is text").to_owned();
        words.chain(["--dir".to_owned(), dir]).collect()
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Ledgers(_) => "many-ledgers",
            Self::Program { .. } => "a-program",
            Self::Mappings(_) => "mappings",
        }
    }
}
