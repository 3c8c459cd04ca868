//! Frames of the calling thread, read without a call of the kernel.
//!
//! Another thread may end the interpreter and unmap this thread's frames ([`super::memory`]). It says so first, in
//! `_PyRuntime`, and then deletes the other threads' states, which takes it system calls. So the frames are read right
//! behind that word, in a restartable sequence (rseq): if this thread loses its processor or gets a signal within the
//! sequence, the kernel sends it to the end of it without a result. Then, and if the interpreter is ending, the frames
//! are read through the kernel.
//!
//! The C library registers the sequences of all its threads since glibc 2.35. Only code objects with a serial number
//! are read here (CPython 3.12 and later): a sequence is short, and names and tables are not.

use super::code::Types;
use super::versions::{Entry, Innermost, Instruction, Shape};
use crate::process::elf;
use crate::process::keys;
use crate::process::peek::read_value;
use std::mem::MaybeUninit;

/// Maximum number of places read.
pub(super) const MOST: usize = 128;

/// A place in code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LivePlace {
    pub code: u64,
    /// Address of the instruction.
    pub instruction: u64,
    pub serial: u32,
    /// 1 if native code called the frame.
    pub entry: u32,
}

/// What is read of a thread.
pub(super) struct LivePlaces<'a> {
    /// Innermost first.
    pub places: &'a [LivePlace],
    /// The thread's interpreter.
    pub interpreter: u64,
    pub has_more: bool,
}

/// Where the sequence finds what it reads.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[derive(Clone, Copy)]
pub(super) struct Live {
    /// Address of the word that is not 0 from the moment at which a thread begins to end the interpreter.
    ending: u64,
    /// Address of the count of deleted keys.
    deletions: u64,
    /// Bytes from the thread pointer to the area that the kernel and a thread share for its sequences.
    area: u64,
    code_type: u64,
    /// Offsets, as in [`Shape`].
    thread_id: u64,
    interpreter: u64,
    innermost: u64,
    /// Second offset to the innermost frame, or [`HERE`].
    then: u64,
    previous: u64,
    code: u64,
    instruction: u64,
    owner: u64,
    serial: u64,
}

/// No second offset.
const HERE: u64 = u64::MAX;

impl Live {
    /// Returns `None` if frames of this version or under this C library must be read through the kernel.
    pub(super) fn new(shape: &Shape, types: &Types, runtime: u64) -> Option<Self> {
        let (Instruction::Address(instruction, _), Entry::Trampoline(owner)) = (shape.instruction, shape.entry) else {
            return None;
        };
        if shape.serial == 0 || shape.ending == 0 || cfg!(not(target_arch = "x86_64")) {
            return None;
        }
        let (innermost, then) = match shape.innermost {
            Innermost::Here(at) => (at, HERE),
            Innermost::There(at, then) => (at, then),
        };
        let &Shape { thread_id, interpreter, previous, code, serial, ending, .. } = shape;
        let (ending, deletions) = (runtime + ending, keys::deletions_at());
        let (area, code_type) = (area()?, types.code);
        let live = Self {
            ending,
            deletions,
            area,
            code_type,
            thread_id,
            interpreter,
            innermost,
            then,
            previous,
            code,
            instruction,
            owner,
            serial,
        };
        Some(live)
    }

