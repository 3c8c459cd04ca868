//! Thunks for functions that no table has. Newer drivers offer such functions, under a name that is not in the headers
//! ([`gpumem_abi::known`]), or under a known name for a newer version of the API. They include graph functions of HIP
//! that no table has.
//!
//! The number of thunks is fixed. Each belongs to one real function for good, and the same function gets the same
//! thunk. Nothing is guessed about such a function:
//!
//! * Handles of ours among the arguments are replaced by real ones. These execs stay with their handles for good.
//! * A block of the pool among the arguments goes back to the driver when it is freed, since others may know of it.
//! * The function may give the device work, unless its name says that it only asks. A thunk sees the call begin but not
//!   end. So from the first such call on, submissions are no longer counted.
//! * A function that may change something else that the shim relies on (a newer form of a function that has a hook;
//!   captures, code, contexts, frees, peers) is a call that the shim misses: from the first such call on, interception
//!   is partial.

use super::rows::rows;
use super::thunk;
use crate::gate;
use crate::hooks::unknown;
use crate::process::thunks::{self, Words, claim};
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

const SPARES: usize = 256;

/// Facts about an unknown function, by its name.
#[derive(Debug)]
struct About {
    name: String,
    /// True if it may give the device work.
    works: bool,
    /// True if it may change what the shim relies on.
    changes: bool,
    /// True once its first call was reported and acted upon.
    told: AtomicBool,
}

impl About {
    fn new(name: &[u8]) -> Self {
        let text = String::from_utf8_lossy(name).into_owned();
        let asks = gpumem_abi::only_asks(name) || !gpumem_abi::is_drivers(name);
        let has_hook = !gpumem_abi::may_submit(name) && rows().iter().any(|row| row.base == text && !row.thunk);
        let may_change = CHANGES.iter().any(|word| text.contains(word));
        Self { works: !asks, changes: !asks && (has_hook || may_change), name: text, told: AtomicBool::new(false) }
    }
}

/// Parts of names of functions that may do more than submit work: they begin or end something that the shim has to see.
const CHANGES: [&str; 7] = ["Capture", "Unload", "CtxDestroy", "CtxRelease", "Reset", "Free", "Peer"];

/// The real function of each thunk.
static REAL: [AtomicUsize; SPARES] = [const { AtomicUsize::new(0) }; SPARES];
static ABOUT: [OnceBox<About>; SPARES] = [const { OnceBox::new() }; SPARES];

thunks::through!(through, enter);

/// # Safety
/// Called by a thunk that [`of`] gave out, with the words that it keeps.
unsafe extern "C" fn enter(index: usize, words: &mut Words, _: usize) -> usize {
    if let Some(about) = ABOUT[index].get().filter(|_| !gate::disabled()) {
        called(about, words);
    }
    // The number of an unknown function's arguments is unknown.
    thunk::pass(REAL[index].load(Relaxed), words, words.len())
}

/// Handles the program's call of an unknown function.
fn called(about: &About, words: &Words) {
    unknown::may_keep(words);
    if about.told.load(Relaxed) {
        return;
    }
    if about.works {
        unknown::may_submit();
    }
    // Before the process's first GPU call there is no shim to tell.
    let told = gate::record_if_started(|shim| {
        shim.met(&format!("the function {}", about.name));
        if about.changes {
            shim.went_past(&format!("{} is newer than this gpumem and may change what it relies on", about.name));
        }
    });
    about.told.store(told.is_some(), Relaxed);
}

thunks::pool!(thunk_at, SPARES, through);

/// True if an exported function of this name matters although no table has it.
pub(crate) fn is_for(symbol: &[u8]) -> bool {
    let known = || gpumem_abi::knows_symbol(symbol) && !thunk::is_graph_function(symbol);
    (gpumem_abi::is_drivers(symbol) && !known()) || thunk::is_graph_function(symbol) || gpumem_abi::may_submit(symbol)
}

/// Returns the thunk of this function. `None` if all thunks are taken; then everything that relies on them ends.
pub(crate) fn of(real: usize, name: &[u8]) -> Option<usize> {
    let index = claim(&REAL, real);
    match index {
        Some(index) => drop(ABOUT[index].get_or_init(|| Box::new(About::new(name)))),
        None => went_past(name),
    }
    index.map(thunk_at)
}

/// Notes that the program was given a function of this name without a thunk.
pub(crate) fn went_past(name: &[u8]) {
    let about = About::new(name);
    unknown::goes_past(&about.name);
    if about.works {
        unknown::may_submit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn product(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, x: f64) -> f64 {
        (a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g) as f64 * x
    }

    extern "C" fn difference(a: usize, b: usize) -> usize {
        a - b
    }

    #[test]
    fn a_thunk_leads_to_its_function() {
        let (real, other) = (product as *const () as usize, difference as *const () as usize);
        let (first, second) = (of(real, b"cuGraphOne").expect("one"), of(other, b"cuGraphTwo").expect("two"));
        assert_eq!(of(real, b"cuGraphOne_v2"), Some(first), "the same function has the same thunk");
        assert_ne!(first, second);
        // SAFETY: a thunk leaves all arguments as they came and jumps to its function. So it has
        // the prototype of that function, which takes any values.
        unsafe {
            type Product = extern "C" fn(usize, usize, usize, usize, usize, usize, usize, f64) -> f64;
            let answer = std::mem::transmute::<usize, Product>(first)(1, 1, 1, 1, 1, 1, 2, 0.5);
            assert_eq!(answer, 17.5);
            assert_eq!(std::mem::transmute::<usize, extern "C" fn(usize, usize) -> usize>(second)(44, 2), 42);
        }
    }

    #[test]
    fn what_a_name_tells_decides_what_is_trusted() {
        let about = |name: &str| {
            let About { works, changes, .. } = About::new(name.as_bytes());
            (works, changes)
        };
        assert_eq!(about("cuGraphExecGetFutureId"), (false, false));
        assert_eq!(about("cuTileSpin"), (true, false));
        assert_eq!(about("cuMemcpyFuture"), (true, false));
        // Newer forms of functions with a hook, and of one that is only counted.
        assert_eq!((about("cuMemAlloc"), about("cuMemcpy")), ((true, true), (true, false)));
        assert_eq!((about("cuStreamBeginOtherCapture"), about("cuMemFreeBatch")), ((true, true), (true, true)));
    }

    #[test]
    fn names_that_no_header_has_are_for_a_thunk() {
        for name in ["cuFuture", "cuMemAlloc_v9", "cuGraphFuture", "cuInit_v2", "hipGraphFuture"] {
            assert!(is_for(name.as_bytes()), "{name}");
        }
        for name in ["cuInit", "cuMemAlloc_v2", "cuDeviceGetName", "cudaMalloc", "cublasCreate_v2", "hipMalloc", "cu"] {
            assert!(!is_for(name.as_bytes()), "{name}");
        }
    }
}
