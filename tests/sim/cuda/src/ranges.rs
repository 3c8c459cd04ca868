//! Ranges of device memory as other drivers see them.

use crate::abi::Out;
use gpumem_sim_engine::{Error, lock};
use std::os::fd::IntoRawFd;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;
/// Bytes of a page of the host.
const PAGE: u64 = 4096;

cu! {
    /// A file descriptor that can be passed on and closed; what is mapped of it is not the device's memory.
    Ctx cuMemGetHandleForAddressRange [cuMemGetHandleForAddressRange 11070] []
    (c, out: Out<i32>, ptr: u64, size: usize, kind: u32, flags: u64) {
        out.need()?;
        let (size, whole) = (size as u64, |bytes: u64| bytes.is_multiple_of(PAGE));
        if kind != DMA_BUF || flags > 1 || size == 0 || !whole(ptr) || !whole(size) {
            return Err(Error::INVALID_VALUE);
        }
        let m = lock();
        let (base, allocation) = m.find(ptr).ok_or(Error::INVALID_VALUE)?;
        if size > base + allocation.size - ptr {
            return Err(Error::INVALID_VALUE);
        }
        let file = std::fs::File::open("/dev/null").map_err(|_| Error::INVALID_VALUE)?;
        out.set(file.into_raw_fd())
    }
}
