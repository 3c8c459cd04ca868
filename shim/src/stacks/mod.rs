//! Call stacks, taken inside hooks: the return addresses from the caller outwards.
//!
//! | file | what it holds |
//! |---|---|
//! | mod.rs | the walk |
//! | rules.rs | rules that lead from a code address to its caller, remembered for the whole process |
//! | cfi.rs | the source of rules: the object's .eh_frame |
//! | modules.rs | the loaded objects |
//! | memo.rs | each thread's last walk, confirmed rather than walked again |
//! | memory.rs | stack memory that may be read directly |
//! | intern.rs | numbers for stacks |
//! | python | frames of Python |
//!
//! 32 frames cost 105 ns if the thread's last walk had most of them, 260 if every rule is known, 21 by frame pointers
//! alone, 4250 with libgcc (a small VM, release build). A new address costs some microseconds and up to 20 KiB of the
//! thread's stack.
//!
//! A walk on known code takes no lock, calls no function and allocates nothing. It reads only stack memory that is
//! known to be mapped. Anything else, including unwind tables, is read through the kernel. So garbage on the stack, or
//! a dlclose in another thread, ends a walk and not the program.
//!
//! Rules come from gimli rather than from an unwinder on top of it. Those unwinders keep references into the objects'
//! memory, cache per thread, guess by frame pointer if nothing is known, and evaluate realigned and FFI frames
//! (CPython's ctypes) anew each time.
//!
//! A rule outlives its code until the next look at the loader's counters: on any address that has no rule yet, on a
//! walk that ends oddly, and on [`modules::refresh`]. Until then, new code may be loaded at the same addresses, with
//! every return address equal, and be walked by the old rules. Such a stack may be wrong; nothing worse happens.
//! Calling [`modules::refresh`] after each dlclose prevents it.

use crate::process::errno::KeepErrno;
use crate::process::regs::Regs;
use crate::process::threads;
use crate::process::tls::thread_pointer;
use std::alloc::{Layout, alloc};
use std::cell::Cell;
use std::ptr::from_ref;

#[cfg(target_arch = "x86_64")]
mod cfi;
pub(crate) mod intern;
#[cfg(target_arch = "x86_64")]
mod memo;
mod memory;
pub(crate) mod modules;
pub(crate) mod python;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod rules;
#[cfg(test)]
mod tests;

use memory::{KnownStack, StackReader};
#[cfg(target_arch = "x86_64")]
use {
    memo::{Followed, Inner, Last, Memo, Step},
    rules::{Kind, Rule},
};

/// Result of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Frames written.
    pub len: usize,
    /// Hash of those frames, for [`intern::Interner::intern`].
    pub hash: u64,
    /// True if there were more frames than room for them.
    pub cut: bool,
    /// True if the thread's outermost frame was reached.
    pub complete: bool,
}

/// State of a thread's walks.
pub(crate) struct Thread {
    stack: KnownStack,
    walking: Cell<bool>,
    /// For the call that set `walking`.
    #[cfg(target_arch = "x86_64")]
    memo: std::cell::UnsafeCell<Memo>,
}

thread_pointer!("gpumem_walks", Thread);

/// Returns the calling thread's state. `None`: there is no memory for it.
///
/// # Safety
/// The reference is not kept beyond the call that the thread is in, nor given to another thread.
#[inline(always)]
unsafe fn state<'a>() -> Option<&'a Thread> {
    // SAFETY: the pointer leads to what `first` has found for this thread, which is there until the thread is gone. Our
    // caller keeps the reference no longer than that.
    match unsafe { known().as_ref() } {
        None => first(),
        thread => thread,
    }
}

