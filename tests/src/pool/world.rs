//! The state of a running program, and which operations are allowed in it.

use super::capture::{Capture, Graph};
use super::driver::{Context, Notes, OF_CONTEXT, Runtime};
use super::ledger::OwnLedger;
use super::program::{CONTEXTS, How, Id, Line, OWN, Op, SECOND, STREAMS, THREADS};
use crate::conformance::cu;
use std::collections::BTreeMap;
use std::ptr::null_mut;

/// Bytes at the head and at the end of a buffer that are written and checked.
pub const PART: u64 = 4096;

/// A buffer that was allocated at some time. It may be freed.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub ptr: u64,
    pub bytes: u64,
    pub how: How,
    /// The context in which it was allocated.
    pub c: usize,
    pub live: bool,
    /// The number of allocations so far when the buffer was freed. Never, if the free was put on a stream.
    pub freed_at: Option<u64>,
    /// The stream of the last work on it, which may be pending.
    pub last: Option<usize>,
    /// The values of the first words and of the last words.
    pub head: Option<u32>,
    pub end: Option<u32>,
    /// Counts the buffers that had this number, to tell them apart.
    pub made: u64,
}

impl Buffer {
    /// Words of the head, and of the end.
    pub fn words(&self) -> u64 {
        self.bytes.min(PART) / 4
    }

    /// Address of the last words; head and end are the same where they would overlap.
    pub fn end(&self) -> Option<u64> {
        (self.bytes >= 2 * PART).then(|| self.ptr + (self.bytes - PART) / 4 * 4)
    }
}

pub struct World {
    pub contexts: Vec<Option<Context>>,
    /// The current context of each thread.
    pub current: [Option<usize>; THREADS],
    /// Threads whose current context another thread destroyed.
    stale: [bool; THREADS],
    pub buffers: BTreeMap<Id, Buffer>,
    pub graphs: BTreeMap<Id, Graph>,
    /// By stream.
    pub captures: BTreeMap<usize, Capture>,
    /// The number of allocations so far. A later allocation may reuse a freed address.
    pub allocs: u64,
    /// A kernel has ruined a context.
    pub ruined: bool,
    /// Buffer numbers that the driver has given.
    pub numbers: Vec<u64>,
    pub trace: Vec<String>,
    pub notes: Option<Notes>,
    pub runtime: Option<Runtime>,
    ledger: OwnLedger,
    /// Free bytes of the first device at the beginning.
    start_free: u64,
}

impl World {
    /// Opens the devices.
    ///
    /// # Errors
    /// Says which call failed, and with which status.
    pub fn open() -> Result<Self, String> {
        crate::conformance::available()?;
        let mut devices = 0;
        cu!(cuDeviceGetCount(&mut devices));
        let second = if devices > 1 { Some(Context::primary(1)?) } else { None };
        let contexts = vec![Some(Context::primary(0)?), Some(Context::own()?), second];
        let mut world = Self {
            contexts,
            current: [Some(0); THREADS],
            stale: [false; THREADS],
            buffers: BTreeMap::new(),
            graphs: BTreeMap::new(),
            captures: BTreeMap::new(),
            allocs: 0,
            ruined: false,
            numbers: Vec::new(),
            trace: Vec::new(),
            notes: Notes::open(),
            runtime: Runtime::open(),
            ledger: OwnLedger::find(),
            start_free: 0,
        };
        world.start_free = world.free_bytes(0).map_or(0, |(free, _)| free);
        Ok(world)
    }

    /// Makes the thread's context current. It must run on that thread.
    pub fn enter(&self, t: usize) -> u32 {
        let handle = self.current[t].and_then(|c| self.contexts[c].as_ref()).map_or(0, |c| c.handle);
        cu!(cuCtxSetCurrent(handle as *mut _))
    }

    pub fn say(&mut self, what: impl Into<String>, status: u32) -> bool {
        self.trace.push(format!("{} = {status}", what.into()));
        status == 0
    }

    pub fn tell(&mut self, what: impl Into<String>) {
        self.trace.push(what.into());
    }

    /// The context of a stream, if there is one.
    pub fn of_stream(&self, s: usize) -> Option<&Context> {
        self.contexts.get(s / STREAMS)?.as_ref()
    }

    pub fn capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// True if a freed address has no new owner, because nothing was allocated since.
    pub fn nobodys(&self, buffer: &Buffer) -> bool {
        !buffer.live && buffer.freed_at == Some(self.allocs)
    }

