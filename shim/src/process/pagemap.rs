//! Asks the kernel which pages of private memory hold what the process wrote, without a look at each page
//! (`PAGEMAP_SCAN`, since Linux 6.7). For a terabyte of unwritten memory, reading the entries of `/proc/self/pagemap`
//! alone takes ten seconds.

use std::ops::Range;

/// Ranges that the kernel reports at a time.
const REGIONS: usize = 256;

/// From `linux/fs.h`: a page of a file, a present page, a swapped page; and the call.
const OF_FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

#[derive(Default)]
#[repr(C)]
struct Asked {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// Address up to which the kernel scanned.
    walked: u64,
    found: u64,
    room: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// Returns ranges of pages that are present or swapped out and do not belong to a file, at most `most_pages` pages, and
/// the address up to which the answer holds. `map` is `/proc/self/pagemap`. `None`: the kernel does not tell.
pub(super) fn scan(map: libc::c_int, range: Range<u64>, most_pages: u64) -> Option<(Vec<Range<u64>>, u64)> {
    let mut found = [[0_u64; 3]; REGIONS];
    let mut asked = Asked {
        size: size_of::<Asked>() as u64,
        start: range.start,
        end: range.end,
        found: found.as_mut_ptr() as u64,
        room: REGIONS as u64,
        most_pages,
        inverted: OF_FILE,
        all_of: OF_FILE,
        any_of: PRESENT | SWAPPED,
        returned: PRESENT | SWAPPED,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes `asked`, which is as long as it says, and writes as many of `found` as it is
    // told there is room for. Our caller has just looked that the descriptor still is ours.
    let told = unsafe { libc::ioctl(map, PAGEMAP_SCAN, &raw mut asked) };
    let told = usize::try_from(told).ok().filter(|&told| told <= REGIONS && asked.walked > range.start)?;
    Some((found[..told].iter().map(|&[start, end, _]| start..end).collect(), asked.walked.min(range.end)))
}

#[cfg(test)]
mod tests {
    use super::super::page::page_bytes;
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// The kernel skips a terabyte of unwritten memory and reports each written page. No page comes into being.
    #[test]
    fn what_was_written_of_a_vast_mapping_is_told() {
        const BYTES: u64 = 1 << 40;
        let Ok(map) = File::open("/proc/self/pagemap") else { return };
        let page = page_bytes();
        // SAFETY: new memory, of which nothing is in use; it is written below where it begins and at other pages of it.
        let start = unsafe {
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), BYTES as usize, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "room for a terabyte");
        // SAFETY: the mapping is this test's.
        unsafe { libc::madvise(start, BYTES as usize, libc::MADV_NOHUGEPAGE) };
        let start = start as u64;
        let written = [0, 5, 6, (BYTES >> 13) + 3, (BYTES / page) - 1].map(|at| start + at * page);
        // SAFETY: these pages lie in the mapping.
        written.iter().for_each(|&at| unsafe { (at as *mut u8).write_volatile(1) });
        let all = |most: u64| {
            let (mut at, mut all) = (start, Vec::new());
            while at < start + BYTES {
                let (some, next) = scan(map.as_raw_fd(), at..start + BYTES, most)?;
                all.extend(some.into_iter().flat_map(|range| range.step_by(page as usize)));
                at = next;
            }
            Some(all)
        };
        // Kernels before 6.7 do not tell, and some machines forbid the call.
        if let Some(told) = all(BYTES / page) {
            assert_eq!(told, written);
            assert_eq!(all(1).as_deref(), Some(&written[..]), "one page at a time");
        }
        // SAFETY: the mapping is this test's, and nothing refers to it any more.
        unsafe { libc::munmap(start as *mut _, BYTES as usize) };
    }
}
