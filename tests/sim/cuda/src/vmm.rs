//! Virtual memory management.

use crate::abi::{H, In, Out};
use crate::structs::{AccessDesc, AllocationProp, Location};
use gpumem_sim_engine::{Error, lock, vmm};

cu! {
    Init cuMemAddressReserve [cuMemAddressReserve 10020] []
    (c, out: Out<u64>, size: usize, align: usize, hint: u64, flags: u64) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(vmm::reserve(size as u64, align as u64, hint)?)
    }
    Init cuMemAddressFree [cuMemAddressFree 10020] [] (c, ptr: u64, size: usize) { vmm::address_free(ptr, size as u64) }
    Init cuMemCreate [cuMemCreate 10020] [] (c, out: Out<H>, size: usize, prop: In<AllocationProp>, flags: u64) {
        out.need()?;
        let p = prop.get()?;
        // "This thread's node" is no place for physical memory (driver 580).
        if flags != 0 || p.alloc_type != 1 || p.location.kind == 4 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(vmm::create(p.location, size as u64, p.handle_types)?)
    }
    Init cuMemRelease [cuMemRelease 10020] [] (c, h: H) { vmm::release(h) }
    Init cuMemMap [cuMemMap 10020] [] (c, ptr: u64, size: usize, offset: usize, h: H, flags: u64) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        vmm::map(ptr, size as u64, offset as u64, h)
    }
    Init cuMemUnmap [cuMemUnmap 10020] [] (c, ptr: u64, size: usize) { vmm::unmap(ptr, size as u64) }
    Init cuMemSetAccess [cuMemSetAccess 10020] [] (c, ptr: u64, size: usize, list: In<AccessDesc>, n: usize) {
        for desc in list.list(n)? {
            match desc.location.kind {
                1 => {}
                2 | 3 => {
                    vmm::set_host_access(ptr, size as u64)?;
                    continue;
                }
                _ => return Err(Error::INVALID_VALUE),
            }
            crate::devices::check(desc.location.id)?;
            vmm::set_access(ptr, size as u64, desc.flags == 3 || desc.flags == 1)?;
        }
        Ok(())
    }
    Init cuMemGetAccess [cuMemGetAccess 10020] [] (c, out: Out<u64>, at: In<Location>, ptr: u64) {
        at.get()?;
        let m = lock();
        let (_, a) = m.find(ptr).ok_or(Error::INVALID_VALUE)?;
        out.set(if a.accessible { 3 } else { 0 })
    }
    Init cuMemGetAllocationGranularity [cuMemGetAllocationGranularity 10020] []
    (c, out: Out<usize>, prop: In<AllocationProp>, option: u32) {
        prop.get()?;
        if option > 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(vmm::GRANULARITY as usize)
    }
    Init cuMemGetAllocationPropertiesFromHandle [cuMemGetAllocationPropertiesFromHandle 10020] []
    (c, out: Out<AllocationProp>, h: H) {
        let m = lock();
        let p = m.physical.get(&h).ok_or(Error::INVALID_VALUE)?;
        let location = p.place.location();
        let handle_types = p.handle_types;
        out.set(AllocationProp { alloc_type: 1, handle_types, location, security: 0, flags: [0; 8] })
    }
    Init cuMemRetainAllocationHandle [cuMemRetainAllocationHandle 11000] [] (c, out: Out<H>, ptr: u64) {
        out.need()?;
        out.set(vmm::retain_at(ptr)?)
    }
    Init cuMemExportToShareableHandle [cuMemExportToShareableHandle 10020] []
    (c, out: Out<i32>, h: H, kind: u32, flags: u64) {
        if kind != 1 || flags != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        out.need()?;
        out.set(vmm::export(h)?)
    }
    /// The descriptor itself is passed in the pointer's place.
    Init cuMemImportFromShareableHandle [cuMemImportFromShareableHandle 10020] [] (c, out: Out<H>, fd: usize, kind: u32) {
        if kind != 1 {
            return Err(Error::NOT_SUPPORTED);
        }
        out.need()?;
        out.set(vmm::import(fd as i32)?)
    }
}
