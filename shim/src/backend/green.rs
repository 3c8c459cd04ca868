//! The program's green contexts.

use crate::process::wiped::{Place, Word};
use gpumem_abi::types::{Context, Device, Stream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A green context that the program made.
pub(crate) struct Green {
    pub handle: u64,
    pub device: Device,
    /// The context that stands for it, once the program has asked for one.
    pub context: Option<u64>,
    /// Streams that were made for it, by name.
    pub streams: Vec<u64>,
}

/// All green contexts of the process.
// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
pub(crate) const GREENS: Place<Mutex<Vec<Green>>> = unsafe { Place::new(Word::GreenContexts) };
/// True if some context stands for a green one.
static CONTEXTS: AtomicBool = AtomicBool::new(false);

/// Notes that a context stands for a green one. Returns the device.
pub(crate) fn stands_for(context: u64, handle: Context) -> Option<Device> {
    CONTEXTS.store(true, Relaxed);
    with(handle, |green| {
        green.context = Some(context);
        green.device
    })
}

/// True if a context stands for a green one. Its execs live on after its end, and then no others can be made of their
/// graphs.
pub(crate) fn is_one(context: u64) -> bool {
    CONTEXTS.load(Relaxed) && GREENS.locked().iter().any(|green| green.context == Some(context))
}

/// Runs `f` on a green context of the program.
pub(crate) fn with<R>(handle: Context, f: impl FnOnce(&mut Green) -> R) -> Option<R> {
    GREENS.locked().iter_mut().find(|green| green.handle == handle as u64).map(f)
}

/// Notes that a stream was destroyed, whichever context it belonged to.
pub(crate) fn stream_gone(stream: Stream) {
    for green in GREENS.locked().iter_mut() {
        green.streams.retain(|&its| its != stream as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Another thread holds the lock while the process forks.
    #[test]
    fn a_child_of_a_fork_waits_for_no_lock_of_its_parent() {
        let held = Barrier::new(2);
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut greens = GREENS.locked();
                greens.push(Green { handle: 1, device: 0, context: None, streams: vec![7] });
                held.wait();
                held.wait();
                greens.clear();
            });
            held.wait();
            let mut status = 0;
            // SAFETY: the child uses what it may use after a fork: this lock, memory of our allocator or of the C
            // library's, and system calls. It ends there. `status` is a local for waitpid's answer.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(20);
                    stream_gone(std::ptr::without_provenance_mut(7));
                    libc::_exit(7 + GREENS.locked().len() as i32);
                }
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
            held.wait();
            status
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    }
}
