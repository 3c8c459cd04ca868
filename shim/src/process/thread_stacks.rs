//! Tells which part of each thread's stack is in use. Data below a stack pointer was left by calls that have returned.
//!
//! A mapping does not tell where a stack begins: the kernel joins adjacent mappings, and a program may place a stack
//! inside other memory. The C library knows. It keeps a record of each thread in the thread's own stack (glibc: `struct
//! pthread`; musl has one, too), with the thread's number and the position of its stack. The offsets within the record
//! are learned from our own thread's record.

use super::peek::{read_memory, read_value};
use super::threads;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a record that are examined.
const RECORD: usize = 2048;
/// Above a stack pointer the record is searched for in `MOST` bytes, `PIECE` bytes at a time.
const MOST: u64 = 16 << 20;
const PIECE: usize = 64 << 10;
const PAGE: u64 = 4096;

/// Returns the unused part of each thread's stack: from the stack's beginning to its stack pointer. `first` is the
/// mapping that is the stack of the process's first thread, whose record lies elsewhere.
pub(crate) fn unused(first: Option<Range<u64>>) -> Vec<Range<u64>> {
    let Some(places) = Places::learn() else { return Vec::new() };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ours = threads::os_id() as u32;
    let of_task = |task: std::fs::DirEntry| {
        let tid = task.file_name().to_str()?.parse().ok().filter(|&tid: &u32| tid != ours)?;
        let pointer = stack_pointer(&task.path())?;
        let stack = match first.as_ref().filter(|first| first.contains(&pointer)) {
            Some(first) => first.clone(),
            None => places.stack(tid, pointer)?,
        };
        Some(stack.start..pointer)
    };
    tasks.filter_map(of_task).collect()
}

/// Returns the stack pointer of a waiting thread; a running thread reports none.
fn stack_pointer(task: &std::path::Path) -> Option<u64> {
    // `running`, or a call and its arguments, or -1; then the stack pointer and the code address.
    let said = std::fs::read_to_string(task.join("syscall")).ok()?;
    let (before, _) = said.trim_end().rsplit_once(' ')?;
    let (_, stack) = before.rsplit_once(' ').unwrap_or(("", before));
    u64::from_str_radix(stack.strip_prefix("0x")?, 16).ok()
}

/// Offsets in the C library's record of a thread's number, and of the beginning and bytes of its stack.
#[derive(Clone, Copy, Debug)]
struct Places {
    tid: usize,
    stack: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the stack from its beginning and bytes, if `inside` lies in it.
fn stack_with(inside: u64, start: u64, bytes: u64) -> Option<Range<u64>> {
    let end = start.checked_add(bytes)?;
    // The program may provide a stack that begins at any address.
    ((start..end).contains(&inside) && start >= PAGE && start.is_multiple_of(8)).then_some(start..end)
}

impl Places {
    /// Learns the offsets from the calling thread, which is one of ours: its stack is the C library's.
    fn learn() -> Option<Self> {
        let (here, tid) = (0_u8, threads::os_id() as u32);
        // SAFETY: pthread_self takes nothing and answers an address, which is read through the kernel.
        let record: [u8; RECORD] = read_value(unsafe { libc::pthread_self() } as u64)?;
        let at = &raw const here as u64;
        let has_tid = |at: &usize| record.get(*at..).and_then(|rest| rest.first_chunk()) == Some(&tid.to_ne_bytes());
        let has_stack = |place: &usize| {
            let (start, bytes) = (word(&record, *place), word(&record, place + 8));
            let whole = |(start, bytes): (u64, u64)| start % PAGE == 0 && bytes % PAGE == 0 && bytes < 1 << 40;
            let both = start.zip(bytes).filter(|&both| whole(both));
            both.is_some_and(|(start, bytes)| stack_with(at, start, bytes).is_some())
        };
        let tid = (0..RECORD).step_by(4).find(has_tid)?;
        let stack = (0..RECORD).step_by(8).find(has_stack)?;
        Some(Self { tid, stack })
    }

    /// Finds a thread's stack by the record above its stack pointer.
    fn stack(self, tid: u32, pointer: u64) -> Option<Range<u64>> {
        let mut room = vec![MaybeUninit::uninit(); PIECE + RECORD];
        let begin = pointer & !7;
        for from in (begin..begin.saturating_add(MOST)).step_by(PIECE) {
            let bytes: &[u8] = read_memory(from, &mut room);
            for at in (0..bytes.len().min(PIECE)).step_by(8) {
                let has_tid =
                    bytes.get(at + self.tid..).and_then(|rest| rest.first_chunk()) == Some(&tid.to_ne_bytes());
                let stack = || stack_with(pointer, word(bytes, at + self.stack)?, word(bytes, at + self.stack + 8)?);
                if has_tid && let Some(stack) = stack() {
                    return Some(stack);
                }
            }
            // The memory ends here.
            if bytes.len() < PIECE + RECORD && bytes.len() <= PIECE {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Waits, with a local far enough above its stack pointer.
    fn waits(told: &Sender<u64>, end: &Receiver<()>) {
        let here = 0_u8;
        told.send(&raw const here as u64).unwrap();
        end.recv().unwrap_err();
    }

    fn await_unused(near: impl Fn(&Range<u64>) -> bool) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        // As in the shim, the asking thread has a stack of the C library's own.
        while !std::thread::scope(|scope| scope.spawn(|| unused(None)).join().unwrap()).iter().any(&near) {
            assert!(std::time::Instant::now() < until, "{:x?}", unused(None));
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_lies_below_the_stack_pointer_of_a_thread_is_not_in_use() {
        let ((told, here), (end, ended)) = (channel(), channel::<()>());
        let thread = std::thread::spawn(move || waits(&told, &ended));
        let here = here.recv().unwrap();
        await_unused(|unused| unused.end < here && here - unused.end < 64 << 10 && unused.end - unused.start > 1 << 20);
        drop(end);
        thread.join().unwrap();
    }

    /// The stack is part of other memory. Memory below the stack does not belong to it.
    #[test]
    fn a_stack_of_the_programs_begins_where_it_says() {
        const BYTES: usize = 256 << 10;
        type Both = (Sender<u64>, Receiver<()>);
        extern "C" fn run(both: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: the test below has made this box for the thread alone.
            let (told, end) = *unsafe { Box::from_raw(both.cast::<Both>()) };
            waits(&told, &end);
            std::ptr::null_mut()
        }
        let memory = vec![0_u128; 2 * BYTES / 16];
        let stack = memory.as_ptr() as u64 + BYTES as u64;
        let ((told, here), (end, ended)) = (channel(), channel::<()>());
        let both = Box::into_raw(Box::new((told, ended)));
        // SAFETY: zeroes are a valid attribute before it is initialised. The upper half of `memory` is the thread's
        // alone, and outlives it: it is joined below.
        let thread = unsafe {
            let (mut how, mut thread) = (std::mem::zeroed(), std::mem::zeroed());
            assert_eq!(libc::pthread_attr_init(&mut how), 0);
            assert_eq!(libc::pthread_attr_setstack(&mut how, stack as *mut _, BYTES), 0);
            assert_eq!(libc::pthread_create(&mut thread, &how, run, both.cast()), 0);
            thread
        };
        let here = here.recv().unwrap();
        assert!((stack..stack + BYTES as u64).contains(&here));
        await_unused(|unused| unused.start == stack && unused.end < here);
        drop(end);
        // SAFETY: the thread was made above, and is joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
    }
}
