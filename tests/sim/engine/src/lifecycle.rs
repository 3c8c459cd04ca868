//! Before the first call, after a fork, after exit began.
//!
//! Nothing is torn down: streams may still run while the process exits, so the
//! exit handler only raises a flag, and all state is leaked on purpose.

use crate::error::{Error, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

const FRESH: u8 = 0;
const READY: u8 = 1;
const EXITING: u8 = 2;
const FORKED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(FRESH);

extern "C" fn at_exit() {
    if STATE.swap(EXITING, SeqCst) == READY {
        crate::machine::report_leaks();
        crate::machine::write_stats();
    }
}

extern "C" fn in_child() {
    crate::card::close_in_child();
    crate::checkpoint::service::close_in_child();
    STATE.store(FORKED, SeqCst);
}

/// Initialises as cuInit does. In a forked child of an initialised process it gives 3. After exit began it gives 4.
pub fn init() -> Result {
    static ONCE: Once = Once::new();
    match STATE.load(SeqCst) {
        EXITING => return Err(Error::DEINITIALIZED),
        FORKED => return Err(Error::NOT_INITIALIZED),
        _ => {}
    }
    if crate::config::config().devices == 0 {
        return Err(Error::NO_DEVICE);
    }
    ONCE.call_once(|| {
        // SAFETY: both handlers have the types that are asked for. They stay mapped until the
        // process ends, because the library is linked `-z nodelete`.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
        }
        STATE.store(READY, SeqCst);
        crate::checkpoint::service::start();
    });
    Ok(())
}

/// Checks that calls may work at all now.
pub fn ready() -> Result {
    match STATE.load(SeqCst) {
        READY => Ok(()),
        EXITING => Err(Error::DEINITIALIZED),
        _ => Err(Error::NOT_INITIALIZED),
    }
}

/// True if exit began.
pub fn exiting() -> bool {
    STATE.load(SeqCst) == EXITING
}

/// A number for the calling thread, without a thread-local destructor.
pub fn thread_id() -> u64 {
    use std::cell::Cell;
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static ID: Cell<u64> = const { Cell::new(0) });
    ID.with(|id| {
        if id.get() == 0 {
            id.set(NEXT.fetch_add(1, SeqCst));
        }
        id.get()
    })
}