    /// Does an operation on thread `t`, which must be the calling thread. `None` if the operation was left out.
    pub fn run(&mut self, line: &Line) -> Option<()> {
        let t = line.t;
        if std::mem::take(&mut self.stale[t]) {
            self.enter(t);
        }
        // After a fault only status codes are compared, of the ruined context.
        if self.ruined {
            let told = matches!(
                line.op,
                Op::Alloc { .. }
                    | Op::Free { .. }
                    | Op::WildFree { .. }
                    | Op::Query { .. }
                    | Op::Info
                    | Op::SyncAll
                    | Op::Sync { .. }
            );
            (told && self.current[t] == Some(0)).then_some(())?;
        }
        match &line.op {
            Op::Alloc { .. } | Op::Free { .. } | Op::WildFree { .. } => self.memory(t, &line.op),
            Op::Query { .. } | Op::Number { .. } | Op::Mark { .. } | Op::Export { .. } => self.ask(&line.op),
            Op::Fill { .. } | Op::Set { .. } | Op::Copy { .. } | Op::Check { .. } | Op::Spin { .. } => {
                self.work(&line.op)
            }
            Op::Begin { .. } | Op::End { .. } | Op::Launch { .. } | Op::DropGraph { .. } | Op::Exchange { .. } => {
                self.captured(t, &line.op)
            }
            Op::Sync { s } => {
                let (s, context) = (*s, self.of_stream(*s)?.clone());
                // A synchronization of the legacy stream means that of the current context.
                let status = context.within(|| cu!(cuStreamSynchronize(context.stream(s))));
                if self.say(format!("synchronise stream {s}"), status) {
                    self.settle(|last| last == s);
                }
                Some(())
            }
            Op::SyncAll => {
                self.sync_all();
                Some(())
            }
            Op::Quiet => {
                (!self.capturing() && !self.ruined).then_some(())?;
                self.sync_all();
                self.audit();
                Some(())
            }
            Op::Info => self.info(t),
            Op::Current { c } => {
                self.current[t] = Some(*c).filter(|&c| c < CONTEXTS && self.contexts[c].is_some());
                let status = self.enter(t);
                self.say(format!("current context {:?}", self.current[t]), status);
                Some(())
            }
            Op::Renew { c } => self.renew(*c),
            Op::Stress { c, threads, rounds, seed } => {
                (!self.capturing()).then_some(())?;
                self.sync_all();
                let context = self.contexts.get(*c)?.as_ref()?.clone();
                let (wrong, text) = super::stress::run(&context, self.notes, *threads, *rounds, *seed);
                self.allocs += 1;
                self.tell(format!("stress: {wrong} wrong{text}"));
                Some(())
            }
            Op::Fault => {
                (!self.capturing() && !self.ruined).then_some(())?;
                self.sync_all();
                let context = self.contexts[0].clone()?;
                let status = context.within(|| context.fill(2, 0x1000, 4, 1));
                self.say("a kernel that writes to nowhere", status);
                self.ruined = true;
                let status = context.within(|| cu!(cuCtxSynchronize()));
                self.say("synchronise", status);
                Some(())
            }
        }
    }

    fn settle(&mut self, of: impl Fn(usize) -> bool) {
        for buffer in self.buffers.values_mut().filter(|buffer| buffer.last.is_some_and(&of)) {
            buffer.last = None;
        }
    }

    pub fn sync_all(&mut self) {
        for c in 0..CONTEXTS {
            let Some(context) = self.contexts[c].clone() else { continue };
            if self.ruined && c != 0 {
                continue;
            }
            let status = context.within(|| cu!(cuCtxSynchronize()));
            if self.say(format!("synchronise context {c}"), status) {
                self.settle(|last| last / STREAMS == c);
            }
        }
    }

    /// `(free, total)` of the current context's device.
    fn free_now() -> (u32, u64, u64) {
        let (mut free, mut total) = (0, 0);
        let status = cu!(cuMemGetInfo_v2(&mut free, &mut total));
        (status, free as u64, total as u64)
    }

    fn free_bytes(&self, c: usize) -> Option<(u64, u64)> {
        let (status, free, total) = self.contexts.get(c)?.as_ref()?.within(Self::free_now);
        (status == 0).then_some((free, total))
    }

