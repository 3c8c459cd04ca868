//! Reads memory that may not be mapped, without a fault.

use super::cancel::Uncancelled;
use super::wiped::process_id;
use std::mem::{MaybeUninit, size_of};

/// Copies from `address` and returns the bytes that could be read. An unmapped address causes no fault.
///
/// The kernel does the reading (process_vm_readv on ourselves, 0.3 µs on a small VM), or /proc/self/mem if a sandbox
/// refuses that. May change errno.
pub(crate) fn read_memory(address: u64, to: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: to.len() };
    // SAFETY: `local` describes `to`, which is borrowed mutably. The kernel checks `remote`, and
    // answers with an error for what is not mapped.
    let mut read = unsafe { libc::process_vm_readv(process_id(), &local, 1, &remote, 1, 0) };
    if read < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
        read = read_proc_mem(address, to);
    }
    let read = usize::try_from(read).unwrap_or(0).min(to.len());
    // SAFETY: the kernel has written the first `read` bytes, and `read` is at most the length of
    // `to`.
    unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), read) }
}

/// As [`read_memory`], for memory that the process itself may not read now (`PROT_NONE`), as a debugger would read it.
pub(crate) fn read_by_force(address: u64, to: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    let read = usize::try_from(read_proc_mem(address, to)).unwrap_or(0).min(to.len());
    // SAFETY: the kernel has written the first `read` bytes, and `read` is at most the length of
    // `to`.
    unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), read) }
}

/// Appends copies of several pieces of memory, each an address and a length, up to the first piece that is not mapped.
/// Returns the number of bytes copied. Takes one system call for 1024 pieces. May change errno.
pub(crate) fn read_pieces(pieces: &[libc::iovec], to: &mut Vec<u8>) -> usize {
    /// The kernel's UIO_MAXIOV.
    const AT_ONCE: usize = 1024;
    let begin = to.len();
    for from in pieces.chunks(AT_ONCE) {
        let wanted = from.iter().map(|piece| piece.iov_len).sum();
        to.reserve(wanted);
        let read = gather(from, &mut to.spare_capacity_mut()[..wanted]);
        // SAFETY: the kernel has written the first `read` bytes behind those that were there.
        unsafe { to.set_len(to.len() + read) };
        if read < wanted {
            break;
        }
    }
    to.len() - begin
}

/// Copies pieces one behind the other, up to the first unmapped byte; returns the number of bytes copied.
///
/// The pieces are the caller's side of process_vm_writev, and the copy is the other process's side, which is also this
/// process. The kernel looks up each page of the other side in its tables, and copies the caller's side like any call's
/// arguments: sixty pieces on sixty pages take 2.5 µs this way and 13 µs by process_vm_readv (a small VM). The C
/// library's wrapper is not called: a sanitizer's version would look at the pieces itself.
fn gather(from: &[libc::iovec], to: &mut [MaybeUninit<u8>]) -> usize {
    let all = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let (pieces, number) = (from.as_ptr(), from.len());
    // SAFETY: `all` describes `to`, which is borrowed mutably, and `process_id` names the process that has this memory,
    // in a child of any kind of fork as well: no other memory is written. The kernel checks `from`, and ends at what is
    // not mapped.
    let mut read = unsafe {
        libc::syscall(libc::SYS_process_vm_writev, process_id(), pieces, number, &raw const all, 1_usize, 0_usize)
    };
    if read < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
        // SAFETY: as above, the other way around.
        read = unsafe { libc::process_vm_readv(process_id(), &all, 1, pieces, number as libc::c_ulong, 0) as _ };
    }
    usize::try_from(read).unwrap_or(0).min(to.len())
}

#[cold]
fn read_proc_mem(address: u64, to: &mut [MaybeUninit<u8>]) -> isize {
    let Ok(offset) = libc::off64_t::try_from(address) else { return -1 };
    let _uncancelled = Uncancelled::new();
    // SAFETY: the path is a literal that ends in NUL. `to` is borrowed mutably and its length is
    // passed. The descriptor is closed by this block alone.
    unsafe {
        let file = libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return -1;
        }
        let read = libc::pread64(file, to.as_mut_ptr().cast(), to.len(), offset);
        libc::close(file);
        read
    }
}

/// Reads the value at `address`, aligned or not. May change errno.
pub(crate) fn read_value<T: Plain>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` has as many bytes as a `T`. They are written as MaybeUninit, so none need be
    // initialised.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
    if read_memory(address, bytes).len() < size_of::<T>() {
        return None;
    }
    // SAFETY: `read_memory` has written every byte of `value`, and any bytes are a valid `Plain`.
    Some(unsafe { value.assume_init() })
}

/// Types for which any bytes are a valid value.
///
/// # Safety
/// An implementor promises that.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: any four bytes are a u32.
unsafe impl Plain for u32 {}
// SAFETY: any eight bytes are a u64.
unsafe impl Plain for u64 {}
// SAFETY: any bytes are an array of bytes.
unsafe impl<const N: usize> Plain for [u8; N] {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_read() {
        let there = [7_u64, 8];
        assert_eq!(read_value::<u64>(there.as_ptr() as u64 + 8), Some(8));
        assert_eq!(read_value::<u32>(there.as_ptr() as u64 + 1), Some(0), "unaligned");
        assert_eq!([0, 64, u64::MAX - 3].map(read_value::<u64>), [None; 3]);
    }

    #[test]
    fn pieces_are_read_up_to_the_first_that_is_not_there() {
        let there: Vec<u8> = (0..200).collect();
        let at = there.as_ptr() as u64;
        let mut read = vec![9];
        let piece = |at: u64, len| libc::iovec { iov_base: at as *mut _, iov_len: len };
        let mut pieces: Vec<_> = (0..200).map(|byte| piece(at + byte, 1)).collect();
        assert_eq!(read_pieces(&pieces, &mut read), 200);
        assert_eq!((read[0], &read[1..]), (9, &there[..]));
        read.clear();
        pieces.truncate(3);
        pieces.extend([piece(64, 8), piece(at, 1)]);
        assert_eq!((read_pieces(&pieces, &mut read), read), (3, vec![0, 1, 2]));
    }

    #[test]
    fn proc_mem_serves_where_the_call_is_refused() {
        let value = 0x1122_3344_u32.to_ne_bytes();
        let mut read = [MaybeUninit::new(0); 4];
        assert_eq!(read_proc_mem(value.as_ptr() as u64, &mut read), 4);
        // SAFETY: all four bytes were initialised where `read` was made.
        assert_eq!(read.map(|byte| unsafe { byte.assume_init() }), value);
        assert!(read_proc_mem(8, &mut read) < 0);
    }

    /// A value of which only the first bytes can be read is not returned.
    #[test]
    fn what_is_cut_off_is_not_read() {
        // SAFETY: the mapping is private and anonymous, and the kernel chooses where it lies. The second page is
        // this test's, and nothing refers to it.
        let end = unsafe {
            let at =
                libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::munmap(at.add(4096), 4096), 0);
            at as u64 + 4096
        };
        assert_eq!((read_value::<u64>(end - 8), read_value::<u64>(end - 4)), (Some(0), None));
        // SAFETY: the first page is this test's, and nothing refers to it any more.
        assert_eq!(unsafe { libc::munmap((end - 4096) as *mut _, 4096) }, 0);
    }
}
