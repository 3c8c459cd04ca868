//! Virtual memory management.

use crate::abi::{H, In, Out};
use crate::structs::{AccessDesc, AllocationProp, Location};
use gpumem_sim_engine::{Error, lock, vmm};

hip! {
    Init hipMemAddressReserve [] (c, out: Out<u64>, bytes: usize, align: usize, hint: u64, flags: u64) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(vmm::reserve(bytes as u64, align as u64, hint)?)
    }
    Init hipMemAddressFree [] (c, ptr: u64, bytes: usize) { vmm::address_free(ptr, bytes as u64) }
    Init hipMemCreate [] (c, out: Out<H>, bytes: usize, prop: In<AllocationProp>, flags: u64) {
        out.need()?;
        let p = prop.get()?;
        if flags != 0 || p.alloc_type != 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(vmm::create(p.location, bytes as u64, p.handle_types)?)
    }
    Init hipMemRelease [] (c, h: H) { vmm::release(h) }
    Init hipMemMap [] (c, ptr: u64, bytes: usize, offset: usize, h: H, flags: u64) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        vmm::map(ptr, bytes as u64, offset as u64, h)
    }
    Init hipMemUnmap [] (c, ptr: u64, bytes: usize) { vmm::unmap(ptr, bytes as u64) }
    Init hipMemSetAccess [] (c, ptr: u64, bytes: usize, list: In<AccessDesc>, n: usize) {
        for desc in list.list(n)? {
            match desc.location.kind {
                1 => {}
                2 | 3 => {
                    vmm::set_host_access(ptr, bytes as u64)?;
                    continue;
                }
                _ => return Err(Error::INVALID_VALUE),
            }
            crate::devices::check(desc.location.id)?;
            vmm::set_access(ptr, bytes as u64, matches!(desc.flags, 1 | 3))?;
        }
        Ok(())
    }
    Init hipMemGetAccess [] (c, out: Out<u64>, at: In<Location>, ptr: u64) {
        at.get()?;
        let m = lock();
        let (_, a) = m.find(ptr).ok_or(Error::INVALID_VALUE)?;
        out.set(if a.accessible { 3 } else { 0 })
    }
    Init hipMemGetAllocationGranularity [] (c, out: Out<usize>, prop: In<AllocationProp>, option: u32) {
        prop.get()?;
        if option > 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(vmm::GRANULARITY as usize)
    }
    Init hipMemRetainAllocationHandle [] (c, out: Out<H>, ptr: u64) {
        out.need()?;
        out.set(vmm::retain_at(ptr)?)
    }
    Init hipMemExportToShareableHandle [] (c, out: Out<i32>, h: H, kind: u32, flags: u64) {
        if kind != 1 || flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(vmm::export(h)?)
    }
    /// The descriptor itself is passed in the pointer's place.
    Init hipMemImportFromShareableHandle [] (c, out: Out<H>, fd: usize, kind: u32) {
        if kind != 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(vmm::import(fd as i32)?)
    }
}
