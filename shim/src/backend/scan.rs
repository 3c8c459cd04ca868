//! Finds words of device memory that may be addresses of live allocations, with the kernel of `kernels/scan.cu` on the
//! stream of a [`Reader`].

use super::answer::done;
use super::driver;
use super::reader::{ROOM, Reader, load_kernel};
use gpumem_abi::types::*;
use std::ffi::c_uint;
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel, as text with the NUL that the driver needs.
const PTX: &str = concat!(include_str!("../../../kernels/scan.ptx"), "\0");

/// Threads of a block, and words that a block reads, as in the kernel.
const THREADS: u32 = 256;
const TILE: u64 = (64 << 10) / 8;
/// Maximum pieces of a launch, and maximum launches under way at a time, as in the kernel.
pub(crate) const RANGES: usize = 4096;
pub(crate) const LISTS: usize = 2;
/// Maximum words of a piece: each piece has as many blocks of threads as the longest of its launch.
pub(crate) const PIECE: u64 = 16 * TILE;
/// A piece begins at a multiple of this.
pub(crate) const ALIGNED: u64 = 16;
/// Bytes of device memory for the lists.
pub(crate) const LIST_BYTES: u64 = (LISTS * RANGES * size_of::<Range>()) as u64;
/// Bits of the table of pages, as in the kernel.
const BITS: usize = 16384;
const PAGE: u64 = 2 << 20;
/// Numbers of launches. The kernel keeps the number of the launch that was told to end, at first none.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);
/// The list lies at the end of a reader's room, and answers before it, behind their two numbers.
const LIST: usize = ROOM - RANGES * size_of::<[u64; 2]>();
/// Maximum number of passing words.
pub(crate) const FOUND: usize = (LIST - size_of::<[u64; 2]>()) / size_of::<Found>();

/// A passing word: its address and its value.
pub(crate) type Found = [u64; 2];
/// A piece that is read: its start and its words.
pub(crate) type Range = [u64; 2];

/// The kernel as loaded into a context.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    function: usize,
    /// Its lists, in device memory.
    lists: DevicePtr,
}

/// Values that a word is compared with: the kernel's last parameter. A word passes if it lies between the lowest and
/// the highest address, and the bit of its page's number modulo [`BITS`] is set.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Wanted {
    low: u64,
    span: u64,
    pages: [u32; BITS / 32],
}

impl Wanted {
    pub(crate) fn new(ranges: impl Iterator<Item = std::ops::Range<u64>>) -> Self {
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

    /// Makes the same test as the kernel.
    #[cfg(test)]
    fn passes(&self, word: u64) -> bool {
        let bit = (word / PAGE) as usize % BITS;
        word.wrapping_sub(self.low) < self.span && self.pages[bit / 32] >> (bit % 32) & 1 != 0
    }
}

/// Loads the kernel into the current context. Waits for work that runs there.
///
/// # Errors
/// The driver's, for example that it has no compiler for PTX.
pub(crate) fn load() -> Result<Kernel, Status> {
    let (module, function) = load_kernel(PTX, c"gpumem_scan")?;
    let (mut lists, mut bytes) = (0, 0);
    // SAFETY: rule of answers: both are locals of the types that the row declares. The driver has just given the
    // module.
    unsafe { done(driver::cuModuleGetGlobal_v2(&mut lists, &mut bytes, module, c"gpumem_scan_ranges".as_ptr()))? };
    let is_as_large = bytes as u64 == LIST_BYTES;
    if is_as_large { Ok(Kernel { function: function as usize, lists }) } else { Err(SYMBOL_NOT_FOUND) }
}

/// Reads pieces of memory, at most [`RANGES`] of at most [`PIECE`] words, with the kernel that [`load`] gave in this
/// context. The reader has one of its [`LISTS`], which nothing else reads.
///
/// # Errors
/// The driver's.
pub(crate) fn scan(reader: &mut Reader, kernel: &Kernel, ranges: &[Range], wanted: &Wanted) -> Result<(), Status> {
    let ranges = &ranges[..ranges.len().min(RANGES)];
    let list = kernel.lists + (reader.list.unwrap_or(0) * RANGES * size_of::<Range>()) as u64;
    let numbers = reader.numbers();
    numbers[..2].copy_from_slice(&[0, FOUND as u64]);
    numbers[LIST / 8..][..ranges.len() * 2].copy_from_slice(ranges.as_flattened());
    let mut answers = numbers.as_ptr() as u64;
    reader.cancel_word().store(0, Ordering::Release);
    // SAFETY: the list is the kernel's, of which the pool gives each reader another one until its stream has nothing
    // left to do. The room has the pieces, as was just written.
    unsafe { reader.copy_in(list, LIST, size_of_val(ranges))? };
    let (mut list, mut count) = (list, ranges.len() as u64);
    let mut cancel = from_ref(reader.cancel_word()) as u64;
    let mut launch = LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let mut params: [Opaque; 6] = [
        from_mut(&mut list).cast(),
        from_mut(&mut count).cast(),
        from_mut(&mut answers).cast(),
        from_mut(&mut cancel).cast(),
        from_mut(&mut launch).cast(),
        from_ref(wanted).cast_mut().cast(),
    ];
    let tiles = ranges.iter().map(|&[_, words]| words.div_ceil(TILE)).max().unwrap_or(0).max(1) as c_uint;
    let (function, params) = (kernel.function as Opaque, params.as_mut_ptr());
    let (rows, stream) = (count.max(1) as c_uint, reader.stream());
    // SAFETY: the kernel has these six parameters, the last of which is a `Wanted`, and its module is never unloaded.
    // It reads the list and its pieces, which the pool keeps until this reader has come to them, and the word of
    // `cancel`, and writes answers, for which it is told how much room there is.
    done(unsafe { driver::cuLaunchKernel(function, tiles, rows, 1, THREADS, 1, 1, 0, stream, params, null_mut()) })
}

/// Returns the passing words, once all is done. `None`: there were more, or it was cancelled.
pub(crate) fn passed(reader: &mut Reader) -> Option<&[Found]> {
    if reader.cancel_word().load(Ordering::Acquire) != 0 {
        return None;
    }
    let numbers: &[u64] = &reader.numbers()[..LIST / 8];
    let count = usize::try_from(numbers[0]).ok()?;
    numbers[2..].as_chunks().0.get(..count)
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
        // A word that shares a page with an address passes, and is looked up.
        assert!(wanted.passes(base + 513));
        let none = Wanted::new(std::iter::empty());
        assert!(!none.passes(base) && !none.passes(0) && !none.passes(u64::MAX));
    }

    /// The kernel has these numbers.
    #[test]
    fn the_kernel_has_the_same_numbers() {
        let source = include_str!("../../../kernels/scan.cu");
        let defines = [
            format!("#define THREADS {THREADS}\n"),
            format!("#define TILE {}\n", TILE / 2),
            format!("#define UNROLL {}\n", TILE / 2 / u64::from(THREADS)),
            format!("#define RANGES {RANGES}\n"),
            format!("#define LISTS {LISTS}\n"),
            format!("#define BITS {BITS}\n"),
            format!("#define PAGE_SHIFT {}\n", PAGE.trailing_zeros()),
        ];
        for define in defines {
            assert!(source.contains(&define), "{define}");
        }
        assert!(PTX.contains(&format!(".b8 gpumem_scan_param_5[{}]", size_of::<Wanted>())));
        assert!(PTX.contains(&format!(".b8 gpumem_scan_ranges[{}]", LISTS * RANGES * size_of::<Range>())));
    }
}
