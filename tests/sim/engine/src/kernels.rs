//! Host versions of kernels, by name: those in `kernels/`, the one with which the
//! conformance suite asks for its cluster, and one that waits for the host. A kernel with another name
//! does nothing, in its place in the order.
//!
//! # Safety rule
//! - **The kernels' ranges**: a kernel touches what [`ranges`] and [`listed`] list for it and nothing else. `work::perform` has
//!   found all of that mapped just before it runs the kernel.

use crate::node::{Kernel, attr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Runs a kernel; the function maps device addresses.
pub type Native = fn(&Kernel, fn(u64) -> u64);

fn u64_at(p: &[u8], off: usize) -> u64 {
    p.get(off..off + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
}

fn u32_at(p: &[u8], off: usize) -> u32 {
    p.get(off..off + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
}

/// The memory that a kernel reads or writes: address and bytes.
pub fn ranges(name: &str, p: &[u8]) -> Vec<(u64, u64)> {
    let words = |ptr: usize, n: usize| (u64_at(p, ptr), u64_at(p, n).saturating_mul(4));
    match name {
        "gpumem_fill" => vec![words(0, 8)],
        "gpumem_verify" => vec![words(0, 8), (u64_at(p, 24), 8)],
        "gpumem_scale" => vec![words(0, 16), words(8, 16)],
        "gpumem_spin" if u64_at(p, 8) != 0 => vec![(u64_at(p, 8), 4)],
        "gpumem_guard_verify" => vec![(u64_at(p, 0), u64_at(p, 8)), (u64_at(p, 32), chunks(p).saturating_mul(24))],
        "gpumem_scan" => {
            let room = SCAN_NUMBERS + SCAN_ROOM * 16;
            vec![(u64_at(p, 0), u64_at(p, 8).saturating_mul(16)), (u64_at(p, 16), room), (u64_at(p, 24), 4)]
        }
        "cluster_size" | "polls_host" => vec![(u64_at(p, 0), 4)],
        _ => Vec::new(),
    }
}

/// Further memory that a kernel reads. A list in the memory of its [`ranges`] names it when the kernel runs.
///
/// # Safety
/// All of its ranges are mapped.
pub unsafe fn listed(name: &str, p: &[u8], host: fn(u64) -> u64) -> Vec<(u64, u64)> {
    if name != "gpumem_scan" {
        return Vec::new();
    }
    // SAFETY: our caller vouches for the list, which is among the kernel's ranges.
    let pieces = unsafe { pieces(p, host) };
    pieces.map(|[at, words]| (at, words.saturating_mul(8))).collect()
}

pub fn native(name: &str) -> Option<Native> {
    match name {
        "gpumem_fill" => Some(fill),
        "gpumem_verify" => Some(verify),
        "gpumem_scale" => Some(scale),
        "gpumem_spin" => Some(spin),
        "gpumem_guard_verify" => Some(guard_verify),
        "gpumem_scan" => Some(scan),
        "cluster_size" => Some(cluster_size),
        "polls_host" => Some(polls_host),
        _ => None,
    }
}

// Words are read and written volatile: another stream may race on purpose.

fn fill(k: &Kernel, host: fn(u64) -> u64) {
    let p = &k.params;
    let (at, n, value) = (host(u64_at(p, 0)) as *mut u32, u64_at(p, 8), u32_at(p, 16));
    for i in 0..n as usize {
        // SAFETY: by the rule of the kernels' ranges all `n` words from `at` are mapped. A real
        // kernel writes through the same plain addresses.
        unsafe { at.add(i).write_volatile(value) }
    }
}

fn verify(k: &Kernel, host: fn(u64) -> u64) {
    let p = &k.params;
    let (at, n, value) = (host(u64_at(p, 0)) as *const u32, u64_at(p, 8), u32_at(p, 16));
    // SAFETY: by the rule of the kernels' ranges all `n` words from `at` are mapped.
    let wrong = (0..n as usize).filter(|i| unsafe { at.add(*i).read_volatile() } != value).count();
    let counter = host(u64_at(p, 24)) as *const AtomicU64;
    // SAFETY: by the rule of the kernels' ranges the counter is mapped. Kernels of the device get
    // it aligned to 8 bytes, and the simulator's programs keep to that.
    unsafe { (*counter).fetch_add(wrong as u64, Relaxed) };
}

fn scale(k: &Kernel, host: fn(u64) -> u64) {
    let p = &k.params;
    let (dst, src) = (host(u64_at(p, 0)) as *mut u32, host(u64_at(p, 8)) as *const u32);
    let (n, factor) = (u64_at(p, 16), u32_at(p, 24));
    for i in 0..n as usize {
        // SAFETY: by the rule of the kernels' ranges `n` words are mapped from `dst` and from
        // `src`.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile().wrapping_mul(factor)) }
    }
}

fn spin(k: &Kernel, host: fn(u64) -> u64) {
    let p = &k.params;
    // Sleeping keeps the two cores of a test machine for others.
    std::thread::sleep(Duration::from_nanos(u64_at(p, 0).min(2_000_000_000)));
    if u64_at(p, 8) != 0 {
        // SAFETY: not 0, and by the rule of the kernels' ranges the word there is mapped.
        unsafe { (host(u64_at(p, 8)) as *mut u32).write_volatile(1) }
    }
}

/// Runs until a word of host memory is set, or for longer than any test takes.
fn polls_host(k: &Kernel, host: fn(u64) -> u64) {
    let word = host(u64_at(&k.params, 0)) as *const AtomicU32;
    let start = Instant::now();
    // SAFETY: by the rule of the kernels' ranges the word is mapped. The simulator's programs ask for it aligned.
    while unsafe { (*word).load(Acquire) } == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Chunks of `gpumem_guard_verify`: one for each block of its launch.
fn chunks(p: &[u8]) -> u64 {
    u64_at(p, 8).div_ceil(u64_at(p, 16).max(1))
}

/// The bytes that are not `value`, counted from `from`: the first place, the place behind the last, and their number.
fn others(bytes: &[u8], from: u64, value: u8) -> [u64; 3] {
    // Nearly always all bytes are equal. That is found at the speed of a comparison: each byte equals the one before it.
    let (Some(&first), Some(last)) = (bytes.first(), bytes.len().checked_sub(1)) else { return [u64::MAX, 0, 0] };
    if first == value && bytes[1..] == bytes[..last] {
        return [u64::MAX, 0, 0];
    }
    let wrong = (from..).zip(bytes).filter(|&(_, &byte)| byte != value).map(|(at, _)| at);
    wrong.fold([u64::MAX, 0, 0], |[first, _, count], at| [first.min(at), at + 1, count + 1])
}

fn guard_verify(k: &Kernel, host: fn(u64) -> u64) {
    let p = &k.params;
    let (at, bytes, chunk) = (host(u64_at(p, 0)) as *const u8, u64_at(p, 8), u64_at(p, 16));
    let (value, answers) = (u32_at(p, 24) as u8, host(u64_at(p, 32)) as *mut [u64; 3]);
    for index in 0..chunks(p) {
        let (from, to) = (index * chunk, bytes.min((index + 1) * chunk));
        let mut read = vec![0; (to - from) as usize];
        // SAFETY: by the rule of the kernels' ranges all bytes of the range are mapped, and an answer for each chunk is.
        unsafe {
            at.add(from as usize).copy_to_nonoverlapping(read.as_mut_ptr(), read.len());
            answers.add(index as usize).write_volatile(others(&read, from, value));
        }
    }
}

/// The two numbers in front of the words in the answers of `gpumem_scan`.
const SCAN_NUMBERS: u64 = 16;
/// The number of words, each with its place, for which the shim has room. The shim gives it to the kernel.
const SCAN_ROOM: u64 = 61439;

/// Returns the start of each piece of `gpumem_scan`, and the number of its words.
///
/// # Safety
/// The kernel's list is mapped until the last piece was taken.
unsafe fn pieces(p: &[u8], host: fn(u64) -> u64) -> impl Iterator<Item = [u64; 2]> {
    let (list, count) = (host(u64_at(p, 0)) as *const [u64; 2], u64_at(p, 8));
    // SAFETY: our caller vouches for the list.
    (0..count as usize).map(move |index| unsafe { list.add(index).read_volatile() })
}

/// As the kernel of kernels/scan.cu: whether a word lies behind `low`, by less than `span`, on a page of 2 MiB that has a bit.
fn passes(word: u64, low: u64, span: u64, page_has_bit: impl Fn(u64) -> bool) -> bool {
    word.wrapping_sub(low) < span && page_has_bit(word >> 21)
}

fn scan(k: &Kernel, host: fn(u64) -> u64) {
    let p = &k.params;
    let (answers, cancel) = (host(u64_at(p, 16)) as *mut u64, host(u64_at(p, 24)) as *const u32);
    // The launch's number is at 32. No other part of the simulated launch needs it.
    let (low, span) = (u64_at(p, 40), u64_at(p, 48));
    let table = p.get(56..).unwrap_or_default();
    let bits = (table.len() as u64 * 8).max(1);
    let has_bit = |page: u64| u32_at(table, (page % bits / 32 * 4) as usize) >> (page % 32) & 1 != 0;
    // SAFETY: by the rule of the kernels' ranges the list is mapped.
    for [piece, words] in unsafe { pieces(p, host) } {
        // SAFETY: by the rule of the kernels' ranges the word that ends it is mapped.
        if unsafe { cancel.read_volatile() } != 0 {
            return;
        }
        let at = host(piece) as *const u64;
        for index in 0..words {
            // SAFETY: by the rule of the kernels' ranges all words are mapped, and the answers with as many as they say.
            unsafe {
                let word = at.add(index as usize).read_volatile();
                if passes(word, low, span, has_bit) {
                    let (count, room) = (answers.read_volatile(), answers.add(1).read_volatile());
                    answers.write_volatile(count + 1);
                    if count < room.min(SCAN_ROOM) {
                        answers
                            .add(2 + 2 * count as usize)
                            .cast::<[u64; 2]>()
                            .write_volatile([piece + index * 8, word]);
                    }
                }
            }
        }
    }
}

/// Writes how many blocks wide the cluster is; 1 without clusters.
fn cluster_size(k: &Kernel, host: fn(u64) -> u64) {
    let size = k.attrs.get(&attr::CLUSTER).map_or(0, |v| u32_at(v, 0)).max(1);
    // SAFETY: by the rule of the kernels' ranges the one word that this kernel writes is mapped.
    unsafe { (host(u64_at(&k.params, 0)) as *mut u32).write_volatile(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel of kernels/scan.cu: each word that lies on a page with a bit, within the range, and no other.
    #[test]
    fn each_word_that_may_be_an_address_is_found() {
        let (low, span, page) = (0x7f00_0000_0000_u64, 64_u64 << 20, 0x7f00_0000_0000_u64 >> 21);
        let bits = 16384;
        let has_bit = |of: u64| of % bits == (page + 3) % bits;
        for (word, is_found) in [
            (low, false),
            (low + (6 << 20), true),
            (low + (8 << 20) - 1, true),
            (low + (8 << 20), false),
            (low + (6 << 20) + (bits << 21), false),
            (low.wrapping_sub(1), false),
            (0, false),
            (u64::MAX, false),
        ] {
            assert_eq!(passes(word, low, span, has_bit), is_found, "{word:#x}");
        }
    }

    /// As the kernel of kernels/guard.cu: each byte of a chunk is looked at, wherever it lies.
    #[test]
    fn each_byte_that_is_another_is_found() {
        assert_eq!(others(&[], 5, 7), [u64::MAX, 0, 0]);
        for len in 1..70 {
            let mut bytes = vec![7; len];
            assert_eq!(others(&bytes, 100, 7), [u64::MAX, 0, 0], "{len}");
            for at in 0..len {
                bytes[at] = 8;
                assert_eq!(others(&bytes, 100, 7), [100 + at as u64, 101 + at as u64, 1], "{len} {at}");
                bytes[at] = 7;
            }
            assert_eq!(others(&bytes, 100, 8), [100, 100 + len as u64, len as u64], "{len}");
        }
    }
}
