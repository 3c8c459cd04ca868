//! Call stacks: takes and interns them, and publishes the modules of their frames.

use super::python::PythonSites;
use crate::ledger::Ledger;
use crate::process::clock;
use crate::process::regs::Regs;
use crate::process::threads::{self, Local};
use crate::stacks::intern::Interner;
use crate::stacks::{self, modules};
use gpumem_wire::counters;
use gpumem_wire::layout::{ModuleSlot, StackRef, StackSlot};
use gpumem_wire::settings::Settings;
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// Maximum configurable depth of a stack.
const MAX_DEPTH: usize = 128;
/// Usual maximum depth.
const USUAL_DEPTH: usize = 32;

/// Kind of thing made at a stack, for the stack's totals.
#[derive(Clone, Copy)]
pub(crate) enum Made {
    /// This many bytes.
    Memory(u64),
    Graph,
    Exec,
    /// A stream, or anything else that has no total.
    Stream,
}

/// Stacks of the process.
pub(crate) struct Sites {
    interner: Interner,
    /// Maximum number of frames taken.
    depth: AtomicUsize,
    /// Smallest allocation whose stack is taken, bytes.
    smallest: AtomicU64,
    /// Generation of the published modules.
    generation: AtomicU64,
    /// Slots of published modules by their number.
    published: Mutex<HashMap<u32, u32>>,
    python: PythonSites,
}

impl Sites {
    /// Creates the stacks' registry; `None` if there is no memory for it.
    pub(crate) fn new(settings: &Settings, ledger: &Ledger) -> Option<Self> {
        let room = u32::try_from(ledger.stacks.capacity()).unwrap_or(u32::MAX);
        Some(Self {
            interner: Interner::new(room)?,
            depth: AtomicUsize::new((settings.stacks as usize).min(MAX_DEPTH)),
            smallest: AtomicU64::new(settings.stack_every),
            generation: AtomicU64::new(0),
            published: Mutex::new(HashMap::new()),
            python: PythonSites::new(ledger),
        })
    }

    /// Returns a name for this registry's stack numbers. In a child of a fork the numbers differ from those of the
    /// parent's registry. They also differ from the numbers of stacks cut at another depth. The depth is the highest
    /// byte of the name, which is 0 in each address of a program.
    #[inline(always)]
    fn numbers_name(&self, depth: usize) -> usize {
        std::ptr::from_ref(self) as usize | depth << 56
    }

    #[inline(always)]
    fn depth(&self) -> usize {
        self.depth.load(Relaxed)
    }

    #[inline(always)]
    fn smallest(&self) -> u64 {
        self.smallest.load(Relaxed)
    }

    /// Sets the maximum number of frames, and the smallest allocation whose stack is taken.
    pub(crate) fn set(&self, ledger: &Ledger, depth: u32, smallest: u64) {
        self.depth.store((depth as usize).min(MAX_DEPTH), Relaxed);
        self.smallest.store(smallest, Relaxed);
        ledger.header().stack_depth().store(depth, Relaxed);
    }

    /// True if an allocation of `bytes` is recorded with its stack.
    #[inline(always)]
    pub(crate) fn takes_stack(&self, bytes: u64) -> bool {
        self.depth() != 0 && bytes >= self.smallest()
    }

    /// Returns a call's stack. 0 if no stack is taken, or there is no room for it.
    #[inline]
    pub(crate) fn site(&self, ledger: &Ledger, regs: Regs, made: Made) -> StackRef {
        let depth = self.depth();
        if depth == 0 || matches!(made, Made::Memory(bytes) if bytes < self.smallest()) {
            return 0;
        }
        // Clearing room for the deepest stack takes as long as a tenth of the walk.
        match depth {
            ..=USUAL_DEPTH => self.site_of::<USUAL_DEPTH>(ledger, regs, depth, made),
            _ => self.site_of::<MAX_DEPTH>(ledger, regs, depth, made),
        }
    }

    /// Returns an allocation's stack if it is the same as this thread's last one, and counts the allocation in its
    /// totals. `None`: the stack has to be taken. Calls no function.
    #[inline(always)]
    pub(crate) fn known_site(&self, ledger: &Ledger, local: &Local, regs: Regs, bytes: u64) -> Option<StackRef> {
        if self.python.is_there() {
            return None; // The same native frames stand for any number of lines.
        }
        let (stack, cut) = stacks::number(regs, self.numbers_name(self.depth()))?;
        let shard = local.known_shard();
        if cut {
            ledger.count(shard, counters::STACKS_CUT, 1);
        }
        ledger.allocated_at(shard, stack, bytes);
        Some(stack)
    }

