//! Stranded growth: call sites that keep asking for a little more while their older blocks stay allocated and unused.
//!
//! | file | what it holds |
//! |---|---|
//! | mod.rs | what hooks call, and what is done about a site (`GPUMEM_STRANDED`) |
//! | series.rs | what creeping growth looks like |
//! | sites.rs | what is known of call sites, and which requests were refused |
//! | phase.rs | whether a thread is in the middle of a computation |
//! | programs.rs | programs that are known to free and retry |
//! | uses.rs | which of its blocks work still uses |
//! | safe.rs | whether a graph still needs what a refusal would have freed |
//! | watch.rs | one allocation, from the question to the answer |
//!
//! No vendor is known here, and no driver is called. A hook that allocates wraps its call in [`watched`], or asks a
//! [`Watch`] where it has more ways to go. These call what follows, inside bookkeeping, and others may call it too:
//!
//! * Before an allocation of at least [`SMALLEST`] bytes goes to the driver: [`Shim::asker`] once, then
//!   [`Shim::stranded_asked`]. A block that the pool already has is no growth. On [`Verdict::Refuse`] the hook answers
//!   out of memory (2) and calls nothing else. On [`Verdict::Spill`] it asks for managed memory.
//! * After it succeeded: [`Shim::stranded_made`]. After the program was told that memory ran out, by the driver or by a
//!   limit: [`Shim::stranded_failed`].
//! * **Before** a free: [`Shim::stranded_freed`]. It is true if the program was pressed for the block, which then has
//!   to go back to the driver and must not be kept.
//! * Where an idle block serves a request while one that failed is [`Stranded::waiting`]: [`Shim::stranded_served`].
//! * At kernel launches: [`submitted`]. Where a thread waits for the device (streams, events, contexts, copies that
//!   wait): [`synced`].
//! * While [`watching`]: [`used`], with the arguments of what gives the device work. A sample is enough.
//! * For `GPUMEM_POOL_MANAGED`: [`Shim::is_pool_growth`]. For `gpumem trim --press`: [`Shim::press_now`].
//! * When a context is gone: [`Shim::stranded_context_ended`].
//!
//! **press** answers out of memory to one request, once, and only where the program gives memory back and asks again.
//! All of this has to hold:
//!
//! * The site strands more than it asks for.
//! * The program retries: `GPUMEM_STRANDED_RETRIES=1`, or see [`programs`], or this very site did before.
//! * Stacks are taken, and the site's blocks are scratch: asked for in the middle of a computation, as this request is.
//! * Nothing captures, and no live graph may refer to a block of the same allocator ([`safe`]).
//! * No earlier refusal waits for an answer. A refusal that frees nothing was the site's last.

mod phase;
pub mod programs;
mod safe;
mod series;
mod sites;
mod uses;
mod watch;

pub use phase::{inside, submitted, synced};
pub use safe::{is_live, is_runtime};
pub use sites::Asker;
pub use uses::{may_matter, used, watching, word};
pub use watch::{Watch, watched};

use crate::call::Call;
use crate::process::clock;
use crate::process::lock::lock;
use crate::registry::sites::Made;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, Severity};
use gpumem_wire::layout::{ContextRef, StackRef};
use gpumem_wire::settings::{Settings, Stranded as Mode};
use gpumem_wire::units;
use series::Older;
use sites::{Key, Report, Request, Sites, Watched};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::*};

/// Allocations below this are not looked at, bytes.
pub const SMALLEST: u64 = 1 << 20;
/// Sites that strand less are not reported, bytes.
const LEAST_REPORTED: u64 = 16 << 20;
/// Pools round what they ask for: ggml's to this many bytes, after adding 5 %.
const ROUNDED: u64 = 256;
/// Places for marks of addresses.
const MARKS: usize = 4096;

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes its way.
    Nothing,
    /// It is answered with out of memory (2); the driver is not asked.
    Refuse,
    /// It is placed in managed memory.
    Spill,
}

