//! The shim of one process: settings, ledger, registry. Made at the first GPU call that succeeds.

mod above;

pub(crate) use above::Above;

use crate::group::Group;
use crate::in_force::InForce;
use crate::ledger::table::{NO_SLOT, Table};
use crate::ledger::{Launches, Ledger};
use crate::newer::Newer;
use crate::process::regs::Regs;
use crate::process::stderr::{is_to_be_quiet, say};
use crate::process::{clock, copies, elf, panics, threads};
use crate::records::registry::Registry;
use crate::records::registry::sites::{Made, Sites};
use crate::records::registry::tag::Tag;
use crate::stranded::state::Stranded;
use crate::trace;
use crate::trust::Trust;
use gpumem_wire::kinds::{AllocKind, EventKind, Interception, Mode, Severity, State};
use gpumem_wire::layout::{ContextRef, EventSlot, Sealed, StackRef, StrRef};
use gpumem_wire::place::SOCKET_SUFFIX;
use gpumem_wire::settings::{self, Complaint, Log, Settings};
use gpumem_wire::trace::Action;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

const NO_MEMORY: &str = "the process gets no more memory: recording ends here; the program runs on";

/// All state of the shim. Fields that a launch of a graph reads come first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Shim {
    pub launches: Launches,
    /// The variables at the start of the process.
    pub settings: Settings,
    /// The present variables.
    pub in_force: InForce,
    pub ledger: Ledger,
    pub registry: Registry,
    pub stranded: Stranded,
    pub trust: Trust,
    /// The processes that share a limit with this one.
    pub group: Option<Group>,
    /// Features of the driver that were met and this release does not know.
    pub newer: Newer,
    pub above: &'static dyn Above,
    default_tag: AtomicU32,
    /// The message for the case that there is no memory left to write one.
    no_memory: StrRef,
    pid: u32,
    unseen: AtomicBool,
}

impl Shim {
    /// Makes the shim. Returns `None`, with one line on stderr, if it cannot keep a ledger.
    ///
    /// `doors`: the doors that calls came through so far. `initialised`: the driver's initialisation came through one.
    /// `above`: the rooms that the records may ask.
    pub(crate) fn start(doors: u32, initialised: bool, above: &'static dyn Above) -> Option<Box<Self>> {
        // A panic of ours is contained and reported in the ledger. The default hook would print it to the program's
        // stderr. This is our copy of std; a Rust program's copy is not touched.
        std::panic::set_hook(Box::new(panics::note));
        let (settings, complaints) = Settings::read(std::env::vars_os());
        let warn = |line: &dyn std::fmt::Display| {
            if settings.log != Log::Quiet {
                say(line);
            }
        };
        for complaint in &complaints {
            warn(complaint);
        }
        let made = Ledger::create(&settings).and_then(|ledger| match Registry::new(&settings, &ledger) {
            Some(registry) => Ok((ledger, registry)),
            None => {
                ledger.discard();
                Err("no memory for the registry".to_owned())
            }
        });
        let (ledger, registry) = match made {
            Ok(made) => made,
            Err(why) => {
                warn(&format_args!("{why}; nothing is recorded, the program runs as without gpumem"));
                return None;
            }
        };
        let (group, not_counted) = Group::join(&settings).unzip();
        let no_memory = ledger.texts.intern(NO_MEMORY.as_bytes());
        let shim = Box::new(Self {
            launches: ledger.launches(),
            no_memory,
            stranded: Stranded::new(&settings),
            in_force: InForce::new(&settings),
            trust: Trust::default(),
            group,
            newer: Newer::default(),
            above,
            settings,
            ledger,
            registry,
            default_tag: AtomicU32::new(0),
            pid: std::process::id(),
            unseen: AtomicBool::new(false),
        });
        shim.set_default_tag(shim.settings.tag.as_deref());
        shim.introduce(doors, &complaints);
        if let Some(group) = &shim.group {
            shim.ledger.header().group().store_relaxed(shim.ledger.texts.intern(group.described().as_bytes()));
        }
        if let Some(line) = not_counted.flatten() {
            shim.complain(&line);
        }
        shim.start_trace();
        if initialised {
            shim.initialised();
        }
        shim.ask_driver();
        if shim.settings.log == Log::Info {
            say(&format_args!("recording to {}", shim.ledger.path.display()));
        }
        Some(shim)
    }