    /// Reads the places of the calling thread, whose state and id these are; at most `looks` frames, and as many places
    /// as there is room for. `None` if they must be read through the kernel. `deletions`: the count of deleted keys from
    /// before the state was found by its key.
    #[inline(never)]
    pub(super) fn read<'a>(
        &self,
        thread: u64,
        own_id: u64,
        deletions: u32,
        looks: usize,
        room: &'a mut [MaybeUninit<LivePlace>],
    ) -> Option<LivePlaces<'a>> {
        #[cfg(target_arch = "x86_64")]
        {
            let (mut frame, mut interpreter, mut count) = (thread, 0_u64, 0_usize);
            // SAFETY: The key leads to this thread's state, which is there until the thread ends or another one ends the
            // interpreter. Until then its frames and their code objects are there, too: the interpreter does not run on
            // this thread. An end is announced by the word that is read first, and the sequence does not go on after
            // a pause. `room` takes all places that are written, and the area of sequences is this thread's own.
            unsafe {
                std::arch::asm!(
                    // Version and flags, the sequence's beginning, length and the place to go on at.
                    ".pushsection .data.rel.ro.gpumem_rseq, \"aw\", %progbits",
                    ".p2align 5",
                    "30:",
                    ".long 0, 0",
                    ".quad 31f, 39f - 31f, 40f",
                    ".popsection",
                    // A thread that is not registered has a negative processor there.
                    "mov {a}, qword ptr [{live} + {area}]",
                    "cmp dword ptr fs:[{a} + 4], 0",
                    "jl 41f",
                    "lea {b}, [rip + 30b]",
                    "mov qword ptr fs:[{a} + 8], {b}",
                    "31:",
                    "mov {b}, qword ptr [{live} + {ending}]",
                    "cmp qword ptr [{b}], 0",
                    "jne 41f",
                    "mov {b}, qword ptr [{live} + {deletions_at}]",
                    "cmp dword ptr [{b}], {deletions:e}",
                    "jne 41f",
                    "mov {b}, qword ptr [{live} + {thread_id}]",
                    "cmp qword ptr [{frame} + {b}], {own}",
                    "jne 41f",
                    "mov {b}, qword ptr [{live} + {interpreter_at}]",
                    "mov {interpreter}, qword ptr [{frame} + {b}]",
                    "mov {b}, qword ptr [{live} + {innermost}]",
                    "mov {frame}, qword ptr [{frame} + {b}]",
                    "mov {b}, qword ptr [{live} + {then}]",
                    "cmp {b}, -1",
                    "je 32f",
                    "test {frame}, {frame}",
                    "jz 39f",
                    "mov {frame}, qword ptr [{frame} + {b}]",
                    "32:", // a frame
                    "test {frame}, {frame}",
                    "jz 39f",
                    "sub {looks}, 1",
                    "jc 39f",
                    "mov {b}, qword ptr [{live} + {owner}]",
                    "cmp byte ptr [{frame} + {b}], 3",
                    "jae 33f",
                    "mov {b}, qword ptr [{live} + {code}]",
                    "mov {a}, qword ptr [{frame} + {b}]",
                    "and {a}, -8",
                    "jz 33f",
                    "cmp {count}, {most}",
                    "je 39f",
                    "mov {b}, qword ptr [{live} + {code_type}]",
                    "cmp qword ptr [{a} + 8], {b}",
                    "jne 41f",
                    "mov qword ptr [{to}], {a}",
                    "mov {b}, qword ptr [{live} + {instruction}]",
                    "mov {b}, qword ptr [{frame} + {b}]",
                    "mov qword ptr [{to} + 8], {b}",
                    "mov {b}, qword ptr [{live} + {serial}]",
                    "mov {b:e}, dword ptr [{a} + {b}]",
                    "mov qword ptr [{to} + 16], {b}",
                    "add {to}, 24",
                    "add {count}, 1",
                    "jmp 34f",
                    "33:", // not Python's: native code called the one before
                    "test {count}, {count}",
                    "jz 34f",
                    "mov dword ptr [{to} - 4], 1",
                    "34:",
                    "mov {b}, qword ptr [{live} + {previous}]",
                    "mov {frame}, qword ptr [{frame} + {b}]",
                    "jmp 32b",
                    "39:",
                    "mov {a}, qword ptr [{live} + {area}]",
                    "mov qword ptr fs:[{a} + 8], 0",
                    "jmp 42f",
                    // The signature with which glibc registers sequences, in an instruction that traps.
                    ".byte 0x0f, 0xb9, 0x3d",
                    ".long 0x53053053",
                    "40:",
                    "41:",
                    "mov {a}, qword ptr [{live} + {area}]",
                    "mov qword ptr fs:[{a} + 8], 0",
                    "mov {count}, -1",
                    "42:",
                    live = in(reg) self,
                    own = in(reg) own_id,
                    deletions = in(reg) deletions,
                    most = in(reg) room.len(),
                    frame = inout(reg) frame,
                    interpreter = inout(reg) interpreter,
                    looks = inout(reg) looks => _,
                    to = inout(reg) room.as_mut_ptr() => _,
                    count = inout(reg) count,
                    a = out(reg) _,
                    b = out(reg) _,
                    area = const std::mem::offset_of!(Live, area),
                    ending = const std::mem::offset_of!(Live, ending),
                    deletions_at = const std::mem::offset_of!(Live, deletions),
                    thread_id = const std::mem::offset_of!(Live, thread_id),
                    interpreter_at = const std::mem::offset_of!(Live, interpreter),
                    innermost = const std::mem::offset_of!(Live, innermost),
                    then = const std::mem::offset_of!(Live, then),
                    owner = const std::mem::offset_of!(Live, owner),
                    code = const std::mem::offset_of!(Live, code),
                    code_type = const std::mem::offset_of!(Live, code_type),
                    instruction = const std::mem::offset_of!(Live, instruction),
                    serial = const std::mem::offset_of!(Live, serial),
                    previous = const std::mem::offset_of!(Live, previous),
                    options(nostack)
                );
            }
            let places = room.get(..count)?;
            // SAFETY: the sequence has written the first `count` places.
            let places = unsafe { std::slice::from_raw_parts(places.as_ptr().cast(), count) };
            Some(LivePlaces { places, interpreter, has_more: frame != 0 })
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (thread, own_id, deletions, looks, room);
            None
        }
    }
}