/// What the shim knows of stranded growth.
pub struct Stranded {
    mode: AtomicU8,
    /// The user says that the program retries.
    retries: AtomicBool,
    programs: programs::Programs,
    sites: Mutex<Sites>,
    /// Uses of what may come to be stranded.
    pub uses: uses::Uses,
    /// How many blocks are known whose address falls on each place: most frees need no lock.
    marks: Box<[AtomicU32]>,
    /// Requests that failed and wait for their thread's next one.
    refusals: AtomicU32,
    /// The user wants requests of some site refused.
    marked: AtomicBool,
}

impl Stranded {
    pub fn new(settings: &Settings) -> Self {
        Self {
            mode: AtomicU8::new(settings.stranded as u8),
            retries: AtomicBool::new(settings.stranded_retries),
            programs: programs::Programs::new(),
            sites: Mutex::default(),
            uses: uses::Uses::default(),
            // Where every free is looked at, any address may concern us.
            marks: (0..MARKS).map(|_| AtomicU32::new(settings.freed_in_graph.into())).collect(),
            refusals: AtomicU32::new(0),
            marked: AtomicBool::new(false),
        }
    }

    /// Changes `GPUMEM_STRANDED` while the process runs.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Relaxed);
        match mode {
            Mode::Off => self.uses.watch(Watched::All(Vec::new())),
            _ => self.sites().watch_all(),
        }
    }

    /// Changes `GPUMEM_STRANDED_RETRIES` while the process runs.
    pub fn set_retries(&self, retries: bool) {
        self.retries.store(retries, Relaxed);
    }

    fn retries(&self) -> bool {
        self.retries.load(Relaxed)
    }

    /// Whether a request that failed waits for its thread's next one.
    #[inline(always)]
    pub fn waiting(&self) -> bool {
        self.refusals.load(Relaxed) != 0
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Relaxed) == mode as u8
    }

    /// Whether allocations are looked at.
    #[inline]
    pub fn on(&self) -> bool {
        !self.is(Mode::Off)
    }

    fn sites(&self) -> std::sync::MutexGuard<'_, Sites> {
        lock(&self.sites)
    }

    fn mark(&self, addr: u64) -> &AtomicU32 {
        let hash = (addr >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.marks[(hash >> 52) as usize % MARKS]
    }

    /// A block came to be known (1) or is no more (−1). For who has the sites locked.
    fn marks(&self, addr: u64, more: i32) {
        let mark = self.mark(addr);
        mark.store(mark.load(Relaxed).wrapping_add_signed(more), Relaxed);
    }

    /// Whether a free of this address may concern us; no lock.
    #[inline]
    pub fn may_know(&self, addr: u64) -> bool {
        self.mark(addr).load(Relaxed) != 0 || self.waiting()
    }
}

impl Shim {
    /// Who makes a call in a context: its stack is taken.
    #[inline]
    pub fn asker(&'static self, call: &Call, context: ContextRef) -> Asker {
        let site = call.site();
        Asker { stack: self.site(site, Made::Stream), pc: site.pc, context, tid: self.tid() }
    }

    /// A program asks for a block of at least [`SMALLEST`] bytes, which the driver would have to make.
    pub fn stranded_asked(&self, asker: &Asker, bytes: u64) -> Verdict {
        let stranded = &self.stranded;
        // To report is nothing that a request has to wait for, but what is known of uses counts from here on.
        let may_refuse = !stranded.is(Mode::Report) || stranded.marked.load(Relaxed);
        if !stranded.on() || !(may_refuse || stranded.waiting() || stranded.uses.any()) {
            return Verdict::Nothing;
        }
        match self.with_sites(|sites| sites.asked(asker, bytes)) {
            Request::Growth(key, older) if self.may_press(asker, key) => self.press(asker, key, older, bytes),
            Request::Growth(..) if stranded.is(Mode::Spill) => Verdict::Spill,
            Request::Growth(..) => Verdict::Nothing,
            answer => {
                self.settled(answer);
                Verdict::Nothing
            }
        }
    }

    /// A request of at least [`SMALLEST`] bytes was served without the driver. To be told while
    /// [`Stranded::waiting`]: it may be the second try of one that failed.
    #[cold]
    pub fn stranded_served(&'static self, call: &Call, bytes: u64) {
        let asker = self.asker(call, self.current_context(call.vendor));
        let answer = self.with_sites(|sites| sites.settled(&asker, bytes));
        self.settled(answer);
    }

