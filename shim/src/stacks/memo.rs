//! Remembers a thread's last walk, to confirm it instead of walking again.
//!
//! From one pc, stack pointer and frame pointer, the same rule leads to the same two words of the stack. If those words
//! are unchanged, so is the next frame. So a remembered walk is confirmed by loads that do not wait for each other,
//! several times as fast as walking. Programs reach the same outer frames by different inner ones, so a walk that meets
//! a remembered frame continues by the memo. A memo gives the same answer as walking: it is dropped when the rules
//! change.

use std::mem::MaybeUninit;

use super::memory::StackReader;
use crate::process::regs::Regs;

/// Maximum number of remembered frames, 32 bytes each.
pub(super) const STEPS: usize = 64;

/// A frame, and the address at which its caller's frame pointer was saved. 0: the register was kept. The return address
/// is the word below the caller's stack pointer.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub at: Regs,
    pub fp_at: u64,
}

const NO_STEP: Step = Step { at: Regs { pc: 0, sp: 0, fp: 0 }, fp_at: 0 };

/// How the remembered frames end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// At the outermost frame.
    Complete,
    /// At code without unwind information.
    Unknown,
    /// There are more frames.
    Open,
}

/// The number of the memo's walk.
#[derive(Clone, Copy)]
struct Named {
    /// The registry that gave the number, 0 if there is none.
    registry: usize,
    number: u32,
    /// The last frame, and true if there were more.
    last: usize,
    cut: bool,
    /// The part of the stack that the walk read.
    read: (u64, u64),
}

const NO_NAME: Named = Named { registry: 0, number: 0, last: 0, cut: false, read: (0, 0) };

/// The last walk, outermost frame at the end.
pub(super) struct Memo {
    generation: u64,
    first: usize,
    last: Last,
    named: Named,
    steps: [Step; STEPS],
}

/// Result of following a memo.
pub(super) enum Followed {
    /// Reached its end.
    End(Last),
    /// The room for frames is used up.
    Full,
    /// Reached the frame with this index, whose caller has changed.
    Lost(usize),
}

impl Memo {
    pub(super) const fn new() -> Self {
        Memo { generation: 0, first: STEPS, last: Last::Open, named: NO_NAME, steps: [NO_STEP; STEPS] }
    }

    /// Returns the registry's number of the whole walk that begins here, and true if that walk was cut. `None` unless
    /// it is the remembered walk, and the stack words that it read lie within these bounds and are unchanged.
    #[inline(always)]
    pub(super) fn number(
        &self,
        generation: u64,
        regs: Regs,
        registry: usize,
        (low, high): (u64, u64),
    ) -> Option<(u32, bool)> {
        let Named { registry: of, number, last, cut, read } = &self.named;
        if *of != registry || self.generation != generation || read.0 < low || read.1 > high {
            return None;
        }
        let (mut step, rest) = self.steps.get(self.first..=*last)?.split_first()?;
        if step.at != regs {
            return None;
        }
        for next in rest {
            // SAFETY: the last walk read both words. All that it read lies within the bounds of this
            // thread's stack that our caller passes, as was checked above. So both are mapped.
            let same = unsafe {
                (next.at.sp.wrapping_sub(8) as *const u64).read_unaligned() == next.at.pc
                    && (step.fp_at == 0 || (step.fp_at as *const u64).read_unaligned() == next.at.fp)
            };
            if !same {
                return None;
            }
            step = next;
        }
        Some((*number, *cut))
    }

    /// Numbers the walk that has just been made, if the memo holds all of it.
    pub(super) fn name(
        &mut self,
        generation: u64,
        regs: Regs,
        frames: &[u64],
        cut: bool,
        registry: usize,
        number: u32,
    ) {
        let steps = self.steps.get(self.first..).unwrap_or_default();
        let holds = self.generation == generation
            && steps.first().is_some_and(|step| step.at == regs)
            && steps.len() >= frames.len()
            && steps.iter().zip(frames).all(|(step, frame)| step.at.pc == *frame)
            // A walk that was not cut ended at the memo's end.
            && (cut || (steps.len() == frames.len() && self.last != Last::Open));
        self.named = NO_NAME;
        if holds && let Some(last) = (self.first + frames.len()).checked_sub(1) {
            let mut read = (u64::MAX, 0);
            let mut reads = |at: u64| read = (read.0.min(at), read.1.max(at.saturating_add(8)));
            steps[1..frames.len()].iter().for_each(|step| reads(step.at.sp.wrapping_sub(8)));
            let kept = steps[..frames.len() - 1].iter().filter(|step| step.fp_at != 0);
            kept.for_each(|step| reads(step.fp_at));
            self.named = Named { registry, number, last, cut, read };
        }
    }