/// Returns the bytes from the thread pointer to a thread's area; `None` if the C library registers no sequences.
fn area() -> Option<u64> {
    let [offset, size] = [c"__rseq_offset", c"__rseq_size"].map(elf::Name::new);
    let mut found = elf::object_that_defines(c"__rseq_offset")?.symbols(&[offset, size]);
    let (offset, size) = (found.next()? as u64, found.next()? as u64);
    if read_value::<u32>(size)? == 0 { None } else { read_value(offset) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::versions::{Version, shape};
    use super::super::walk::own_id;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Words as CPython 3.12 lays them out: a runtime, this thread's state, three frames of two functions.
    struct Program {
        runtime: [u64; 64],
        state: [u64; 32],
        native: [u64; 2],
        codes: [[u64; 32]; 2],
        frames: [[u64; 16]; 4],
        types: Types,
    }

    const SERIALS: [u64; 2] = [7, 8];

    /// Serial number, bytes to the instruction, and 1 if native code called the frame.
    type Seen = (u64, u64, u32);

    impl Program {
        fn new() -> Box<Self> {
            let types = Types { code: 0x1000, text: 0, bytes: 0 };
            let mut program = Box::new(Self {
                runtime: [0; 64],
                state: [0; 32],
                native: [0; 2],
                codes: [[0; 32]; 2],
                frames: [[0; 16]; 4],
                types,
            });
            let at = program.frames.each_ref().map(|frame| frame.as_ptr() as u64);
            let codes = program.codes.each_ref().map(|code| code.as_ptr() as u64);
            for (code, serial) in program.codes.iter_mut().zip(SERIALS) {
                code[1] = types.code;
                code[11] = serial << 32;
            }
            for (index, frame) in program.frames.iter_mut().enumerate() {
                frame[0] = codes[index % 2];
                frame[1] = at.get(index + 1).copied().unwrap_or(0);
                frame[7] = codes[index % 2] + 192 + 2 * index as u64;
            }
            // The third frame is not Python's.
            program.frames[2][8] = 3 << 48;
            program.native[0] = at[0];
            program.state[7] = program.native.as_ptr() as u64;
            program.state[17] = own_id();
            program.state[2] = program.runtime.as_ptr() as u64;
            program
        }

        fn live(&self) -> Option<Live> {
            let shape = shape(Version(0x030c_01f0), self.runtime.as_ptr() as u64).expect("it is known");
            Live::new(&shape, &self.types, self.runtime.as_ptr() as u64)
        }

        /// Reads at most `most` places; true if there are more.
        fn read(&self, live: &Live, most: usize) -> Option<(Vec<Seen>, bool)> {
            let mut room = [const { MaybeUninit::uninit() }; MOST];
            let read =
                live.read(self.state.as_ptr() as u64, own_id(), keys::deletions(), 3 * most, &mut room[..most])?;
            assert_eq!(read.interpreter, self.runtime.as_ptr() as u64);
            let place = |place: &LivePlace| (place.serial.into(), place.instruction - place.code - 192, place.entry);
            Some((read.places.iter().map(place).collect(), read.has_more))
        }
    }

    /// The library of tests may run where there are no sequences.
    fn live(program: &Program) -> Option<Live> {
        let live = program.live();
        assert_eq!(live.is_some(), area().is_some());
        live
    }

    const ALL: [Seen; 3] = [(7, 0, 0), (8, 2, 1), (8, 6, 0)];

    #[test]
    fn frames_are_read_as_they_are() {
        let mut program = Program::new();
        let Some(live) = live(&program) else { return };
        assert_eq!(program.read(&live, 8), Some((ALL.to_vec(), false)));
        assert_eq!(program.read(&live, 3), Some((ALL.to_vec(), false)));
        assert_eq!(program.read(&live, 2), Some((ALL[..2].to_vec(), true)));
        program.native[0] = 0;
        assert_eq!(program.read(&live, 8), Some((vec![], false)));
        program.state[7] = 0;
        assert_eq!(program.read(&live, 8), Some((vec![], false)));
    }

    #[test]
    fn what_is_not_as_usual_is_left_to_the_kernel() {
        let program = Program::new();
        let Some(live) = live(&program) else { return };
        let refused = |change: &dyn Fn(&mut Program)| {
            let mut program = Program::new();
            change(&mut program);
            let moved = Live { ending: program.runtime.as_ptr() as u64 + 24, ..live };
            assert_eq!(program.read(&moved, 8), None);
        };
        refused(&|program| program.runtime[3] = 1);
        refused(&|program| program.state[17] += 8);
        refused(&|program| program.codes[1][1] += 8);
        let mut room = [const { MaybeUninit::uninit() }; 8];
        let state = program.state.as_ptr() as u64;
        assert!(live.read(state, own_id(), keys::deletions().wrapping_sub(1), 24, &mut room).is_none());
        // A circle of frames that are not Python's ends.
        let mut program = Program::new();
        program.frames.iter_mut().for_each(|frame| frame[8] = 3 << 48);
        program.frames[3][1] = program.frames[0].as_ptr() as u64;
        assert_eq!(program.read(&live, 8), Some((vec![], true)));
    }

    /// A signal in the midst of the sequence ends it without a result, and the next one has all frames again.
    #[test]
    fn a_signal_ends_the_sequence() {
        extern "C" fn ignore(_: libc::c_int) {}
        let program = Program::new();
        let Some(live) = live(&program) else { return };
        // SAFETY: the handler does nothing, and nothing else uses this signal.
        unsafe { libc::signal(libc::SIGVTALRM, ignore as *const () as usize) };
        let (this, is_done) = (own_id(), AtomicBool::new(false));
        let (mut left, mut read) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    // SAFETY: the thread is in this scope.
                    unsafe { libc::pthread_kill(this, libc::SIGVTALRM) };
                }
            });
            let start = std::time::Instant::now();
            while left < 3 && start.elapsed().as_secs() < 60 {
                match program.read(&live, 8) {
                    Some(found) => {
                        assert_eq!(found, (ALL.to_vec(), false));
                        read += 1;
                    }
                    None => left += 1,
                }
            }
            is_done.store(true, Relaxed);
        });
        assert!(left >= 3 && read > left, "{left} of {read} were left to the kernel");
    }
}