    fn settled(&self, answer: Request) {
        match answer {
            Request::Retry { inside: true } => submitted(),
            Request::InVain(key) => self.in_vain(key),
            _ => {}
        }
    }

    /// The block was made.
    pub fn stranded_made(&self, asker: &Asker, addr: u64, bytes: u64) {
        if !self.stranded.on() {
            return;
        }
        // To be compared with times of uses, if there are any.
        let now_ns = if watching() { clock::precise_ns() } else { clock::now_ns() };
        let inside = phase::inside();
        let report = self.with_sites(|sites| {
            // One that was freed past us, if anything was ever known of the address.
            let was_known = self.stranded.mark(addr).load(Relaxed) != 0 && sites.freed(addr);
            let (is_known, report) = sites.made(asker, addr, bytes, inside, now_ns);
            if was_known != is_known {
                self.stranded.marks(addr, if is_known { 1 } else { -1 });
            }
            report
        });
        if let Some(Report { stack, bytes, blocks }) = report {
            self.event(EventKind::StrandedSite, |event| {
                event.stack = stack;
                event.a = bytes;
                event.b = blocks;
                event.context = asker.context;
            });
        }
    }

    /// The program was told that there is no memory for its request.
    pub fn stranded_failed(&self, asker: &Asker, bytes: u64) {
        if self.stranded.on() {
            self.with_sites(|sites| sites.refused(asker, bytes, false, phase::inside()));
        }
    }

    /// A block is about to be freed. Whether it must go back to the driver and not be kept: this thread
    /// frees because it was pressed.
    #[inline]
    pub fn stranded_freed(&self, addr: u64) -> bool {
        self.stranded.may_know(addr) && self.known_freed(addr)
    }

    #[cold]
    fn known_freed(&self, addr: u64) -> bool {
        if self.settings.freed_in_graph {
            self.above.look_for_block_in_graphs(self, addr);
        }
        let tid = self.tid();
        self.with_sites(|sites| {
            if sites.freed(addr) {
                self.stranded.marks(addr, -1);
            }
            sites.pressed(tid)
        })
    }

    /// A context is gone, with all that was in it.
    pub fn stranded_context_ended(&self, context: ContextRef) {
        self.with_sites(|sites| {
            for addr in sites.end_context(context) {
                self.stranded.marks(addr, -1);
            }
        });
    }

    /// Whether a request is the growth of a pool inside the program, and not a buffer that it works
    /// with: it comes in the middle of a computation, rounded as pools round, from a site that asks at no
    /// other time. What that cannot tell is in docs/decisions.md.
    pub fn is_pool_growth(&self, asker: &Asker, bytes: u64) -> bool {
        if !phase::inside() || !bytes.is_multiple_of(ROUNDED) {
            return false;
        }
        self.stranded.sites().of(asker).is_none_or(sites::Known::is_scratch)
    }

    /// Marks the site that strands most: its next request is refused, if that is safe then.
    ///
    /// # Errors
    /// Why no site can be pressed.
    pub fn press_now(&self) -> Result<String, String> {
        if !self.stranded.on() {
            return Err("GPUMEM_STRANDED is off: no call site was looked at".into());
        }
        let worst =
            self.with_sites(|sites| sites.worst().map(|(key, known)| (key, known.stranded, asker_of(key, known))));
        let Some((key, (bytes, blocks), asker)) = worst else {
            return Err("no call site strands memory".into());
        };
        let noun = if blocks == 1 { "block" } else { "blocks" };
        let what = format!("{} in {blocks} older {noun} of one call site", units::bytes(bytes));
        if asker.stack == 0 {
            return Err(format!(
                "{what} are stranded; without stacks (GPUMEM_STACKS) it is not known which requests may be refused"
            ));
        }
        if !self.retries(&asker, key) {
            return Err(format!(
                "{what} are stranded, but the program is not known to free and retry when an allocation fails: if it does, GPUMEM_STRANDED_RETRIES=1 says so"
            ));
        }
        self.with_sites(|sites| sites.mark(key));
        Ok(format!("{what}: its next request is refused once, so that the program gives them back"))
    }

