//! Thunks for functions that no table knows: what newer drivers offer under a name that begins as graph
//! functions' names do, or says that the function gives the device work, or under a known name for a newer
//! version of the API.
//!
//! Each thunk of the pool belongs to one real function, for good; the same function gets the same thunk.
//! Handles of ours become real ones on the way. That of a function which gives the device work sees the call
//! begin and not end, so from its first call on nothing is counted any more.

use super::thunk::{self, Words};
use crate::{activity, gate, graphs};
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicUsize, Ordering::*};

const SPARES: usize = 64;
/// Bytes of code of each, from the start of one to the start of the next.
const STRIDE: usize = 16;

/// The real function of each.
static REAL: [AtomicUsize; SPARES] = [const { AtomicUsize::new(0) }; SPARES];
/// The name of each that gives the device work.
static SUBMITS: [OnceBox<String>; SPARES] = [const { OnceBox::new() }; SPARES];

thunk::through!(through, enter);

/// # Safety
/// Called by a thunk that [`of`] gave out, with the words that it keeps.
unsafe extern "C" fn enter(index: usize, words: &mut Words, _: usize) -> usize {
    if let Some(name) = SUBMITS[index].get().filter(|_| !gate::disabled()) {
        activity::uncountable(name);
    }
    // How many arguments an unknown function has is unknown.
    thunk::pass(REAL[index].load(Relaxed), words, words.len())
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn pool() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".balign {stride}",
        ".set .Lgpumem_spare, 0",
        ".rept {spares}",
        "endbr64",
        "mov r11d, offset .Lgpumem_spare",
        "jmp {through}",
        ".balign {stride}",
        ".set .Lgpumem_spare, .Lgpumem_spare + 1",
        ".endr",
        ".cfi_endproc",
        stride = const STRIDE,
        spares = const SPARES,
        through = sym through,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn pool() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".balign {stride}",
        ".set .Lgpumem_spare, 0",
        ".rept {spares}",
        "hint #34",
        "mov w9, #.Lgpumem_spare",
        "b {through}",
        ".balign {stride}",
        ".set .Lgpumem_spare, .Lgpumem_spare + 1",
        ".endr",
        ".cfi_endproc",
        stride = const STRIDE,
        spares = const SPARES,
        through = sym through,
    )
}

/// Whether a function of this name, if no table has it, is one to know of.
pub fn is_for(name: &[u8]) -> bool {
    thunk::is_graph_function(name) || gpumem_abi::may_submit(name)
}

/// The thunk of this function; `None` when all are taken, which ends what depends on them.
pub fn of(real: usize, name: &[u8]) -> Option<usize> {
    let index = claim(&REAL, real);
    match index {
        Some(index) if gpumem_abi::may_submit(name) => {
            SUBMITS[index].get_or_init(|| Box::new(String::from_utf8_lossy(name).into_owned()));
        }
        Some(_) => {}
        None => went_past(name),
    }
    index.map(thunk_at)
}

/// The program was given a function of this name as it is.
pub fn went_past(name: &[u8]) {
    let text = String::from_utf8_lossy(name);
    if thunk::is_graph_function(name) {
        graphs::unknown_passed(&text);
    }
    if gpumem_abi::may_submit(name) {
        activity::uncountable(&text);
    }
}

fn thunk_at(index: usize) -> usize {
    // The function's own symbol may lie before what its first line aligns.
    (pool as *const () as usize).next_multiple_of(STRIDE) + index * STRIDE
}

/// The slot of this function, or the first free one, which is its own from then on.
fn claim(slots: &[AtomicUsize], real: usize) -> Option<usize> {
    slots.iter().position(|slot| match slot.compare_exchange(0, real, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == real,
    })
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
        // SAFETY: the thunks have the prototypes of what they lead to.
        unsafe {
            type Product = extern "C" fn(usize, usize, usize, usize, usize, usize, usize, f64) -> f64;
            let answer = std::mem::transmute::<usize, Product>(first)(1, 1, 1, 1, 1, 1, 2, 0.5);
            assert_eq!(answer, 17.5);
            assert_eq!(std::mem::transmute::<usize, extern "C" fn(usize, usize) -> usize>(second)(44, 2), 42);
        }
    }

    #[test]
    fn a_slot_is_for_one_function_and_for_good() {
        let slots = [const { AtomicUsize::new(0) }; 3];
        assert_eq!([7, 8, 7, 9, 8, 9].map(|real| claim(&slots, real)), [0, 1, 0, 2, 1, 2].map(Some));
        assert_eq!([10, 9].map(|real| claim(&slots, real)), [None, Some(2)]);
    }

    #[test]
    fn each_thunk_of_the_pool_passes_its_number() {
        for index in 0..SPARES {
            // SAFETY: the pool's own code, that many bytes of each thunk.
            let code = unsafe { *(thunk_at(index) as *const [u8; STRIDE]) };
            #[cfg(target_arch = "x86_64")]
            assert_eq!(code[4..10], [&[0x41, 0xbb][..], &(index as u32).to_le_bytes()].concat(), "mov r11d, {index}");
            #[cfg(target_arch = "aarch64")]
            assert_eq!(code[4..8], (0x5280_0009 | (index as u32) << 5).to_le_bytes(), "mov w9, {index}");
        }
    }
}
