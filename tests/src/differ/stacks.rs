//! Call stacks of a process's threads when nothing goes on: each thread writes its own stack when it is told to.
//!
//! A thread may hold any lock at that moment, so the handler allocates nothing until all frames are written by module
//! and offset. Names of functions that the loader does not know come after them, or never.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// The beginning of each line.
pub const MARK: &str = "stack: ";
/// The most frames that are written for a thread.
const MOST_FRAMES: usize = 48;
/// How long a thread has to take the signal. The driver's own threads may never do so.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long a thread has to write its stack. It looks names up in files, which takes time.
const WRITING: Duration = Duration::from_secs(5);

/// Destination of stacks: stderr.
static INTO: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);
/// Stacks written so far.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// True while a thread writes its stack.
static BUSY: AtomicBool = AtomicBool::new(false);

/// From now on a thread of this process that gets SIGUSR1 writes its call stack.
pub fn answer_signals() {
    // SAFETY: zeroes are a valid sigaction. `write_own` has the type of a handler, and nothing else
    // in these programs uses SIGUSR1. SA_RESTART lets interrupted calls go on.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = write_own as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
}

/// Threads of a process.
fn threads_of(process: u32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut threads: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

fn tell(process: u32, thread: i32) {
    // SAFETY: tgkill takes numbers. If the thread is gone it answers with an error and sends
    // nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, process as c_int, thread, libc::SIGUSR1) };
}

/// This thread's number. The C library has a function for it only since 2.30.
fn own_id() -> libc::pid_t {
    // SAFETY: gettid takes no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Makes all other threads of this process write their stacks, one after another.
pub fn write_others() {
    let own = own_id();
    for thread in threads_of(std::process::id()).into_iter().filter(|&thread| thread != own) {
        let (before, begin) = (WRITTEN.load(Acquire), Instant::now());
        tell(std::process::id(), thread);
        let patience = || if BUSY.load(Acquire) { WRITING } else { PATIENCE };
        while WRITTEN.load(Acquire) == before && begin.elapsed() < patience() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes all threads of another process write their stacks, and waits for that.
pub fn ask(process: u32) {
    for thread in threads_of(process) {
        tell(process, thread);
        std::thread::sleep(PATIENCE / 4);
    }
    std::thread::sleep(WRITING / 5);
}

/// A line that is put together without allocating.
struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl Text {
    fn line(fill: impl FnOnce(&mut Self) -> std::fmt::Result) {
        let mut text = Self { bytes: [0; 512], len: 0 };
        let _ = text.write_str(MARK).and_then(|()| fill(&mut text));
        let len = text.len.min(text.bytes.len() - 1);
        text.bytes[len] = b'\n';
        // SAFETY: `len` is at most 511 and the text has 512 bytes, so all `len + 1` bytes are
        // there.
        unsafe { libc::write(INTO.load(Relaxed), text.bytes.as_ptr().cast(), len + 1) };
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Writes the calling thread's stack.
extern "C" fn write_own(_: c_int) {
    let begin = Instant::now();
    // Threads write one after another. A thread that never finishes does not hold up the others for good.
    let alone = loop {
        match BUSY.compare_exchange(false, true, AcqRel, Relaxed).is_ok() {
            false if begin.elapsed() < WRITING => std::thread::sleep(Duration::from_millis(1)),
            alone => break alone,
        }
    };
    let mut frames = [0_usize; MOST_FRAMES];
    let mut len = 0;
    // SAFETY: `_unsynchronized` asks that no other thread uses the unwinder's shared state at the
    // same time. Walking uses none on Linux: each thread unwinds its own stack.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            frames[len] = frame.ip() as usize;
            len += 1;
            len < MOST_FRAMES
        });
    }
    let mut name = [0_u8; 32];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, and `name` has 32.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok()).unwrap_or("?");
    Text::line(|text| write!(text, "thread {} {name}", own_id()));
    for (at, &address) in frames[..len].iter().enumerate() {
        Text::line(|text| write_place(text, at, address));
    }
    if alone {
        for (at, &address) in frames[..len].iter().enumerate() {
            write_names(at, address);
        }
        BUSY.store(false, Release);
    }
    WRITTEN.fetch_add(1, Release);
}

fn place(address: usize) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` has room for the one Dl_info that dladdr writes.
    (unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) } != 0)
        // SAFETY: dladdr has succeeded and filled the struct. What it leaves out stays zero, which
        // is valid: numbers and null pointers.
        .then(|| unsafe { info.assume_init() })
}

/// The text at an address; `None` if there is none, or it is not UTF-8.
///
/// # Safety
/// `text` is NULL or a string of the loader's.
unsafe fn text_of<'a>(text: *const libc::c_char) -> Option<&'a str> {
    // SAFETY: not null, and our caller vouches for a string of the loader's that ends in NUL.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }).and_then(|text| text.to_str().ok())
}

fn write_place(text: &mut Text, at: usize, address: usize) -> std::fmt::Result {
    let Some(info) = place(address) else { return write!(text, "  #{at} {address:#x}") };
    // SAFETY: dladdr gave both strings. They belong to a module that is loaded, because one of this
    // thread's frames is in it.
    let (file, symbol) = unsafe { (text_of(info.dli_fname), text_of(info.dli_sname)) };
    let module = file.and_then(|file| file.rsplit('/').next()).unwrap_or("?");
    write!(text, "  #{at} {module}+{:#x}", address - info.dli_fbase as usize)?;
    match symbol {
        Some(symbol) => write!(text, " {symbol}+{:#x}", address - info.dli_saddr as usize),
        None => Ok(()),
    }
}

/// Writes names that only the module's own symbols tell.
fn write_names(at: usize, address: usize) {
    if place(address).is_none_or(|info| !info.dli_sname.is_null()) {
        return;
    }
    // SAFETY: `_unsynchronized` asks that one thread resolves names at a time. Only the thread that
    // set BUSY in `write_own` comes here.
    unsafe {
        // A return address lies behind its call.
        backtrace::resolve_unsynchronized((address - 1) as *mut c_void, |symbol| {
            if let Some(name) = symbol.name() {
                Text::line(|text| write!(text, "  #{at} is {name:#}"));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::{FromRawFd, IntoRawFd};

    #[inline(never)]
    fn stands_still(until: &std::sync::Barrier) {
        until.wait();
    }

    #[test]
    fn threads_tell_where_they_stand() {
        let (mut from, into) = std::io::pipe().expect("a pipe");
        INTO.store(into.into_raw_fd(), Relaxed);
        answer_signals();
        let gate = std::sync::Arc::new(std::sync::Barrier::new(2));
        let held = gate.clone();
        let thread = std::thread::Builder::new().name("held".into()).spawn(move || stands_still(&held)).expect("one");
        std::thread::sleep(Duration::from_millis(50));
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).map(|_| text)
        });
        write_others();
        gate.wait();
        thread.join().expect("its end");
        // SAFETY: INTO holds the pipe's end, whose owner this test took out by `into_raw_fd`. The
        // swap takes it out, so the File is its only owner.
        drop(unsafe { std::fs::File::from_raw_fd(INTO.swap(libc::STDERR_FILENO, Relaxed)) });
        let text = reader.join().expect("its end").expect("text");
        let held = text.split(&format!("{MARK}thread ")).find(|part| part.contains(" held\n")).expect("the thread");
        assert!(held.contains("stands_still"), "{text}");
        assert!(held.lines().skip(1).all(|line| line.starts_with(&format!("{MARK}  #"))), "{text}");
        assert!(held.contains("+0x"), "{text}");
    }
}