    /// Works on the sites, and keeps the counters of what they hold in step.
    fn with_sites<R>(&self, f: impl FnOnce(&mut Sites) -> R) -> R {
        let mut sites = self.stranded.sites();
        let before = sites.stranded;
        if self.stranded.uses.any() {
            sites.used(&self.stranded.uses.take());
        }
        let result = f(&mut sites);
        let in_vain = if sites.refusals() == 0 { Vec::new() } else { sites.expired(clock::now_ns()) };
        let now = sites.stranded;
        if let Some(watched) = sites.newly_watched().filter(|_| self.stranded.on()) {
            self.stranded.uses.watch(watched);
        }
        self.stranded.refusals.store(sites.refusals() as u32, Relaxed);
        self.stranded.marked.store(sites.any_marked, Relaxed);
        drop(sites);
        in_vain.into_iter().for_each(|key| self.in_vain(key));
        if now > before {
            self.count(counters::STRANDED_ADDED, now - before);
        } else if before > now {
            self.count(counters::STRANDED_REMOVED, before - now);
        }
        result
    }

    /// Whether a request of this site may be refused now, as far as the site goes.
    fn may_press(&self, asker: &Asker, key: Key) -> bool {
        let wanted = |sites: &Sites| {
            let known = sites.get(key)?;
            let wanted = (known.marked || self.stranded.is(Mode::Press)) && !known.barred && known.is_scratch();
            wanted.then(|| asker_of(key, known))
        };
        let Some(site) = wanted(&self.stranded.sites()) else { return false };
        asker.stack != 0
            && phase::inside()
            && self.registry.streams.capturing() == 0
            && self.may_change()
            && self.retries(&site, key)
            && !self.graph_needs(&site)
    }

    /// Whether the program frees memory and asks again when a request of this site fails.
    fn retries(&self, site: &Asker, key: Key) -> bool {
        let seen = || self.stranded.sites().get(key).is_some_and(|known| known.retries);
        self.stranded.retries()
            || seen()
            || self.caller(site.stack).is_some_and(|pc| self.stranded.programs.retries(pc))
    }

    /// Whether a program is known to free memory and ask again when a request of this call stack fails.
    pub fn stranded_retries(&self, stack: StackRef) -> bool {
        let seen = || self.stranded.sites().retries(stack);
        self.stranded.retries() || seen() || self.caller(stack).is_some_and(|pc| self.stranded.programs.retries(pc))
    }

    /// Whether this thread was refused memory that there is, and has not asked again.
    pub fn stranded_pressed(&self) -> bool {
        self.stranded.waiting() && self.stranded.sites().pressed(self.tid())
    }

    fn press(&self, asker: &Asker, key: Key, older: Older, bytes: u64) -> Verdict {
        // Something may have begun to capture, and another thread may have pressed, since it was asked.
        let refused = self.registry.streams.capturing() == 0
            && self.with_sites(|sites| {
                let may = sites.get(key).is_some_and(|known| !known.barred) && !sites.waits(key);
                if may {
                    sites.refused(asker, bytes, true, true);
                }
                may
            });
        if !refused {
            return Verdict::Nothing;
        }
        self.count(counters::PRESS_REFUSALS, 1);
        self.event(EventKind::Pressed, |event| {
            event.stack = asker.stack;
            event.a = bytes;
            event.b = older.bytes;
            event.context = asker.context;
        });
        Verdict::Refuse
    }

    fn in_vain(&self, key: Key) {
        let stack = self.stranded.sites().get(key).map_or(0, |known| known.stack);
        let line = "a request was refused so that the program gives back what it strands, and it did not: \
                    this call site is not pressed again";
        let text = self.ledger.texts.intern(line.as_bytes());
        self.event(EventKind::Message, |event| {
            event.code = Severity::Warning as i32;
            event.text = text;
            event.stack = stack;
        });
    }
}

fn asker_of(key: Key, known: &sites::Known) -> Asker {
    Asker { stack: known.stack, pc: known.pc, context: key.1, tid: 0 }
}