    /// Fills the ledger's header: the process, the settings, and whether all calls are seen.
    fn introduce(&self, doors: u32, complaints: &[Complaint]) {
        let header = self.ledger.header();
        let text = |bytes: &[u8]| self.ledger.texts.intern(bytes);
        header.doors().store_relaxed(doors);
        if let Ok(exe) = std::fs::read_link("/proc/self/exe") {
            header.exe().store_relaxed(text(exe.as_os_str().as_encoded_bytes()));
        }
        if let Ok(mut line) = std::fs::read("/proc/self/cmdline") {
            while line.last() == Some(&0) {
                line.pop();
            }
            line.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
            header.cmdline().store_relaxed(text(&line));
        }
        header.shim_version().store_relaxed(text(env!("CARGO_PKG_VERSION").as_bytes()));
        let set: Vec<String> = std::env::vars_os()
            .filter(|(name, value)| settings::is_read(name) || settings::uncached(name, value).is_some())
            .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
            .collect();
        header.settings().store_relaxed(text(set.join("\n").as_bytes()));
        let copies = copies::line_about_others();
        if let Some(line) = copies.as_ref().filter(|_| self.settings.log != Log::Quiet) {
            say(line);
        }
        let lines: Vec<String> = complaints.iter().map(ToString::to_string).chain(copies).collect();
        header.complaints().store_relaxed(text(lines.join("\n").as_bytes()));
        for line in lines.iter().chain(&self.ledger.passed_over) {
            self.message(Severity::Warning, line);
        }
        for object in elf::Listing::new().objects() {
            let name = object.file_name();
            if [&b"libcuda.so"[..], b"libcudart.so", b"libamdhip64.so"].iter().any(|known| name.starts_with(known)) {
                let path = text(object.path());
                self.event(EventKind::LibraryBound, EventSlot { text: path, ..Default::default() });
            }
        }
        header.mode().store_relaxed(Mode::Active as u32);
        self.trust.decide(&self.settings, &self.ledger);
        // Unless the initialisation came through a door, calls may have been made that no door saw.
        self.set_interception(
            Interception::Partial,
            "the first call that was seen is not the initialisation: earlier calls went past the shim",
        );
    }

    /// Begins the allocation trace, if one is requested.
    fn start_trace(&self) {
        let Some(path) = &self.settings.alloc_trace else { return };
        match trace::start(path) {
            Ok(trace) => self.message(Severity::Info, &format!("allocation trace: {}", trace.path().display())),
            Err(why) => self.complain(&why),
        }
    }

    /// Appends to the allocation trace, if one is in progress.
    pub(crate) fn trace(&self, action: Action, kind: AllocKind, addr: u64, bytes: u64, stream: u64, stack: StackRef) {
        if let Some(end) = trace::note(action, kind, addr, bytes, stream, self.tid(), stack) {
            self.complain(&end);
        }
    }

    /// Notes that the driver's initialisation came through a door, so that no call before it can have been missed.
    pub(crate) fn initialised(&self) {
        self.ask_driver();
        if !self.unseen.load(Relaxed) {
            self.set_interception(Interception::Complete, "");
        }
    }

    /// Asks the CUDA driver for its version, unless known, and decides by it what the shim may do.
    pub(crate) fn ask_driver(&self) {
        self.trust.ask_driver(&self.settings, &self.ledger).iter().for_each(|line| self.complain(line));
    }

    /// Asks the HIP runtime for its version, unless known, and decides by it what the shim may do. The program has
    /// called HIP.
    pub(crate) fn ask_hip(&self) {
        self.trust.ask_hip(&self.settings, &self.ledger);
    }