    fn site_of<const ROOM: usize>(&self, ledger: &Ledger, regs: Regs, depth: usize, made: Made) -> StackRef {
        let mut frames = [0_u64; ROOM];
        let walk = stacks::walk(regs, &mut frames[..depth]);
        if walk.len == 0 {
            return 0;
        }
        let frames = &frames[..walk.len];
        if self.python.is_there() {
            return self.with_python::<ROOM>(ledger, frames, walk, depth, made);
        }
        let stack = self.intern(ledger, frames, walk.hash, walk.cut, made);
        if stack != 0 {
            stacks::name(regs, frames, walk.cut, self.numbers_name(depth), stack);
        }
        stack
    }

    /// Returns the stack of native frames followed by Python frames.
    #[inline(never)]
    fn with_python<const ROOM: usize>(
        &self,
        ledger: &Ledger,
        native: &[u64],
        walk: stacks::Walk,
        depth: usize,
        made: Made,
    ) -> StackRef {
        let mut frames = [[0_u64; ROOM]; 2];
        let frames = frames.as_flattened_mut();
        frames[..native.len()].copy_from_slice(native);
        let python = self.python.walk(ledger, &mut frames[native.len()..native.len() + depth]);
        let hash = if python.len == 0 { walk.hash } else { walk.hash.rotate_left(17) ^ python.hash };
        self.intern(ledger, &frames[..native.len() + python.len], hash, walk.cut | python.cut, made)
    }

    /// Returns a stack's number and counts what was made. 0 if there is no room for it.
    #[inline]
    fn intern(&self, ledger: &Ledger, frames: &[u64], hash: u64, cut: bool, made: Made) -> StackRef {
        if cut {
            ledger.count(threads::shard(), counters::STACKS_CUT, 1);
        }
        let mut new = None;
        let id = self.interner.intern(hash, |id| {
            // To tell apart what several files did at the same addresses within a tick of the other clock.
            let now_ns = clock::precise_ns();
            new = Self::write_stack(ledger, id, hash, frames, now_ns).then_some(now_ns);
            new.is_some()
        });
        if let Some(now_ns) = new {
            self.publish_modules(ledger, now_ns);
        }
        let Some(id) = id else {
            ledger.count(threads::shard(), counters::DROPPED_RECORDS, 1);
            return 0;
        };
        Self::led_to(ledger, id + 1, made);
        id + 1
    }

    /// Adds what was made to a stack's totals.
    pub(crate) fn led_to(ledger: &Ledger, stack: StackRef, made: Made) {
        let Some(id) = stack.checked_sub(1) else { return };
        let add = |offset, n| {
            ledger.stacks.field(id, offset).fetch_add(n, Relaxed);
        };
        match made {
            Made::Memory(bytes) => ledger.allocated_at(threads::shard(), stack, bytes),
            Made::Graph => add(offset_of!(StackSlot, graphs), 1),
            Made::Exec => add(offset_of!(StackSlot, execs), 1),
            Made::Stream => {}
        }
    }

    #[cold]
    fn write_stack(ledger: &Ledger, id: u32, hash: u64, frames: &[u64], first_ns: u64) -> bool {
        let Some(first_frame) = ledger.frames.append(frames) else { return false };
        // Stacks are never freed and ids are given in order, so the slot is the id.
        let Some(slot) = ledger.stacks.take() else { return false };
        debug_assert_eq!(slot, id);
        let stack = StackSlot { frames: frames.len() as u32, first_frame, hash, first_ns, ..Default::default() };
        ledger.stacks.write(slot, stack);
        true
    }

    /// Lists modules that are new since the last call, and marks those that are gone. The new ones were there for a stack
    /// that was first seen at `since_ns`.
    #[cold]
    fn publish_modules(&self, ledger: &Ledger, since_ns: u64) {
        let modules = modules::refresh();
        if self.generation.load(Acquire) == modules.generation() {
            return;
        }
        self.python.look(ledger);
        let Ok(mut published) = self.published.lock() else { return };
        self.generation.store(modules.generation(), Release);
        let table = &ledger.modules;
        for module in modules.all() {
            published.entry(module.serial).or_insert_with(|| {
                let Some(slot) = table.take() else { return u32::MAX };
                let mut build_id = [0; 32];
                let id = module.build_id();
                build_id[..id.len()].copy_from_slice(id);
                let path = if module.path().is_empty() { b"[vdso]" } else { module.path() };
                table.write(
                    slot,
                    ModuleSlot {
                        path: ledger.texts.intern(path),
                        bias: module.bias,
                        start: module.start,
                        end: module.end,
                        first_ns: since_ns,
                        build_id,
                        build_id_len: id.len() as u32,
                        ..Default::default()
                    },
                );
                slot
            });
        }
        published.retain(|serial, slot| {
            let there = modules.all().iter().any(|module| module.serial == *serial);
            if !there && *slot != u32::MAX {
                table.field(*slot, offset_of!(ModuleSlot, gone_ns)).store(clock::now_ns(), Relaxed);
            }
            there
        });
    }
}