#[cold]
#[inline(never)]
fn first<'a>() -> Option<&'a Thread> {
    let _errno = KeepErrno::new();
    // SAFETY: the reference ends with this function and stays on this thread.
    let walks = &unsafe { threads::here() }?.walks;
    // SAFETY: only this function puts something into the slot.
    let thread = match unsafe { walks.get::<Thread>() } {
        Some(thread) => from_ref(thread).cast_mut(),
        // SAFETY: the layout is not empty.
        None => unsafe { alloc(Layout::new::<Thread>()).cast() },
    };
    // SAFETY: It is null, new, or belonged to the thread that had this thread's memory before and has ended. A signal
    // handler may have been faster: then it has done its walks. The memory is never freed.
    let thread = unsafe {
        if thread.is_null() {
            return None;
        }
        thread.write(Thread::new());
        &*thread
    };
    walks.set(Some(thread));
    know(thread);
    Some(thread)
}

/// Marks a walk in progress; the walk ends on drop.
struct Walking<'a>(&'a Cell<bool>);

impl Drop for Walking<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Thread {
    pub(crate) const fn new() -> Self {
        Self {
            stack: KnownStack::new(),
            walking: Cell::new(false),
            #[cfg(target_arch = "x86_64")]
            memo: std::cell::UnsafeCell::new(Memo::new()),
        }
    }
}

/// Returns the number that [`name`] gave the calling thread's walk that begins here, and true if that walk was cut; `None`
/// if it must be walked again. Calls no function.
#[inline(always)]
pub(crate) fn number(regs: Regs, registry: usize) -> Option<(u32, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the reference ends with this call and stays on this thread.
        let thread = unsafe { state() }?;
        if thread.walking.replace(true) {
            return None;
        }
        let _walking = Walking(&thread.walking);
        // SAFETY: the memo is reached only while `walking` is set, and this call has set it. So there is no other
        // reference.
        let memo = unsafe { &*thread.memo.get() };
        memo.number(rules::generation(), regs, registry, thread.stack.known())
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (regs, registry);
        None
    }
}

/// Returns the part of the calling thread's stack that is known to be mapped for as long as the thread runs: first byte
/// and end. Empty before its first walk.
#[inline]
pub(crate) fn own_stack() -> (u64, u64) {
    // SAFETY: the reference ends with this call and stays on this thread.
    unsafe { state() }.map_or((0, 0), |thread| thread.stack.known())
}

/// Numbers the last walk, for [`number`]. `registry` identifies the registry that gave the number.
#[inline]
pub(crate) fn name(regs: Regs, frames: &[u64], cut: bool, registry: usize, number: u32) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the reference ends with this block and stays on this thread.
        if let Some(thread) = unsafe { state() }
            && !thread.walking.replace(true)
        {
            let _walking = Walking(&thread.walking);
            // SAFETY: the memo is reached only while `walking` is set, and this call has set it. So
            // there is no other reference.
            let memo = unsafe { &mut *thread.memo.get() };
            memo.name(rules::generation(), regs, frames, cut, registry, number);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (regs, frames, cut, registry, number);
}

/// No user code lies above this address. Keeps garbage out of the cache's keys.
#[cfg(target_arch = "x86_64")]
const HIGHEST_CODE: u64 = 1 << 47;

/// Writes return addresses, innermost first, beginning with `regs.pc`.
///
/// The code address that a signal interrupted is not a return address. It is written plus one, so that for every frame
/// the address minus one lies in the calling or interrupted instruction. The walk stops if no unwind information is
/// found (JIT code: its address is the last frame). A walk inside a walk (a signal handler) finds nothing. Leaves errno
/// alone.
#[inline]
pub(crate) fn walk(regs: Regs, frames: &mut [u64]) -> Walk {
    // SAFETY: the reference ends with this walk and stays on this thread.
    let Some(thread) = (unsafe { state() }) else { return Walk::default() };
    if thread.walking.replace(true) {
        return Walk::default();
    }
    let _walking = Walking(&thread.walking);
    walk_thread(thread, regs, frames)
}

