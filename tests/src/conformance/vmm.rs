//! Virtual memory management: reserve, create, map, and their order of ending.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys;
use gpumem_kernels::Words;

pub(super) const CHECKS: &[Check] = &[
    Check::documented("vmm.granularity", granularity),
    Check::documented("vmm.size_must_be_a_multiple", size_must_be_a_multiple),
    Check::documented("vmm.map_write_unmap", map_write_unmap),
    Check::measured("vmm.on_a_node_of_the_host", on_a_node_of_the_host),
    Check::documented("vmm.two_mappings_of_one_handle", two_mappings_of_one_handle),
    Check::documented("vmm.release_before_unmap", release_before_unmap),
    Check::documented("vmm.retain_by_address", retain_by_address),
    Check::measured("vmm.unmap_twice", unmap_twice),
    Check::documented("vmm.map_over_a_mapping", map_over_a_mapping),
    Check::documented("vmm.plain_free_of_a_mapping", plain_free_of_a_mapping),
];

fn properties(t: &Checker) -> sys::CUmemAllocationProp {
    // SAFETY: the struct holds numbers, pointers, and enums that have a member 0, so all zeroes is
    // a valid value.
    let mut p: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    p.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = t.gpu.device;
    p
}

fn grain(t: &Checker) -> Result<usize, Stop> {
    use sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as MINIMUM;
    let mut grain = 0;
    let got = cu!(cuMemGetAllocationGranularity(&mut grain, &properties(t), MINIMUM));
    ok("cuMemGetAllocationGranularity", got)?;
    Ok(grain)
}

/// A reserved range of some grains, unmapped and given back at the end.
struct Range {
    va: u64,
    grain: usize,
    grains: usize,
}

impl Range {
    fn reserve(t: &Checker, grains: usize) -> Result<Range, Stop> {
        let (grain, mut va) = (grain(t)?, 0);
        let got = cu!(cuMemAddressReserve(&mut va, grain * grains, 0, 0, 0));
        ok("cuMemAddressReserve", got)?;
        Ok(Range { va, grain, grains })
    }

    fn at(&self, i: usize) -> u64 {
        self.va + (i * self.grain) as u64
    }

    fn map(&self, t: &Checker, i: usize, handle: u64) -> Done {
        ok("cuMemMap", cu!(cuMemMap(self.at(i), self.grain, 0, handle, 0)))?;
        let access = sys::CUmemAccessDesc {
            location: properties(t).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        ok("cuMemSetAccess", cu!(cuMemSetAccess(self.at(i), self.grain, &access, 1)))
    }

    fn words(&self, i: usize) -> Result<Words, Stop> {
        // SAFETY: each check maps part `i` before it launches kernels on these words, and unmaps it
        // only when they have completed.
        Ok(unsafe { Words::from_raw(self.at(i), self.grain as u64 / 4) }?)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        cu!(cuCtxSynchronize());
        for i in 0..self.grains {
            cu!(cuMemUnmap(self.at(i), self.grain)); // also where nothing is mapped
        }
        cu!(cuMemAddressFree(self.va, self.grain * self.grains));
    }
}

fn create(t: &Checker, bytes: usize) -> Result<u64, Stop> {
    let mut handle = 0;
    ok("cuMemCreate", cu!(cuMemCreate(&mut handle, bytes, &properties(t), 0)))?;
    Ok(handle)
}

fn granularity(t: &mut Checker) -> Done {
    let grain = grain(t)?;
    t.yes(&format!("the granularity {grain} is a power of two"), grain.is_power_of_two());
    Ok(())
}

fn size_must_be_a_multiple(t: &mut Checker) -> Done {
    let (mut handle, bytes) = (42, grain(t)? + 1);
    t.eq("cuMemCreate", cu!(cuMemCreate(&mut handle, bytes, &properties(t), 0)), 1);
    t.eq("its out-parameter", handle, 42);
    Ok(())
}

fn map_write_unmap(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 2)?;
    let handle = create(t, range.grain)?;
    range.map(t, 1, handle)?;
    t.gpu.kernels.fill(Strm::NULL.k(), range.words(1)?, 5)?;
    t.eq("words not written", t.gpu.wrong_words(&Strm::NULL, range.words(1)?, 5)?, 0);
    t.eq("cuMemUnmap", cu!(cuMemUnmap(range.at(1), range.grain)), 0);
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    Ok(())
}

