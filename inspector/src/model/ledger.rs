//! One snapshot with its symbols, clock and process.
//!
//! * [`frames`]: selects the frames of a stack that are shown, and its call site.

pub(crate) mod frames;

use crate::source::ask::Whom;
use crate::source::called;
use crate::source::choose::Opened;
use crate::source::liveness::{Life, Status};
use crate::source::process::Process;
use crate::source::world::World;
use crate::symbols::modules::Place;
use crate::symbols::{Frame, Room, Symbols};
use crate::text::shorten;
use frames::StackMode;
use gpumem_wire::kinds::{EventKind, Interception, Mode};
use gpumem_wire::layout::{AllocSlot, ContextRef, EventSlot, StackRef, StrRef};
use gpumem_wire::read::Snapshot;
use gpumem_wire::settings::{self, Settings};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// A longer label loses its middle; the names of some templates are longer.
const LABEL_COLUMNS: usize = 2000;

/// A ledger or a dump that was read.
pub(crate) struct Ledger {
    pub snapshot: Snapshot,
    pub path: PathBuf,
    /// The process, if it runs.
    pub process: Option<Process>,
    pub status: Status,
    pub symbols: Symbols,
    /// Selects the frames that are shown.
    pub stack: StackMode,
    sites: RefCell<FxHashMap<StackRef, Option<u64>>>,
    /// Frames in words, by return address.
    texts: RefCell<FxHashMap<u64, Rc<[Rc<str>]>>>,
    room: Room,
    threads: HashMap<u32, Rc<str>>,
    settings: OnceCell<Settings>,
}

impl Ledger {
    /// Returns the ledger of an opened file.
    pub(crate) fn of(world: &World, opened: Opened) -> Self {
        let Opened { snapshot, path, process } = opened;
        let status = Status::of(world, &snapshot, process.as_ref());
        let process = process.filter(|_| status.life != Life::Replaced);
        let place = match process.as_ref().filter(|_| status.is_here()) {
            Some(process) => Place::of(world, process),
            None => Place::here(),
        };
        let threads = snapshot.threads.iter().map(|slot| (slot.tid, snapshot.name(slot.name).into())).collect();
        let symbols = Symbols::new(&snapshot, place);
        Self {
            snapshot,
            path,
            process,
            status,
            symbols,
            stack: StackMode::default(),
            sites: RefCell::default(),
            texts: RefCell::default(),
            room: Room::default(),
            threads,
            settings: OnceCell::new(),
        }
    }

    /// Returns the time from `then_ns` to now or to the end of the process, nanoseconds.
    pub(crate) fn age(&self, then_ns: u64) -> u64 {
        self.status.now_ns.saturating_sub(then_ns)
    }

    /// As [`age`](Self::age); `None` for 0, which means never.
    pub(crate) fn age_of(&self, then_ns: u64) -> Option<u64> {
        (then_ns != 0).then(|| self.age(then_ns))
    }

    /// Returns the call site of a stack: one of its frames.
    pub(crate) fn site(&self, stack: StackRef) -> Option<u64> {
        if let Some(&site) = self.sites.borrow().get(&stack) {
            return site;
        }
        let site = frames::site(self, stack);
        self.sites.borrow_mut().insert(stack, site);
        site
    }