    /// Reports one line to the user, here and in the ledger.
    pub(crate) fn complain(&self, line: &str) {
        self.message(Severity::Warning, line);
        if !self.in_force.quiet() {
            say(&line);
        }
    }

    /// Reports that the program may not show a block to other processes.
    #[cold]
    pub(crate) fn refused_export(&self) {
        self.complain(
            "GPUMEM_GUARD=front: a block with a zone in front of it cannot be shown to other processes; the call is \
             refused with error 801 (not supported)",
        );
    }

    /// Notes a feature of the driver that this release does not know: a noun, such as "nodes of kind 30".
    #[cold]
    pub(crate) fn met(&self, what: &str) {
        if let Some(all) = self.newer.add(what) {
            self.ledger.header().unknown().store(self.ledger.texts.intern(all.as_bytes()), Relaxed);
            self.message(Severity::Info, &format!("newer than this gpumem: {what}"));
        }
    }

    /// Notes a call that no door saw. From here on interception is partial.
    pub(crate) fn went_past(&self, why: &str) {
        if !self.unseen.swap(true, Relaxed) {
            self.set_interception(Interception::Partial, why);
            self.message(Severity::Warning, why);
        }
    }

    fn set_interception(&self, interception: Interception, why: &str) {
        let header = self.ledger.header();
        header.interception_reason().store_relaxed(self.ledger.texts.intern(why.as_bytes()));
        header.interception().store_relaxed(interception as u32);
    }

    /// Returns this thread's number; lists a new thread.
    #[inline]
    pub(crate) fn tid(&self) -> u32 {
        threads::tid(|tid| self.registry.new_thread(&self.ledger, tid))
    }

    /// Returns the tag for this thread's allocations now.
    #[inline]
    pub(crate) fn tag(&self) -> StrRef {
        Tag::in_force()
            .map_or_else(|| self.default_tag.load(Relaxed), |tag| tag.reference(&self.ledger.texts, self.pid))
    }

    /// Sets the tag for allocations that the program itself does not tag.
    pub(crate) fn set_default_tag(&self, tag: Option<&str>) {
        let text = tag.filter(|tag| !tag.is_empty()).map_or(0, |tag| self.ledger.texts.intern(tag.as_bytes()));
        self.default_tag.store(text, Relaxed);
    }

    /// As [`Shim::tag`], for a caller that has looked up its thread.
    #[inline(always)]
    pub(crate) fn tag_of(&self, local: &threads::Local) -> StrRef {
        if local.has_tag() { self.tag() } else { self.default_tag.load(Relaxed) }
    }

    /// True if an allocation of `bytes` is recorded with its stack.
    #[inline(always)]
    pub(crate) fn takes_stack(&self, bytes: u64) -> bool {
        self.registry.sites.takes_stack(bytes)
    }

    /// Returns a call's stack. 0 if no stack is taken, or there is no room for it.
    #[inline]
    pub(crate) fn site(&self, regs: Regs, made: Made) -> StackRef {
        self.registry.sites.site(&self.ledger, regs, made)
    }

    /// Returns an allocation's stack if it is the same as this thread's last one, and counts the allocation in its
    /// totals. `None`: the stack has to be taken. Calls no function.
    #[inline(always)]
    pub(crate) fn known_site(&self, local: &threads::Local, regs: Regs, bytes: u64) -> Option<StackRef> {
        self.registry.sites.known_site(&self.ledger, local, regs, bytes)
    }

    /// Adds what was made to a stack's totals.
    pub(crate) fn led_to(&self, stack: StackRef, made: Made) {
        Sites::led_to(&self.ledger, stack, made);
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: usize, n: u64) {
        self.ledger.count(threads::shard(), counter, n);
    }

    /// Writes a record into a table; returns [`NO_SLOT`] if there is no room for it.
    #[inline]
    pub(crate) fn place<T: Sealed>(&self, table: &Table<T>, slot: T) -> u32 {
        match table.take() {
            Some(place) => {
                table.write(place, slot);
                place
            }
            None => {
                self.count(gpumem_wire::counters::DROPPED_RECORDS, 1);
                NO_SLOT
            }
        }
    }