/// Physical memory of the host takes none of the device.
fn on_a_node_of_the_host(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 1)?;
    let mut prop = properties(t);
    (prop.location.type_, prop.location.id) = (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    let mut handle = 0;
    for (place, expected) in [
        (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 1),
        (sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
    ] {
        let prop = sys::CUmemAllocationProp { location: sys::CUmemLocation { type_: place, id: 0 }, ..prop };
        t.eq("cuMemCreate elsewhere on the host", cu!(cuMemCreate(&mut handle, range.grain, &prop, 0)), expected);
    }
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    ok("cuMemCreate", cu!(cuMemCreate(&mut handle, range.grain, &prop, 0)))?;
    range.map(t, 0, handle)?;
    t.gpu.kernels.fill(Strm::NULL.k(), range.words(0)?, 5)?;
    t.eq("words not written", t.gpu.wrong_words(&Strm::NULL, range.words(0)?, 5)?, 0);
    let mut kind = 0_u32;
    let id = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    ok("MEMORY_TYPE", cu!(cuPointerGetAttribute((&raw mut kind).cast(), id, range.at(0))))?;
    t.eq("its type", kind, 1);
    t.eq("cuMemUnmap", cu!(cuMemUnmap(range.at(0), range.grain)), 0);
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    Ok(())
}

fn two_mappings_of_one_handle(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 2)?;
    let handle = create(t, range.grain)?;
    range.map(t, 0, handle)?;
    range.map(t, 1, handle)?;
    t.gpu.kernels.fill(Strm::NULL.k(), range.words(0)?, 6)?;
    t.eq("words of the other view", t.gpu.wrong_words(&Strm::NULL, range.words(1)?, 6)?, 0);
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    Ok(())
}

/// Physical memory lives until its handle and its last mapping are gone.
fn release_before_unmap(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 1)?;
    let handle = create(t, range.grain)?;
    range.map(t, 0, handle)?;
    t.gpu.kernels.fill(Strm::NULL.k(), range.words(0)?, 7)?;
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    t.eq("words lost", t.gpu.wrong_words(&Strm::NULL, range.words(0)?, 7)?, 0);
    t.eq("cuMemUnmap", cu!(cuMemUnmap(range.va, range.grain)), 0);
    Ok(())
}

fn retain_by_address(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 1)?;
    let (handle, mut again) = (create(t, range.grain)?, 0);
    range.map(t, 0, handle)?;
    let address = (range.va + 99) as usize as *mut _;
    let got = cu!(cuMemRetainAllocationHandle(&mut again, address));
    ok("cuMemRetainAllocationHandle", got)?;
    t.eq("the handle", again, handle);
    t.eq("cuMemRelease", cu!(cuMemRelease(again)), 0);
    t.eq("cuMemRelease of the first reference", cu!(cuMemRelease(handle)), 0);
    Ok(())
}

fn unmap_twice(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 1)?;
    let handle = create(t, range.grain)?;
    range.map(t, 0, handle)?;
    t.eq("cuMemUnmap", cu!(cuMemUnmap(range.va, range.grain)), 0);
    t.eq("cuMemUnmap again", cu!(cuMemUnmap(range.va, range.grain)), 0);
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    Ok(())
}

fn map_over_a_mapping(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 1)?;
    let (one, two) = (create(t, range.grain)?, create(t, range.grain)?);
    range.map(t, 0, one)?;
    let over = cu!(cuMemMap(range.va, range.grain, 0, two, 0));
    t.yes("cuMemMap where something is mapped is refused", over != 0);
    t.eq("cuMemRelease", (cu!(cuMemRelease(one)), cu!(cuMemRelease(two))), (0, 0));
    Ok(())
}

fn plain_free_of_a_mapping(t: &mut Checker) -> Done {
    let range = Range::reserve(t, 1)?;
    let handle = create(t, range.grain)?;
    range.map(t, 0, handle)?;
    t.eq("cuMemFree of a mapped address", cu!(cuMemFree_v2(range.va)), 1);
    t.eq("cuMemRelease", cu!(cuMemRelease(handle)), 0);
    Ok(())
}