    /// Returns the shown frames of a stack, innermost first: return addresses and Python frames.
    pub(crate) fn addresses(&self, stack: StackRef) -> Cow<'_, [u64]> {
        frames::shown(self, stack)
    }

    /// Returns the files that the native frames of a stack belong to. No file is opened.
    pub(crate) fn modules(&self, stack: StackRef) -> impl Iterator<Item = &str> {
        let frames = self.snapshot.stacks.get(&stack).map_or(&[][..], |stack| self.snapshot.frames(stack));
        frames.iter().filter_map(|&address| self.symbols.module(address))
    }

    /// Returns a frame in words, `depth` steps outwards from a stack's call site. An inlined function is a step too.
    pub(crate) fn step(&self, stack: StackRef, depth: usize) -> Option<Rc<str>> {
        frames::step(self, stack, depth, |address| Some(self.texts(address)))
    }

    /// Takes over what was found for an earlier snapshot of the same process. False if other files are mapped now: addresses
    /// may then mean something else.
    pub(crate) fn take_symbols_of(&mut self, before: &mut Self) -> bool {
        let same = self.path == before.path && self.snapshot.header.start_ticks == before.snapshot.header.start_ticks;
        let same = same && self.snapshot.modules == before.snapshot.modules;
        if same {
            self.symbols.take_over(&mut before.symbols);
            std::mem::swap(&mut self.texts, &mut before.texts);
            if !self.symbols.waits_for_names() {
                std::mem::swap(&mut self.sites, &mut before.sites);
            }
        }
        same
    }

    /// Returns the number of [`Ledger::labels`] of a stack from its call site outwards.
    pub(super) fn steps_from_site(&self, stack: StackRef) -> usize {
        let frames = self.addresses(stack);
        let site = self.site(stack).and_then(|site| frames.iter().position(|&frame| frame == site));
        frames[site.unwrap_or(0)..].iter().map(|&address| self.texts(address).len()).sum()
    }

    /// Returns the frames of a stack in words, innermost first. An inlined function is a frame too.
    pub(crate) fn labels(&self, stack: StackRef) -> Vec<Rc<str>> {
        self.addresses(stack).iter().flat_map(|&address| self.texts(address).to_vec()).collect()
    }

    fn texts(&self, address: u64) -> Rc<[Rc<str>]> {
        if let Some(texts) = self.texts.borrow().get(&address) {
            return Rc::clone(texts);
        }
        let texts: Rc<[Rc<str>]> = self
            .symbols
            .frames(address)
            .iter()
            .map(|frame| self.room.word(&shorten(&frame.label(), LABEL_COLUMNS)))
            .collect();
        if !self.symbols.is_put_off(address) {
            self.texts.borrow_mut().insert(address, Rc::clone(&texts));
        }
        texts
    }

    /// True if another thread is still looking up a name of this stack's call site.
    pub(crate) fn awaits_names(&self, stack: StackRef) -> bool {
        self.addresses(stack).iter().any(|&address| self.symbols.is_awaited(address))
    }

    /// Returns the frames of a stack, innermost first.
    pub(crate) fn frames(&self, stack: StackRef) -> Vec<Frame> {
        self.symbols.stack(&self.addresses(stack))
    }

    /// Returns a thread's name, empty if unknown.
    pub(crate) fn thread(&self, tid: u32) -> &str {
        self.threads.get(&tid).map_or("", |name| name)
    }

    /// "0: NVIDIA H200" for the device of a context; empty if unknown.
    pub(crate) fn device(&self, context: ContextRef) -> String {
        match self.snapshot.contexts.get(&context) {
            Some(slot) => format!("{}: {}", slot.device, self.snapshot.name(slot.name)).trim_end_matches(": ").into(),
            None => String::new(),
        }
    }

    /// Returns the flags of an allocation, in words.
    pub(crate) fn flags(alloc: &AllocSlot) -> Vec<&'static str> {
        use gpumem_wire::layout::{ALLOC_EXPORTED, ALLOC_IN_CAPTURE, ALLOC_POOLED, ALLOC_SPILLED};
        let names = [
            (ALLOC_EXPORTED, "exported"),
            (ALLOC_IN_CAPTURE, "in-capture"),
            (ALLOC_SPILLED, "spilled"),
            (ALLOC_POOLED, "pooled"),
        ];
        names.iter().filter(|(bit, _)| alloc.flags & bit != 0).map(|&(_, name)| name).collect()
    }

    /// Returns the settings in force, else the defaults.
    pub(crate) fn settings(&self) -> &Settings {
        let given = || self.environment().into_iter().map(|(name, value)| (name.into(), value.into()));
        self.settings.get_or_init(|| Settings::read(given()).0)
    }

    /// Returns the variables in force: those that the process was started with, and the changes by `gpumem set`.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let mut given = self.started_with();
        for (name, value) in self.changes() {
            given.retain(|(known, _)| *known != name);
            given.push((name, value));
        }
        given
    }

    /// Returns the variables that the process was started with.
    pub(crate) fn started_with(&self) -> Vec<(String, String)> {
        self.pairs(self.snapshot.header.settings)
    }

    /// True if the process was started with another project's allocator turned off. Then each of that project's tensors
    /// is an allocation.
    pub(crate) fn is_uncached(&self, project: &str) -> bool {
        let of = |(name, value): &(String, String)| settings::uncached(name.as_ref(), value.as_ref());
        self.started_with().iter().filter_map(of).any(|of| of == project)
    }

    /// Returns the changes by `gpumem set` since then.
    pub(super) fn changes(&self) -> Vec<(String, String)> {
        self.pairs(self.snapshot.header.changes)
    }

    fn pairs(&self, at: StrRef) -> Vec<(String, String)> {
        let text = self.snapshot.text(at);
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    /// Returns the process's name.
    pub(crate) fn name(&self) -> String {
        called::name_of(&self.snapshot, self.process.as_ref())
    }

    /// Returns the name of its program, also if it runs Python.
    pub(crate) fn program(&self) -> String {
        called::program_of(&self.snapshot, self.process.as_ref())
    }

    /// Returns the process to send requests to, if it runs.
    pub(crate) fn whom(&self) -> Whom<'_> {
        let (process, status) = (self.process.as_ref(), &self.status);
        Whom { pid: self.pid(), name: self.name(), process, status, ledger: &self.path }
    }

    /// Returns the pid as seen from here; for a dead process, as it saw itself.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(self.snapshot.header.pid, |process| process.pid)
    }

    /// Returns the word that names the process on a command line: the pid, or the path if it does not run.
    pub(crate) fn whose(&self) -> String {
        if self.status.running() { self.pid().to_string() } else { crate::text::os_word(self.path.as_os_str()) }
    }

    /// Returns a message if the file is cut short.
    pub(crate) fn cut_short(&self) -> Option<String> {
        let whole = self.snapshot.cut?;
        let there = std::fs::metadata(&self.path).map_or(0, |meta| meta.len());
        let path = self.path.display();
        Some(format!("{path} is cut short: {there} of {whole} bytes are there, the rest is missing"))
    }

    /// Returns the reason why this process is only recorded, if it is.
    pub(super) fn record_only(&self) -> Option<String> {
        let header = &self.snapshot.header;
        let is_so = header.mode == Mode::RecordOnly as u32;
        is_so.then(|| format!("record-only: {}", self.snapshot.text(header.mode_reason)))
    }

    /// Returns the reason why some calls are not recorded, if they are not.
    pub(super) fn partial(&self) -> Option<String> {
        let header = &self.snapshot.header;
        let reason = || format!("interception is partial: {}", self.snapshot.text(header.interception_reason));
        let is_so = header.interception == Interception::Partial as u32;
        is_so.then(|| reason().trim_end_matches([':', ' ']).to_owned())
    }

    /// Returns the last event of a kind that `fits`.
    pub(crate) fn last_event(&self, kind: EventKind, fits: impl Fn(&EventSlot) -> bool) -> Option<&EventSlot> {
        self.snapshot.events.iter().rfind(|event| event.kind == kind as u8 && fits(event))
    }
}
