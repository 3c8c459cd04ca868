//! Walks from a thread's state outwards, frame by frame.

use super::code::{self, Code, Types};
use super::known::{SeenCode, mix};
use super::memory::{self, Memory};
use super::recent::{Place, Recent};
use super::versions::*;
use crate::process::elf::Object;
use gpumem_wire::layout::PythonFrame;

/// Facts common to all walks of a process.
pub(super) struct Interpreter {
    pub shape: Shape,
    pub types: Types,
    /// The program or library that holds it, with the state of its first interpreter.
    pub object: Object,
}

/// Result of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Frames written.
    pub len: usize,
    /// Hash of those frames.
    pub hash: u64,
    /// True if there were more frames than room.
    pub cut: bool,
}

/// Returns this thread's id, as a thread's state has it.
#[inline(always)]
pub(super) fn own_id() -> u64 {
    // SAFETY: pthread_self takes no arguments and cannot fail.
    unsafe { libc::pthread_self() as u64 }
}

/// Maximum number of frames examined for each one written. Trampolines are not written, and a circle has to end.
const LOOKS: usize = 3;

/// Stands for a frame that the interpreter does not show either.
const HIDDEN: u64 = u64::MAX;

/// Removes hidden frames; returns the number of those that are left.
#[inline(always)]
fn drop_hidden(frames: &mut [u64]) -> usize {
    let Some(mut left) = frames.iter().position(|&word| word == HIDDEN) else { return frames.len() };
    for at in left + 1..frames.len() {
        if frames[at] != HIDDEN {
            frames[left] = frames[at];
            left += 1;
        }
    }
    left
}

impl Interpreter {
    /// Returns a thread's innermost frame; 0 if it runs none.
    #[inline(always)]
    pub(super) fn innermost(&self, memory: &mut Memory, thread: u64) -> Option<u64> {
        match self.shape.innermost {
            Innermost::Here(at) => memory.word(thread.wrapping_add(at)),
            Innermost::There(at, then) => match memory.word(thread.wrapping_add(at))? {
                0 => Some(0),
                place => memory.word(place.wrapping_add(then)),
            },
        }
    }

    /// Returns the bytes from the beginning of the code to a frame's instruction.
    #[inline(always)]
    fn instruction(&self, memory: &mut Memory, frame: u64, code: u64) -> Option<i64> {
        Some(match self.shape.instruction {
            Instruction::Number(at, bytes) => i64::from(memory.half(frame + at)? as i32) * bytes,
            Instruction::Address(at, begin) => memory.word(frame + at)?.wrapping_sub(code + begin) as i64,
        })
    }

    /// Returns a frame's code object; `None` if it cannot be read, 0 if the frame is not Python's.
    #[inline(always)]
    fn code(&self, memory: &mut Memory, frame: u64) -> Option<u64> {
        /// Tags in the lowest bits of a reference in a frame of 3.14.
        const TAGS: u64 = 7;
        const FOREIGN: u8 = 3;
        memory.window_among_others(frame, self.shape.frame_bytes())?;
        if let Entry::Trampoline(owner) = self.shape.entry
            && memory.byte(frame + owner)? >= FOREIGN
        {
            return Some(0);
        }
        Some(memory.word(frame + self.shape.code)? & !TAGS)
    }

    /// Reads from a frame if native code called it, if the frame itself says so.
    #[inline(always)]
    fn read_entry(&self, memory: &mut Memory, frame: u64) -> Option<bool> {
        match self.shape.entry {
            Entry::Each => Some(true),
            Entry::Flag(at) => Some(memory.byte(frame + at)? & 1 != 0),
            Entry::Trampoline(_) => Some(false),
        }
    }

    /// Writes this thread's frames, innermost first. `name` returns the number of a new code object. `starts` counts the
    /// starts of Python, if they are known. Returns `None` if the supposed state of this thread does not name this
    /// thread: it was freed, or is not Python's.
    #[inline(always)]
    pub(super) fn walk(
        &self,
        recent: &mut Recent,
        thread: u64,
        known: &SeenCode,
        starts: Option<u32>,
        frames: &mut [u64],
        name: &mut dyn FnMut(&Code) -> Option<u32>,
    ) -> Option<Walk> {
        let mut walk = Walk::default();
        let (era, has_more) = recent.frames(|memory, places| {
            let era = self.era(memory, thread, starts);
            Some((era, self.places(memory, thread, frames.len(), places)?))
        })?;
        walk.len = recent.words(era, frames, |memory, place| self.word(memory, era, place, known, name));
        walk.cut = has_more && walk.len == frames.len();
        walk.len = drop_hidden(&mut frames[..walk.len]);
        walk.hash = frames[..walk.len].iter().fold(0, |hash, &word| mix(hash, word));
        Some(walk)
    }