fn walk_thread(thread: &Thread, regs: Regs, frames: &mut [u64]) -> Walk {
    let mut stack = StackReader::new(thread.stack.around(regs.sp));
    let generation = rules::generation();
    let (mut walk, end) = walk_frames(thread, &mut stack, generation, regs, frames);
    if end == End::Odd {
        recheck();
    }
    let now = rules::generation();
    if now != generation {
        // Code was unloaded since the last look, so the rules used so far may be wrong.
        (walk, _) = walk_frames(thread, &mut stack, now, regs, frames);
    }
    walk.hash = hash(&frames[..walk.len]);
    walk
}

/// Reason for the end of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// At the outermost frame, at code without unwind information, or for lack of room.
    Usual,
    /// At data that is not a frame: an unusual stack, or rules that are out of date.
    Odd,
}

/// Checks if rules are out of date.
#[cold]
fn recheck() {
    drop(modules::refresh());
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn walk_frames(
    thread: &Thread,
    stack: &mut StackReader,
    generation: u64,
    mut at: Regs,
    frames: &mut [u64],
) -> (Walk, End) {
    // SAFETY: the memo is reached only while `walking` is set, and `walk` has set it for this call.
    // So there is no other reference.
    let memo = unsafe { &mut *thread.memo.get() };
    let mut met = memo.begin(generation);
    let mut inner = Inner::new();
    let mut walk = Walk::default();
    // 1: pc is a return address, the call is before it. 0: a signal interrupted at pc.
    let mut back = 1;
    while at.pc != 0 && at.pc < HIGHEST_CODE {
        if memo.meet(&mut met, at) {
            match memo.follow(met, stack, frames, &mut walk.len) {
                Followed::End(last) => {
                    memo.put_before(met, &inner);
                    walk.complete = last == Last::Complete;
                    return (walk, End::Usual);
                }
                Followed::Full => {
                    memo.put_before(met, &inner);
                    walk.cut = true;
                    return (walk, End::Usual);
                }
                Followed::Lost(index) => {
                    at = memo.take_over(met, index, &mut inner);
                    met = memo::STEPS;
                }
            }
        }
        let Some(frame) = frames.get_mut(walk.len) else {
            walk.cut = true;
            inner.push(Step { at, fp_at: 0 });
            memo.put(&inner, Last::Open);
            return (walk, End::Usual);
        };
        *frame = at.pc + 1 - back;
        walk.len += 1;
        let rule = match rules::lookup(at.pc - back, generation) {
            Some(rule) => rule,
            None => learn(at.pc - back),
        };
        let next = if rule.is_plain() {
            let base = if rule.kind() == Kind::Fp as u8 { at.fp } else { at.sp };
            let cfa = base.wrapping_add(rule.cfa_offset());
            let fp_at = if rule.fp_kept() { 0 } else { cfa.wrapping_add(rule.fp_offset()) };
            inner.push(Step { at, fp_at });
            caller(stack, rule, cfa, at.fp)
        } else if rule == Rule::END || rule == Rule::UNKNOWN {
            walk.complete = rule == Rule::END;
            inner.push(Step { at, fp_at: 0 });
            memo.put(&inner, if walk.complete { Last::Complete } else { Last::Unknown });
            return (walk, End::Usual);
        } else {
            inner.spoil();
            special(stack, rule, at.sp, at.fp)
        };
        let Some(next) = next else { return (walk, End::Odd) };
        // Each frame is above the one it called; only a signal handler may be on another stack.
        if next.sp <= at.sp && rule != Rule::SIGNAL {
            return (walk, End::Odd);
        }
        back = u64::from(rule != Rule::SIGNAL);
        if back == 0 {
            met = memo::STEPS;
        }
        at = next;
    }
    // Some code ends its thread's outermost frame with a return address of 0.
    walk.complete = at.pc == 0 && walk.len > 0;
    (walk, End::Odd)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn caller(stack: &mut StackReader, rule: Rule, cfa: u64, fp: u64) -> Option<Regs> {
    let pc = stack.word(cfa.wrapping_sub(8))?;
    let fp = if rule.fp_kept() { fp } else { stack.word(cfa.wrapping_add(rule.fp_offset()))? };
    Some(Regs { pc, sp: cfa, fp })
}

/// Applies rules of realigned frames and signal frames.
#[cfg(target_arch = "x86_64")]
#[cold]
fn special(stack: &mut StackReader, rule: Rule, sp: u64, fp: u64) -> Option<Regs> {
    // Offsets in the ucontext that the kernel puts on the stack of a handler (uapi/asm/ucontext.h).
    const UCONTEXT_RBP: u64 = 40 + 10 * 8;
    const UCONTEXT_RSP: u64 = 40 + 15 * 8;
    const UCONTEXT_RIP: u64 = 40 + 16 * 8;
    if rule == Rule::SIGNAL {
        return Some(Regs {
            pc: stack.word(sp.wrapping_add(UCONTEXT_RIP))?,
            sp: stack.word(sp.wrapping_add(UCONTEXT_RSP))?,
            fp: stack.word(sp.wrapping_add(UCONTEXT_RBP))?,
        });
    }
    let base = match rule.kind() {
        kind if kind == Kind::Sp as u8 => sp.wrapping_add(rule.cfa_offset()),
        kind if kind == Kind::Fp as u8 => fp.wrapping_add(rule.cfa_offset()),
        kind if kind == Kind::AtFp as u8 => stack.word(fp.wrapping_add(rule.cfa_offset()))?,
        _ => return None,
    };
    let mut next = caller(stack, rule, base, fp)?;
    if rule.fp_at_fp() {
        next.fp = stack.word(fp.wrapping_add(rule.fp_offset()))?;
    }
    Some(next)
}

/// Finds the rule for a new address.
#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
fn learn(address: u64) -> Rule {
    let _errno = KeepErrno::new();
    if !memory::has_room_below() {
        return Rule::UNKNOWN; // and nothing is remembered: another thread may have the room
    }
    loop {
        let generation = rules::generation();
        let modules = modules::refresh();
        if rules::generation() != generation {
            continue;
        }
        let rule = modules.find(address).map_or(Rule::UNKNOWN, |module| cfi::rule_for(module, address));
        rules::remember(address, generation, rule);
        return rule;
    }
}

/// Walks by frame pointers, which the platform's ABI requires of all code.
#[cfg(not(target_arch = "x86_64"))]
fn walk_frames(
    _thread: &Thread,
    stack: &mut StackReader,
    _generation: u64,
    regs: Regs,
    frames: &mut [u64],
) -> (Walk, End) {
    // A signed return address has its signature above the address bits.
    const ADDRESS: u64 = (1 << 48) - 1;
    let Regs { mut pc, mut sp, mut fp } = regs;
    let mut walk = Walk::default();
    while pc & ADDRESS != 0 {
        let Some(frame) = frames.get_mut(walk.len) else {
            walk.cut = true;
            return (walk, End::Usual);
        };
        *frame = pc & ADDRESS;
        walk.len += 1;
        if fp == 0 {
            break;
        }
        let (Some(caller), Some(back)) = (stack.word(fp), stack.word(fp.wrapping_add(8))) else {
            return (walk, End::Usual);
        };
        if fp.wrapping_add(16) <= sp {
            return (walk, End::Usual);
        }
        (pc, sp, fp) = (back, fp + 16, caller);
    }
    walk.complete = walk.len > 0;
    (walk, End::Usual)
}

/// Hashes frames in four chains, so that multiplications overlap.
#[inline(always)]
fn hash(frames: &[u64]) -> u64 {
    const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;
    let mut lanes = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, frames.len() as u64];
    let (fours, rest) = frames.as_chunks::<4>();
    for four in fours {
        for (lane, frame) in lanes.iter_mut().zip(four) {
            *lane = (lane.rotate_left(23) ^ frame).wrapping_mul(FACTOR);
        }
    }
    let all = lanes.iter().chain(rest);
    let hash = all.fold(0_u64, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR));
    hash ^ hash >> 32
}
