//! Words of device memory that may be addresses of what is live, found by the kernel of `kernels/scan.cu`, which is launched
//! on the stream of a [`Reader`].

use super::driver;
use super::reader::{ROOM, Reader, load_kernel, ok};
use gpumem_abi::types::*;
use std::ffi::c_uint;
use std::ops::Range;
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel, as text with the NUL that the driver wants.
const PTX: &str = concat!(include_str!("../../../kernels/scan.ptx"), "\0");

/// Threads of a block, as the kernel has them; blocks of a launch at most, and bytes that a block reads at a time.
const THREADS: u32 = 256;
const BLOCKS: u64 = 4096;
const TILE: u64 = 1 << 20;
/// Bits of the table of pages, as the kernel has them.
const BITS: usize = 16384;
const PAGE: u64 = 2 << 20;
/// Numbers of launches: the kernel keeps that of the one which was told to end, at first none.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);
/// Words that there is room for: two are numbers.
pub(crate) const WORDS: usize = ROOM / 8 - 2;

/// What a word is compared with: the kernel's last parameter. An address passes that lies between the lowest and the highest
/// and whose page has a bit, as some page has whose number is the same modulo [`BITS`].
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Wanted {
    low: u64,
    span: u64,
    pages: [u32; BITS / 32],
}

impl Wanted {
    pub(crate) fn new(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let (mut low, mut high, mut pages) = (u64::MAX, 0, [0; BITS / 32]);
        for range in ranges.filter(|range| !range.is_empty()) {
            (low, high) = (low.min(range.start), high.max(range.end));
            for page in (range.start / PAGE..=(range.end - 1) / PAGE).take(BITS) {
                let bit = page as usize % BITS;
                pages[bit / 32] |= 1_u32 << (bit % 32);
            }
        }
        Self { low, span: high.saturating_sub(low), pages }
    }

    /// As the kernel has it.
    #[cfg(test)]
    fn passes(&self, word: u64) -> bool {
        let bit = (word / PAGE) as usize % BITS;
        word.wrapping_sub(self.low) < self.span && self.pages[bit / 32] >> (bit % 32) & 1 != 0
    }
}

/// Loads the kernel into the current context; its handle. Waits for work that runs there.
///
/// # Errors
/// The driver's: one without a compiler for PTX among them.
pub(crate) fn load() -> Result<usize, Status> {
    load_kernel(PTX, c"gpumem_scan")
}

/// Has memory read by the kernel, which [`load`] gave in this context: `words` of eight bytes.
///
/// # Errors
/// The driver's.
pub(crate) fn scan(reader: &mut Reader, kernel: usize, addr: u64, words: u64, wanted: &Wanted) -> Result<(), Status> {
    reader.numbers()[..2].copy_from_slice(&[0, WORDS as u64]);
    reader.cancel_word().store(0, Ordering::Release);
    let (mut addr, mut words, mut answers) = (addr, words, reader.numbers().as_ptr() as u64);
    let mut cancel = from_ref(reader.cancel_word()) as u64;
    let mut launch = LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let mut params: [Opaque; 6] = [
        from_mut(&mut addr).cast(),
        from_mut(&mut words).cast(),
        from_mut(&mut answers).cast(),
        from_mut(&mut cancel).cast(),
        from_mut(&mut launch).cast(),
        from_ref(wanted).cast_mut().cast(),
    ];
    let blocks = (words * 8).div_ceil(TILE).clamp(1, BLOCKS) as c_uint;
    let (kernel, params) = (kernel as Opaque, params.as_mut_ptr());
    // SAFETY: the kernel has these six parameters, the last of which is a `Wanted`, and its module is never unloaded.
    // It reads the range, which the pool keeps until this reader has come to it, and the word of `cancel`, and writes
    // answers, for which it is told how much room there is.
    ok(unsafe { driver::cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, reader.stream(), params, null_mut()) })
}

/// The words that passed, once all is done. `None`: there were more, or it was cancelled.
pub(crate) fn passed(reader: &mut Reader) -> Option<&[u64]> {
    if reader.cancel_word().load(Ordering::Acquire) != 0 {
        return None;
    }
    let numbers: &[u64] = reader.numbers();
    let count = usize::try_from(numbers[0]).ok()?;
    numbers[2..].get(..count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_passes_that_is_an_address_and_few_others_do() {
        let base = 0x7f00_0000_0000;
        let wanted = Wanted::new([base..base + 512, base + (64 << 20)..base + (70 << 20)].into_iter());
        for word in [base, base + 511, base + (64 << 20), base + (70 << 20) - 1] {
            assert!(wanted.passes(word), "{word:#x}");
        }
        for word in [0, base - 1, base + (32 << 20), base + (70 << 20), base + (1 << 40), u64::MAX] {
            assert!(!wanted.passes(word), "{word:#x}");
        }
        // What shares a page with an address passes, and is looked up.
        assert!(wanted.passes(base + 513));
        let none = Wanted::new(std::iter::empty());
        assert!(!none.passes(base) && !none.passes(0) && !none.passes(u64::MAX));
    }

    /// The kernel's numbers are these.
    #[test]
    fn the_kernel_has_the_same_numbers() {
        let source = include_str!("../../../kernels/scan.cu");
        let defines = [
            format!("#define THREADS {THREADS}\n"),
            format!("#define TILE {}\n", TILE / 16),
            format!("#define BITS {BITS}\n"),
            format!("#define PAGE_SHIFT {}\n", PAGE.trailing_zeros()),
        ];
        for define in defines {
            assert!(source.contains(&define), "{define}");
        }
        assert!(PTX.contains(&format!(".b8 gpumem_scan_param_5[{}]", size_of::<Wanted>())));
    }
}