    /// Returns the index to begin [`Memo::meet`] with.
    #[inline(always)]
    pub(super) fn begin(&mut self, generation: u64) -> usize {
        if self.generation != generation {
            self.generation = generation;
            self.first = STEPS;
            self.named = NO_NAME;
        }
        self.first
    }

    /// Moves `index` on to the frame at this stack pointer. Returns true if it is the same frame.
    #[inline(always)]
    pub(super) fn meet(&self, index: &mut usize, at: Regs) -> bool {
        while let Some(step) = self.steps.get(*index) {
            if step.at.sp >= at.sp {
                return step.at == at;
            }
            *index += 1;
        }
        false
    }

    /// Adds frames from `index` on, as long as the stack is unchanged.
    #[inline(always)]
    pub(super) fn follow(
        &self,
        index: usize,
        stack: &mut StackReader,
        frames: &mut [u64],
        len: &mut usize,
    ) -> Followed {
        let mut step = &self.steps[index];
        for (index, next) in (index..).zip(&self.steps[index + 1..]) {
            let Some(frame) = frames.get_mut(*len) else { return Followed::Full };
            let same = stack.word(next.at.sp.wrapping_sub(8)) == Some(next.at.pc)
                && (step.fp_at == 0 || stack.word(step.fp_at) == Some(next.at.fp));
            if !same {
                return Followed::Lost(index);
            }
            *frame = step.at.pc;
            *len += 1;
            step = next;
        }
        if self.last == Last::Open {
            return Followed::Lost(STEPS - 1);
        }
        let Some(frame) = frames.get_mut(*len) else { return Followed::Full };
        *frame = step.at.pc;
        *len += 1;
        Followed::End(self.last)
    }

    /// Remembers `inner` frames before the one with index `met`, which stays.
    #[inline(always)]
    pub(super) fn put_before(&mut self, met: usize, inner: &Inner) {
        if let Some(first) = met.checked_sub(inner.len)
            && inner.usable
            && !(inner.overflowed && met < STEPS)
        {
            self.steps[first..met].copy_from_slice(inner.steps());
            self.first = first;
            self.named = NO_NAME;
        }
    }

    /// Remembers a whole walk, or its innermost frames.
    pub(super) fn put(&mut self, inner: &Inner, last: Last) {
        if inner.usable {
            self.first = STEPS;
            self.last = if inner.overflowed { Last::Open } else { last };
            self.put_before(STEPS, inner);
        }
    }

    /// Takes the frames from index `met` up to, but not including, `end` as part of a new walk.
    #[cold]
    pub(super) fn take_over(&self, met: usize, end: usize, inner: &mut Inner) -> Regs {
        self.steps[met..end].iter().for_each(|step| inner.push(*step));
        self.steps[end].at
    }
}

/// Frames of the current walk that are not in the memo.
pub(super) struct Inner {
    len: usize,
    /// True if there were more than fit.
    overflowed: bool,
    /// True if all frames are found by words that a memo can confirm.
    usable: bool,
    steps: [MaybeUninit<Step>; STEPS],
}

impl Inner {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Inner { len: 0, overflowed: false, usable: true, steps: [const { MaybeUninit::uninit() }; STEPS] }
    }

    #[inline(always)]
    fn steps(&self) -> &[Step] {
        // SAFETY: `push` has initialised the first `len` elements and keeps `len` within the array.
        unsafe { std::slice::from_raw_parts(self.steps.as_ptr().cast(), self.len) }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, step: Step) {
        match self.steps.get_mut(self.len) {
            Some(room) => {
                *room = MaybeUninit::new(step);
                self.len += 1;
            }
            None => self.overflowed = true,
        }
    }

    /// Notes a frame that a memo cannot confirm.
    pub(super) fn spoil(&mut self) {
        self.usable = false;
    }
}