    /// Returns a number for a thread's interpreter that no other one of this process has; 0 if it has none, or if its
    /// code objects have no serial numbers. Only the first interpreter has one: it lies in the object itself, and
    /// `starts` counts how often it was started.
    #[inline(always)]
    fn era(&self, memory: &mut Memory, thread: u64, starts: Option<u32>) -> u64 {
        match starts {
            Some(starts) if self.shape.serial != 0 => memory
                .word(thread.wrapping_add(self.shape.interpreter))
                .filter(|&interpreter| self.object.holds(interpreter as usize))
                .map_or(0, |_| 1 + u64::from(starts)),
            _ => 0,
        }
    }

    /// Adds the places at which this thread's frames are, innermost first, at most `most`. Returns true if there are
    /// more frames.
    #[inline(always)]
    fn places(&self, memory: &mut Memory, thread: u64, most: usize, places: &mut Vec<Place>) -> Option<bool> {
        if memory.word(thread.wrapping_add(self.shape.thread_id)) != Some(own_id()) {
            return None;
        }
        let mut next = self.innermost(memory, thread).unwrap_or(0);
        for _ in 0..most * LOOKS {
            if next == 0 {
                break;
            }
            let Some(code) = self.code(memory, next) else { break };
            let Some(outer) = memory.word(next + self.shape.previous) else { break };
            if code == 0 {
                if let Some(last) = places.last_mut() {
                    last.entry = true;
                }
            } else if places.len() == most {
                break;
            } else {
                let Some(at) = self.instruction(memory, next, code) else { break };
                let Some(entry) = self.read_entry(memory, next) else { break };
                places.push(Place { code, at, entry });
            }
            next = outer;
        }
        Some(next != 0)
    }

    /// Returns the word for a place in a stack.
    #[inline(always)]
    fn word(
        &self,
        memory: &mut Memory,
        era: u64,
        place: Place,
        known: &SeenCode,
        name: &mut dyn FnMut(&Code) -> Option<u32>,
    ) -> Option<u64> {
        let Place { code, at, entry } = place;
        let of_serial = if era == 0 { None } else { code::print_of_serial(memory, &self.shape, era, code, at) };
        let print = match of_serial {
            Some(print) => print,
            None if code::read_code(memory, &self.types, code) => code::print(memory, &self.shape, code, at)?,
            None => return None,
        };
        let word = match known.find(print) {
            Some(word) => word,
            None => memory::once(|memory| self.learn(memory, code, at, print, known, name))?,
        };
        Some(word | if entry { PythonFrame::ENTRY } else { 0 })
    }

    /// Reads a new place in code.
    #[cold]
    #[inline(never)]
    fn learn(
        &self,
        memory: &mut Memory,
        code: u64,
        at: i64,
        print: u64,
        known: &SeenCode,
        name: &mut dyn FnMut(&Code) -> Option<u32>,
    ) -> Option<u64> {
        let (code, line) = code::read(memory, &self.shape, &self.types, code, at).ok()?;
        let word = match code.is_the_interpreters() {
            true => HIDDEN,
            false => PythonFrame { code: name(&code)?, line, entry: false }.word(),
        };
        known.put(print, word);
        Some(word)
    }

    /// Tries every frame of a thread, by reads that cannot fault; returns their number.
    ///
    /// # Errors
    /// The property that is not as expected.
    pub(super) fn check(&self, memory: &mut Memory, thread: u64) -> Result<usize, &'static str> {
        const MOST: usize = 64;
        let (mut next, mut frames) = (self.innermost(memory, thread).ok_or("a thread's frames are not there")?, 0);
        for _ in 0..MOST {
            if next == 0 {
                break;
            }
            let frame = next;
            let code = self.code(memory, frame).ok_or("a frame is not there")?;
            next = memory.word(frame + self.shape.previous).ok_or("a frame is not there")?;
            if code == 0 {
                continue;
            }
            let at = self.instruction(memory, frame, code).ok_or("a frame is not there")?;
            let (_, line) = code::read(memory, &self.shape, &self.types, code, at)?;
            if line == 0 && frames == 0 {
                return Err("the innermost frame has no line");
            }
            frames += 1;
        }
        Ok(frames)
    }
}
