//! Streams whose work really runs later: one thread for each stream that has work.

use crate::config::config;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A point in a queue. It is reached when all work up to it has run.
#[derive(Clone)]
pub struct Fence {
    queue: Arc<Queue>,
    seq: u64,
}

impl Fence {
    pub fn reached(&self) -> bool {
        self.queue.state().completed >= self.seq
    }

    pub fn wait(&self) {
        let mut q = self.queue.state();
        while q.completed < self.seq {
            q = self.queue.done.wait(q).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// Waits for all of them. The machine must not be locked.
pub fn wait_all(fences: &[Fence]) {
    fences.iter().for_each(Fence::wait);
}

pub struct Op {
    pub deps: Vec<Fence>,
    pub run: Box<dyn FnOnce() + Send>,
}

pub struct Queue {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    ops: VecDeque<(Op, Instant)>,
    submitted: u64,
    completed: u64,
    worker: bool,
    /// Its stream is gone.
    closed: bool,
}

impl Queue {
    pub fn new() -> Arc<Queue> {
        Arc::new(Queue { state: Mutex::default(), work: Condvar::new(), done: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Everything submitted so far.
    pub fn tail(self: &Arc<Queue>) -> Fence {
        Fence { queue: self.clone(), seq: self.state().submitted }
    }

    pub fn idle(&self) -> bool {
        let q = self.state();
        q.completed == q.submitted
    }

    /// Its stream is gone: nothing more is submitted.
    pub fn close(&self) {
        self.state().closed = true;
        self.work.notify_one();
    }

    pub fn submit(self: &Arc<Queue>, op: Op) -> Fence {
        let mut q = self.state();
        q.ops.push_back((op, Instant::now()));
        q.submitted += 1;
        let seq = q.submitted;
        let start = !std::mem::replace(&mut q.worker, true);
        drop(q);
        if start {
            start_worker(self.clone());
        } else {
            self.work.notify_one();
        }
        Fence { queue: self.clone(), seq }
    }
}

/// Threads end when they are idle, so that a program with many streams has few. The thread of a destroyed stream ends with
/// its last work, so that the number of threads does not depend on the program's speed.
const IDLE: Duration = Duration::from_millis(500);

fn start_worker(queue: Arc<Queue>) {
    // The C library ends the process where a new thread finds no memory for its storage.
    let queue = Arc::into_raw(queue).cast_mut().cast();
    if !(crate::heap::has_room_for_a_thread() && crate::thread::start(run_worker, queue)) {
        // No work may run here, since the caller holds the machine's lock.
        crate::heap::exhausted();
    }
}

extern "C" fn run_worker(queue: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: a name of at most 15 bytes that ends in NUL, for the calling thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sim-stream".as_ptr()) };
    // SAFETY: `start_worker` gave the pointer of a reference that it forgot, to this thread alone.
    worker(unsafe { Arc::from_raw(queue.cast_const().cast()) });
    std::ptr::null_mut()
}

fn worker(queue: Arc<Queue>) {
    let lag = Duration::from_micros(config().lag_us);
    loop {
        let mut q = queue.state();
        while q.ops.is_empty() {
            if q.closed {
                q.worker = false;
                return;
            }
            let (guard, timeout) = queue.work.wait_timeout(q, IDLE).unwrap_or_else(|e| e.into_inner());
            q = guard;
            if timeout.timed_out() && q.ops.is_empty() {
                q.worker = false;
                return;
            }
        }
        let Some((op, since)) = q.ops.pop_front() else {
            continue;
        };
        drop(q);
        wait_all(&op.deps);
        if let Some(rest) = lag.checked_sub(since.elapsed()) {
            std::thread::sleep(rest);
        }
        let run = std::panic::AssertUnwindSafe(op.run);
        if std::panic::catch_unwind(run).is_err() {
            crate::report::violation("simulator_panic", "an operation of a stream panicked");
        }
        queue.state().completed += 1;
        queue.done.notify_all();
    }
}
