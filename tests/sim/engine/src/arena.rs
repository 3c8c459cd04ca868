//! Device addresses and what backs them.
//!
//! Device memory is one sparse memory file. The file is mapped readable at the
//! *shadow* range, where the simulated device works; the addresses that the
//! program sees lie a constant distance away and have no access, so that a
//! host that follows a device pointer faults as it would on a real one.
//! Freeing punches the pages out: memory comes back zeroed (as measured on an
//! H200), and another process can map the file for IPC.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// The unit in which the device gives out memory: a request of 2 MiB + 1 takes 4 MiB.
/// One below 2 MiB goes into the first block with room for it, also one of 1.5 MiB beside one of 0.5 MiB
/// (measured on an H200, driver 580).
pub const BLOCK: u64 = 2 << 20;
const SMALL_STEP: u64 = 512;
const PAGE: u64 = 4096;

pub struct Arena {
    base: u64,
    shadow: u64,
    size: u64,
    pub fd: i32,
    free: BTreeMap<u64, u64>,
    small: BTreeMap<u64, SmallBlock>,
}

struct SmallBlock {
    device: u32,
    free: BTreeMap<u64, u64>,
    live: u32,
}

fn map(at: u64, len: u64, prot: i32, flags: i32, fd: i32, off: u64) -> Result<u64> {
    // SAFETY: MAP_FIXED is passed only with an `at` inside a range that this arena reserved, so no
    // other mapping is replaced. An `at` of 0 leaves the choice to the kernel.
    let p = unsafe { libc::mmap(at as *mut _, len as usize, prot, flags, fd, off as i64) };
    if p == libc::MAP_FAILED { Err(Error::OPERATING_SYSTEM) } else { Ok(p as u64) }
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const NONE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const FILE: i32 = libc::MAP_SHARED | libc::MAP_NORESERVE;

/// Gives the file this length. A real device's memory is not a file, so the process's limit for files does not apply.
fn grown(fd: i32, size: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `fd` is the arena's own memfd, and the two limits are locals.
    unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
        let none = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none);
        let grown = libc::ftruncate(fd, size as i64) == 0;
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        grown
    }
}