    /// Writes an event.
    pub(crate) fn event(&self, kind: EventKind, event: EventSlot) {
        let event = EventSlot { kind: kind as u8, time_ns: clock::now_ns(), tid: self.tid(), ..event };
        self.ledger.events.push(|seq| EventSlot { seq, ..event });
    }

    /// Writes an event with the two numbers that its kind has, a call site and a context.
    pub(crate) fn event_at(&self, kind: EventKind, (a, b): (u64, u64), stack: StackRef, context: ContextRef) {
        self.event(kind, EventSlot { a, b, stack, context, ..Default::default() });
    }

    /// Writes a message event.
    pub(crate) fn message(&self, severity: Severity, text: &str) {
        let text = self.ledger.texts.intern(text.as_bytes());
        self.event(EventKind::Message, EventSlot { code: severity as i32, text, ..Default::default() });
    }

    /// Ends recording for good.
    pub(crate) fn stopped(&self, why: &str) {
        self.ledger.header().state().store_relaxed(State::Stopped as u32);
        self.count(gpumem_wire::counters::PANICS, 1);
        self.message(Severity::Error, why);
        if !self.in_force.quiet() {
            say(&why);
        }
    }

    /// Ends recording for good, for lack of memory. Takes no lock: the allocator calls this.
    pub(crate) fn out_of_memory(&self) {
        self.ledger.header().state().store_relaxed(State::Stopped as u32);
        let (kind, code) = (EventKind::Message as u8, Severity::Error as i32);
        let event = EventSlot { kind, code, text: self.no_memory, time_ns: clock::now_ns(), ..Default::default() };
        self.ledger.events.push(|seq| EventSlot { seq, ..event });
        if !self.in_force.quiet() {
            say(&NO_MEMORY);
        }
    }

    /// Gives up the start, because there is too little memory. Nothing is recorded, and what was taken is freed. No
    /// other thread has seen this shim.
    pub(crate) fn cannot_begin(self: Box<Self>) {
        let Self { ledger, registry, settings, .. } = *self;
        drop(registry);
        ledger.discard();
        if settings.log != Log::Quiet {
            say(&"no memory for the registry; nothing is recorded, the program runs as without gpumem");
        }
    }

    /// Notes that the first context exists. From now on a control thread does not surprise the program.
    pub(crate) fn context_exists(&'static self) {
        if self.settings.control {
            self.above.context_exists(self);
        }
    }

    /// Returns the path of this process's control socket.
    pub(crate) fn socket_path(&self) -> PathBuf {
        // A directory's name need not be UTF-8.
        self.ledger.path.with_extension(SOCKET_SUFFIX.trim_start_matches('.'))
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.ledger.header().state().load(Relaxed) == State::Exited as u32
    }

    /// Notes that the process ends: from here on the driver is not queried.
    pub(crate) fn exiting(&self) {
        self.ledger.header().exited_ns().store(clock::precise_ns(), Relaxed);
        self.ledger.header().state().store_relaxed(State::Exited as u32);
    }

    /// Removes the control socket: the process can no longer be reached.
    pub(crate) fn unreachable(&self) {
        let path = self.socket_path();
        // Removing a file takes its directory's lock; checking that there is none does not.
        if self.settings.control && path.exists() {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Notes that the process has ended its work. Nothing is recorded after this.
    pub(crate) fn exited(&self) {
        // The control thread may have made it only after exit began.
        self.unreachable();
        if self.in_force.summary() {
            say(&self.registry.summary(&self.ledger));
        }
    }
}

/// Reports that there is not even memory to find out what may begin.
pub(crate) fn no_room_to_begin() {
    if !is_to_be_quiet() {
        say(&"no memory for a stack; nothing is recorded, the program runs as without gpumem");
    }
}

/// A store without ordering: readers check what they read.
trait StoreRelaxed {
    fn store_relaxed(&self, value: u32);
}

impl StoreRelaxed for std::sync::atomic::AtomicU32 {
    fn store_relaxed(&self, value: u32) {
        self.store(value, Relaxed);
    }
}