    fn info(&mut self, t: usize) -> Option<()> {
        let (status, free, total) = Self::free_now();
        if !self.say("cuMemGetInfo", status) {
            return Some(());
        }
        let device = self.contexts[self.current[t]?].as_ref()?.device;
        let on_it = |b: &&Buffer| {
            let there = self.contexts[b.c].as_ref().is_some_and(|c| c.device == device);
            b.live && there && !matches!(b.how, How::Managed | How::Host)
        };
        let large = self.buffers.values().filter(on_it).map(|b| b.bytes).filter(|bytes| *bytes >= 1 << 20).sum::<u64>();
        let sound = free + large <= total;
        self.tell(format!("  {total} bytes in all, what is live is not free: {sound}"));
        Some(())
    }

    /// Live bytes of each kind, as the program knows them.
    fn live(&self) -> [u64; 4] {
        let of = |kinds: &[How]| {
            self.buffers.values().filter(|b| b.live && kinds.contains(&b.how)).map(|b| b.bytes).sum::<u64>()
        };
        let contexts = self.contexts.iter().flatten().count() as u64 * OF_CONTEXT;
        [
            of(&[How::Driver, How::Runtime, How::Pitch]) + contexts,
            of(&[How::Async]),
            of(&[How::Managed]),
            of(&[How::Host]),
        ]
    }

    /// Compares the ledger's live bytes with the program's.
    fn audit(&mut self) {
        let live = self.live();
        if let Some(wrong) = self.ledger.differs(live) {
            self.tell(format!("ledger: {wrong}"));
        }
        self.tell("quiet");
    }

    /// Destroys a context and everything in it.
    fn renew(&mut self, c: usize) -> Option<()> {
        (!self.capturing() && !self.ruined && (c == OWN || c == SECOND)).then_some(())?;
        let old = self.contexts[c].clone()?;
        self.sync_all();
        let graphs: Vec<Id> = self.graphs.iter().filter(|(_, g)| g.c == c).map(|(g, _)| *g).collect();
        for g in graphs {
            self.drop_graph(g);
        }
        // A buffer that goes with its context has no free of its own.
        for buffer in self.buffers.values_mut().filter(|b| b.live && b.c == c) {
            (buffer.live, buffer.freed_at) = (false, None);
            if let Some(notes) = self.notes {
                notes.around(buffer.ptr, false, || 0);
            }
        }
        if c == OWN {
            let status = cu!(cuCtxDestroy_v2(old.handle as *mut _));
            self.say("destroy a context", status);
        } else {
            let status = cu!(cuDevicePrimaryCtxReset_v2(old.device));
            self.say("reset a device", status);
        }
        let new = if c == OWN { Context::own() } else { Context::primary(old.device) };
        self.allocs += 1;
        match new {
            Ok(new) => self.contexts[c] = Some(new),
            Err(why) => {
                self.tell(format!("making it anew: {why}"));
                self.contexts[c] = None;
            }
        }
        // The destroyed context was current on threads that must not use it any more.
        for t in 0..THREADS {
            if self.current[t] == Some(c) {
                (self.current[t], self.stale[t]) = (Some(0), true);
            }
        }
        Some(())
    }

    /// The end of every program: frees everything and checks that all memory comes back.
    pub fn finish(&mut self) {
        let captures: Vec<usize> = self.captures.keys().copied().collect();
        for s in captures {
            self.end(s, None);
        }
        if self.ruined {
            return;
        }
        self.sync_all();
        let graphs: Vec<Id> = self.graphs.keys().copied().collect();
        for g in graphs {
            self.drop_graph(g);
        }
        self.current[0] = Some(0);
        self.enter(0);
        let live: Vec<(Id, How)> = self.buffers.iter().filter(|(_, b)| b.live).map(|(p, b)| (*p, b.how)).collect();
        for (p, how) in live {
            let by = if how == How::Host { super::program::By::Host } else { Default::default() };
            self.memory(0, &Op::Free { p, by, at: 0, s: 0 });
        }
        self.sync_all();
        self.audit();
        if self.notes.is_none() {
            // A real driver keeps an amount of memory of its own that varies.
            return;
        }
        let free = self.free_bytes(0).map_or(0, |(free, _)| free);
        // Some memory does not come back: small buffers share blocks with the contexts' own memory, and quarantined
        // blocks take up to four times their size.
        let held = if std::env::var_os("GPUMEM_QUARANTINE").is_some() { 48 << 20 } else { 16 << 20 };
        let back = free + held >= self.start_free;
        self.tell(format!("all came back: {back}"));
        let mut old = null_mut();
        cu!(cuCtxGetCurrent(&mut old));
    }
}