impl Arena {
    /// Reserves `size` bytes of addresses, a multiple of [`BLOCK`].
    pub fn new(size: u64) -> Result<Arena> {
        // The name is that of mapped device memory, so that nobody takes it for the host's.
        // SAFETY: the name is a literal that ends in NUL. The descriptor that comes back is the
        // arena's alone.
        let fd = unsafe { libc::memfd_create(c"/dev/nvidia-simulated".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 || !grown(fd, size) {
            return Err(Error::OPERATING_SYSTEM);
        }
        let raw = map(0, size + BLOCK, libc::PROT_NONE, NONE, -1, 0)?;
        let base = raw.next_multiple_of(BLOCK);
        let raw = map(0, size + BLOCK, libc::PROT_NONE, NONE, -1, 0)?;
        let shadow = raw.next_multiple_of(BLOCK);
        map(shadow, size, RW, FILE | libc::MAP_FIXED, fd, 0)?;
        Ok(Arena { base, shadow, size, fd, free: BTreeMap::from([(0, size)]), small: BTreeMap::new() })
    }

    pub fn contains(&self, addr: u64) -> bool {
        addr >= self.base && addr < self.base + self.size
    }

    /// The host's address of the memory that the device sees at `addr`.
    pub fn host_address(&self, addr: u64) -> u64 {
        if self.contains(addr) { addr - self.base + self.shadow } else { addr }
    }

    /// The file offset of a device address.
    pub fn offset(&self, addr: u64) -> u64 {
        addr - self.base
    }

    /// Returns the bytes that the device would be charged for `size` more bytes.
    pub fn cost(&self, device: u32, size: u64) -> u64 {
        if size < BLOCK {
            let need = size.next_multiple_of(SMALL_STEP);
            let fits = |b: &SmallBlock| b.device == device && b.free.values().any(|l| *l >= need);
            if self.small.values().any(fits) { 0 } else { BLOCK }
        } else {
            size.next_multiple_of(BLOCK)
        }
    }

    /// Gives out `size` bytes; lowest address that fits.
    pub fn take(&mut self, device: u32, size: u64) -> Result<u64> {
        if size >= BLOCK {
            return self.take_blocks(size.next_multiple_of(BLOCK), BLOCK);
        }
        let need = size.next_multiple_of(SMALL_STEP);
        for (block, b) in self.small.iter_mut().filter(|(_, b)| b.device == device) {
            if let Some(off) = carve(&mut b.free, need, SMALL_STEP) {
                b.live += 1;
                return Ok(self.base + block + off);
            }
        }
        let addr = self.take_blocks(BLOCK, BLOCK)?;
        let free = BTreeMap::from([(need, BLOCK - need)]);
        self.small.insert(addr - self.base, SmallBlock { device, free, live: 1 });
        Ok(addr)
    }

    /// Takes back what [`Arena::take`] gave; returns what the device gets back.
    pub fn give(&mut self, addr: u64, size: u64) -> u64 {
        let off = addr - self.base;
        if size >= BLOCK {
            let span = size.next_multiple_of(BLOCK);
            self.give_blocks(addr, span);
            return span;
        }
        let need = size.next_multiple_of(SMALL_STEP);
        self.zero(addr, need);
        let block = off / BLOCK * BLOCK;
        let Some(b) = self.small.get_mut(&block) else {
            return 0;
        };
        release(&mut b.free, off - block, need);
        b.live -= 1;
        if b.live > 0 {
            return 0;
        }
        self.small.remove(&block);
        self.give_blocks(self.base + block, BLOCK);
        BLOCK
    }

    /// Gives out addresses (and the file's pages under them) without charge.
    pub fn take_blocks(&mut self, span: u64, align: u64) -> Result<u64> {
        let off = carve(&mut self.free, span, align).ok_or(Error::OUT_OF_MEMORY)?;
        Ok(self.base + off)
    }

    /// Takes blocks at a given address, if they are free.
    pub fn take_at(&mut self, addr: u64, span: u64) -> Option<u64> {
        if !self.contains(addr) || !addr.is_multiple_of(BLOCK) {
            return None;
        }
        let want = addr - self.base;
        let (&off, &len) = self.free.range(..=want).next_back()?;
        if off + len < want + span {
            return None;
        }
        self.free.remove(&off);
        if want > off {
            self.free.insert(off, want - off);
        }
        if off + len > want + span {
            self.free.insert(want + span, off + len - want - span);
        }
        Some(addr)
    }

    pub fn give_blocks(&mut self, addr: u64, span: u64) {
        self.zero(addr, span);
        release(&mut self.free, addr - self.base, span);
    }

    fn zero(&self, addr: u64, len: u64) {
        let (from, to) = (self.offset(addr), self.offset(addr) + len);
        let (first, last) = (from.next_multiple_of(PAGE), to / PAGE * PAGE);
        let wipe = |a: u64, b: u64| {
            // SAFETY: a and b are offsets of the arena, so [a, b) lies inside the shadow mapping,
            // which `new` made writable and never unmaps. The caller holds the machine's lock.
            unsafe { std::ptr::write_bytes((self.shadow + a) as *mut u8, 0, (b - a) as usize) }
        };
        if first >= last {
            return wipe(from, to);
        }
        wipe(from, first);
        wipe(last, to);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: fallocate takes numbers, and `fd` is the arena's own memfd. If it fails the pages
        // stay, and are wiped below.
        let r = unsafe { libc::fallocate(self.fd, mode, first as i64, (last - first) as i64) };
        if r != 0 {
            wipe(first, last);
        }
    }

    /// Inverts every other bit of `[addr, addr+len)`; done twice, it has no effect. Pages without storage stay so.
    pub fn scramble(&self, addr: u64, len: u64) {
        const OTHER_BITS: u64 = 0x5555_5555_5555_5555;
        let (mut at, to) = (self.offset(addr), self.offset(addr) + len);
        while at < to {
            // SAFETY: lseek takes numbers, and `fd` is the arena's own memfd, whose position nothing else uses.
            let (data, hole) = unsafe {
                let data = libc::lseek(self.fd, at as i64, libc::SEEK_DATA);
                (data, if data < 0 { data } else { libc::lseek(self.fd, data, libc::SEEK_HOLE) })
            };
            if data < 0 || data as u64 >= to {
                return;
            }
            let (from, until) = (data as u64, to.min(hole.max(data) as u64));
            // SAFETY: the offsets are the arena's, so these bytes lie inside the shadow mapping, which `new` made writable
            // and never unmaps. The caller holds the machine's lock, and no work is under way. Bytes and words may have
            // any bits.
            let (head, words, tail) = unsafe {
                std::slice::from_raw_parts_mut((self.shadow + from) as *mut u8, (until - from) as usize)
                    .align_to_mut::<u64>()
            };
            head.iter_mut().chain(tail).for_each(|byte| *byte ^= OTHER_BITS as u8);
            words.iter_mut().for_each(|word| *word ^= OTHER_BITS);
            at = until;
        }
    }

    /// Makes `[addr, addr+span)` readable by the host at its own address
    /// (managed memory), or takes that away again.
    pub fn host_access(&self, addr: u64, span: u64, on: bool) -> Result {
        let off = self.offset(addr);
        let fixed = libc::MAP_FIXED;
        let r = if on {
            map(addr, span, RW, FILE | fixed, self.fd, off)
        } else {
            map(addr, span, libc::PROT_NONE, NONE | fixed, -1, 0)
        };
        r.map(drop)
    }

    /// Lets the host use `[addr, addr+span)` as a view of the arena's pages from `off`.
    pub fn host_view(&self, addr: u64, span: u64, off: u64) -> Result {
        map(addr, span, RW, FILE | libc::MAP_FIXED, self.fd, off).map(drop)
    }

    /// Backs `[addr, addr+span)` by `fd` from `off` (VMM mappings, IPC), or by
    /// its own pages again if `fd` is negative.
    pub fn back(&self, addr: u64, span: u64, fd: i32, off: u64) -> Result {
        let at = self.host_address(addr);
        let (fd, off) = if fd < 0 { (self.fd, self.offset(addr)) } else { (fd, off) };
        map(at, span, RW, FILE | libc::MAP_FIXED, fd, off).map(drop)
    }
}

pub fn carve(free: &mut BTreeMap<u64, u64>, need: u64, align: u64) -> Option<u64> {
    let (off, len, at) = free.iter().find_map(|(&off, &len)| {
        let at = off.next_multiple_of(align);
        (at + need <= off + len).then_some((off, len, at))
    })?;
    free.remove(&off);
    if at > off {
        free.insert(off, at - off);
    }
    if off + len > at + need {
        free.insert(at + need, off + len - at - need);
    }
    Some(at)
}

pub fn release(free: &mut BTreeMap<u64, u64>, mut off: u64, mut len: u64) {
    if let Some((&before, &blen)) = free.range(..off).next_back()
        && before + blen == off
    {
        free.remove(&before);
        off = before;
        len += blen;
    }
    if let Some(after) = free.remove(&(off + len)) {
        len += after;
    }
    free.insert(off, len);
}

impl Arena {
    /// First address and length of the range from which the program gets memory.
    pub fn bounds(&self) -> (u64, u64) {
        (self.base, self.size)
    }
}
