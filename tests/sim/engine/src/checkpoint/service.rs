//! The target's side: a thread of the driver's own that answers requests, one after another.

use super::target::{Caller, Target};
use super::{MESSAGE, Request, pair, send, with_socket};
use crate::error::Error;
use std::ffi::c_void;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The socket, and the connection that is being served, else -1.
static LISTENER: AtomicI32 = AtomicI32::new(-1);
static CONNECTION: AtomicI32 = AtomicI32::new(-1);

/// With `SIM_CHECKPOINT=DIR`: begins to listen.
pub fn start() {
    let pid = std::process::id() as i32;
    let listening = with_socket(pid, |path| {
        // A process of this number ended without its socket.
        let _ = std::fs::remove_file(&path);
        UnixListener::bind(path)
    });
    match listening {
        None => {}
        Some(Err(error)) => eprintln!("sim: SIM_CHECKPOINT: no socket: {error}"),
        Some(Ok(listener)) => {
            LISTENER.store(listener.as_raw_fd(), SeqCst);
            let listener = Box::into_raw(Box::new(listener)).cast();
            if !(crate::heap::has_room_for_a_thread() && crate::thread::start(run, listener)) {
                crate::heap::exhausted();
            }
        }
    }
}

/// In a child of `fork`: closes what would keep the parent's socket open.
pub fn close_in_child() {
    for descriptor in [LISTENER.swap(-1, SeqCst), CONNECTION.swap(-1, SeqCst)] {
        if descriptor >= 0 {
            // SAFETY: the descriptor is the child's copy, and the thread that used it is not in the child.
            unsafe { libc::close(descriptor) };
        }
    }
}

extern "C" fn run(listener: *mut c_void) -> *mut c_void {
    // SAFETY: a name of at most 15 bytes that ends in NUL, for the calling thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sim-checkpoint".as_ptr()) };
    // SAFETY: `start` made the box and gave it to this thread alone.
    let listener: Box<UnixListener> = unsafe { Box::from_raw(listener.cast()) };
    let serving = std::panic::AssertUnwindSafe(|| serve(&listener));
    if std::panic::catch_unwind(serving).is_err() {
        crate::report::violation("simulator_panic", "the thread for checkpoints panicked");
    }
    std::ptr::null_mut()
}

fn serve(listener: &UnixListener) {
    let mut target = Target::new();
    loop {
        // SAFETY: the listener is open, and no address is asked for.
        let connection = unsafe {
            libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        if connection < 0 {
            match std::io::Error::last_os_error().kind() {
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                _ => return,
            }
        }
        CONNECTION.store(connection, SeqCst);
        // SAFETY: `accept4` has just made the descriptor, and this is its only owner.
        answer(&mut target, unsafe { UnixStream::from_raw_fd(connection) });
        CONNECTION.store(-1, SeqCst);
    }
}

fn answer(target: &mut Target, mut connection: UnixStream) {
    let mut bytes = [0; MESSAGE];
    if connection.read_exact(&mut bytes).is_err() {
        return;
    }
    let done =
        Request::unpack(bytes).ok_or(Error::INVALID_VALUE).and_then(|request| target.serve(request, &connection));
    let (code, value) = done.map_or_else(|error| (error.0, 0), |value| (0, value as u32));
    let _ = send(&connection, pair(code, value));
}

impl Caller for UnixStream {
    fn lives_for(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut ends = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
            let wait = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            // SAFETY: both structs are locals, and the list has one entry.
            match unsafe { libc::ppoll(&mut ends, 1, &wait, std::ptr::null()) } {
                0 => return true,
                1.. => return false,
                _ if left.is_zero() => return true,
                _ => {}
            }
        }
    }
}
