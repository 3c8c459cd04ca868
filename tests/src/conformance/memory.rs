//! Plain allocations: sizes, addresses, contents, and wrong frees.

use super::{Check, Checker, Done, cu, fixtures::*, ok, skip};
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("memory.free_zero", free_zero),
    Check::measured("memory.double_free", double_free),
    Check::measured("memory.wild_free", wild_free),
    Check::measured("memory.interior_free", interior_free),
    Check::measured("memory.too_big", too_big),
    Check::measured("memory.granularity", granularity),
    Check::measured("memory.small_ones_share", small_ones_share),
    Check::measured("memory.pairs_share", pairs_share),
    Check::measured("memory.fresh_is_zeroed", fresh_is_zeroed),
    Check::documented("memory.alloc_zero_bytes", alloc_zero_bytes),
    Check::documented("memory.null_out_parameter", null_out_parameter),
    Check::documented("memory.contents", contents),
    Check::documented("memory.no_overlap", no_overlap),
    Check::documented("memory.pitch", pitch),
    Check::documented("memory.managed", managed),
    Check::documented("memory.host", host),
    Check::documented("memory.array", array),
    Check::documented("memory.free_from_other_thread", free_from_other_thread),
    Check::documented("memory.integrated_is_the_machines", integrated_is_the_machines),
    Check::documented("memory.integrated_attributes_agree", attributes_agree),
];

const MIB: usize = 1 << 20;

fn free_zero(t: &mut Checker) -> Done {
    t.eq("cuMemFree(0)", cu!(cuMemFree_v2(0)), 0);
    Ok(())
}

fn double_free(t: &mut Checker) -> Done {
    for bytes in [4096, 3 * MIB, 64 * MIB] {
        let mem = Mem::new(bytes)?;
        let p = mem.p;
        t.eq("first free", mem.free(), 0);
        t.eq("second free", cu!(cuMemFree_v2(p)), 1);
    }
    Ok(())
}

fn wild_free(t: &mut Checker) -> Done {
    let local = 0u32;
    t.eq("free of 0x1000", cu!(cuMemFree_v2(0x1000)), 1);
    t.eq("free of a stack address", cu!(cuMemFree_v2((&raw const local).addr() as u64)), 1);
    Ok(())
}

fn interior_free(t: &mut Checker) -> Done {
    for bytes in [4096, 3 * MIB] {
        let mem = Mem::new(bytes)?;
        t.eq("free at +256", cu!(cuMemFree_v2(mem.p + 256)), 1);
        t.eq("free at the middle", cu!(cuMemFree_v2(mem.p + bytes as u64 / 2)), 1);
        t.eq("the right free afterwards", mem.free(), 0);
    }
    Ok(())
}

fn too_big(t: &mut Checker) -> Done {
    let mut p = 42;
    t.eq("cuMemAlloc of 1 PiB", cu!(cuMemAlloc_v2(&mut p, 1 << 50)), 2);
    t.eq("its out-parameter", p, 0);
    let after = Mem::new(4096)?;
    t.eq("an allocation afterwards can be freed", after.free(), 0);
    Ok(())
}

fn free_bytes() -> Result<usize, super::Stop> {
    let (mut free, mut total) = (0, 0);
    ok("cuMemGetInfo", cu!(cuMemGetInfo_v2(&mut free, &mut total)))?;
    Ok(free)
}

/// A request just above 2 MiB takes 4 MiB. Another process may allocate meanwhile, so one right reading of several is
/// enough.
fn granularity(t: &mut Checker) -> Done {
    let mut seen = Vec::new();
    for _ in 0..5 {
        let before = free_bytes()?;
        let mem = Mem::new(2 * MIB + 1)?;
        seen.push(before.saturating_sub(free_bytes()?));
        drop(mem);
    }
    t.yes(&format!("2 MiB + 1 takes 4 MiB (took {seen:?})"), seen.contains(&(4 * MIB)));
    Ok(())
}

/// One right reading of several is enough here, too.
fn small_ones_share(t: &mut Checker) -> Done {
    let mut took = Vec::new();
    for _ in 0..5 {
        let before = free_bytes()?;
        let small: Vec<Mem> = (0..64).map(|_| Mem::new(4096)).collect::<Result<_, _>>()?;
        took.push(before.saturating_sub(free_bytes()?));
        let mut addresses: Vec<u64> = small.iter().map(|m| m.p).collect();
        addresses.sort_unstable();
        t.yes("they do not overlap", addresses.windows(2).all(|w| w[0] + 4096 <= w[1]));
    }
    t.yes(&format!("64 x 4 KiB take at most 2 MiB (took {took:?})"), took.iter().any(|&took| took <= 2 * MIB));
    Ok(())
}

/// Two requests share 2 MiB if they fit into it together. Of eight requests one right reading of several is enough.
fn pairs_share(t: &mut Checker) -> Done {
    for (pair, takes) in [([MIB; 2], 2), ([MIB + 1; 2], 4), ([MIB * 3 / 2, MIB / 2], 2)] {
        let mut took = Vec::new();
        for _ in 0..5 {
            let before = free_bytes()?;
            let _pairs: Vec<Mem> = [pair; 4].as_flattened().iter().map(|&n| Mem::new(n)).collect::<Result<_, _>>()?;
            took.push(before.saturating_sub(free_bytes()?));
        }
        let right = took.contains(&(4 * takes * MIB));
        t.yes(&format!("4 x {pair:?} bytes take 4 x {takes} MiB (took {took:?})"), right);
    }
    Ok(())
}

/// The API does not promise this, but programs may rely on it: 4 MiB that were freed with other contents came back
/// zeroed at the same address.
fn fresh_is_zeroed(t: &mut Checker) -> Done {
    for _ in 0..4 {
        let mem = Mem::new(4 * MIB)?;
        let p = mem.p;
        t.gpu.kernels.fill(Strm::NULL.k(), mem.words(), 0xdead_beef)?;
        ok("cuMemFree", mem.free())?;
        let again = Mem::new(4 * MIB)?;
        if again.p == p {
            t.eq("words that are not zero", t.gpu.wrong_words(&Strm::NULL, again.words(), 0)?, 0);
            return Ok(());
        }
    }
    skip("no address came back")
}

fn alloc_zero_bytes(t: &mut Checker) -> Done {
    let mut p = 42;
    t.eq("cuMemAlloc of 0 bytes", cu!(cuMemAlloc_v2(&mut p, 0)), 1);
    Ok(())
}

fn null_out_parameter(t: &mut Checker) -> Done {
    t.eq("cuMemAlloc(NULL, 4096)", cu!(cuMemAlloc_v2(null_mut(), 4096)), 1);
    Ok(())
}

fn contents(t: &mut Checker) -> Done {
    let n = 100_003;
    let (a, b) = (t.gpu.words(n)?, t.gpu.words(n)?);
    let host: Vec<u32> = (0..n as u32).collect();
    let bytes = n as usize * 4;
    ok("cuMemcpyHtoD", cu!(cuMemcpyHtoD_v2(a.p, host.as_ptr().cast(), bytes)))?;
    t.gpu.kernels.scale(Strm::NULL.k(), b.words(), a.words(), 7)?;
    let scaled: Vec<u32> = host.iter().map(|v| v.wrapping_mul(7)).collect();
    t.yes("a kernel's result reads back", b.read(n as usize)? == scaled);
    ok("cuMemcpyDtoD", cu!(cuMemcpyDtoD_v2(b.p, a.p, bytes)))?;
    t.yes("a device copy reads back", b.read(n as usize)? == host);
    ok("cuMemsetD32", cu!(cuMemsetD32_v2(b.p, 9, n as usize)))?;
    t.eq("words that a memset missed", t.gpu.wrong_words(&Strm::NULL, b.words(), 9)?, 0);
    Ok(())
}

fn no_overlap(t: &mut Checker) -> Done {
    let sizes = [1, 255, 256, 4096, 70_000, MIB, 2 * MIB + 1, 5 * MIB];
    let all: Vec<Mem> = sizes.iter().map(|&b| Mem::new(b)).collect::<Result<_, _>>()?;
    let mut ranges: Vec<(u64, u64)> = all.iter().map(|m| (m.p, m.p + m.bytes as u64)).collect();
    ranges.sort_unstable();
    t.yes("ranges are disjoint", ranges.windows(2).all(|w| w[0].1 <= w[1].0));
    t.yes("addresses are multiples of 256", all.iter().all(|m| m.p.is_multiple_of(256)));
    Ok(())
}

fn pitch(t: &mut Checker) -> Done {
    let (mut p, mut pitch) = (0, 0);
    ok("cuMemAllocPitch", cu!(cuMemAllocPitch_v2(&mut p, &mut pitch, 1000, 10, 4)))?;
    t.yes("the pitch is at least the width", pitch >= 1000);
    t.yes("rows are aligned to 32 bytes or more", pitch.is_multiple_of(32));
    t.eq("free", cu!(cuMemFree_v2(p)), 0);
    Ok(())
}

fn managed(t: &mut Checker) -> Done {
    let mut p = 0;
    let status = cu!(cuMemAllocManaged(&mut p, MIB, 1));
    ok("cuMemAllocManaged", status)?;
    ok("cuMemsetD32", cu!(cuMemsetD32_v2(p, 31, MIB / 4)))?;
    ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
    // SAFETY: managed memory is mapped on the host too. The host may read it here because the
    // context has no work left, and the word is the last of the MIB bytes.
    let last = unsafe { std::ptr::read_volatile((p as usize + MIB - 4) as *const u32) };
    t.eq("the host reads what the device wrote", last, 31);
    t.eq("cuMemFree", cu!(cuMemFree_v2(p)), 0);
    t.eq("cuMemFree twice", cu!(cuMemFree_v2(p)), 1);
    Ok(())
}

fn host(t: &mut Checker) -> Done {
    let mut p = null_mut();
    ok("cuMemHostAlloc", cu!(cuMemHostAlloc(&mut p, 4096, 0)))?;
    t.eq("cuMemFree of a host pointer", cu!(cuMemFree_v2(p.addr() as u64)), 1);
    t.eq("cuMemFreeHost", cu!(cuMemFreeHost(p)), 0);
    t.eq("cuMemFreeHost twice", cu!(cuMemFreeHost(p)), 1);
    let device = Mem::new(4096)?;
    t.eq("cuMemFreeHost of a device pointer", cu!(cuMemFreeHost(device.p as usize as *mut _)), 1);

    let mut own = vec![0u8; 3 * 4096];
    let page = own.as_mut_ptr().wrapping_add(own.as_ptr().align_offset(4096));
    ok("cuMemHostRegister", cu!(cuMemHostRegister_v2(page.cast(), 4096, 0)))?;
    t.eq("cuMemHostRegister again", cu!(cuMemHostRegister_v2(page.cast(), 4096, 0)), 712);
    t.eq("cuMemHostUnregister", cu!(cuMemHostUnregister(page.cast())), 0);
    t.eq("cuMemHostUnregister again", cu!(cuMemHostUnregister(page.cast())), 713);
    Ok(())
}

fn array(t: &mut Checker) -> Done {
    use cudarc::driver::sys::{CUDA_ARRAY_DESCRIPTOR, CUarray_format::CU_AD_FORMAT_FLOAT};
    let descriptor = CUDA_ARRAY_DESCRIPTOR { Width: 64, Height: 32, Format: CU_AD_FORMAT_FLOAT, NumChannels: 1 };
    let mut a = null_mut();
    t.eq("cuArrayCreate", cu!(cuArrayCreate_v2(&mut a, &descriptor)), 0);
    t.eq("cuArrayDestroy", cu!(cuArrayDestroy(a)), 0);
    let none = CUDA_ARRAY_DESCRIPTOR { NumChannels: 3, ..descriptor };
    t.eq("an array of 3 channels", cu!(cuArrayCreate_v2(&mut a, &none)), 1);
    Ok(())
}

fn free_from_other_thread(t: &mut Checker) -> Done {
    let (p, primary) = (Mem::new(MIB)?, t.gpu.primary as usize);
    let raw = p.p;
    std::mem::forget(p);
    let status = std::thread::spawn(move || {
        cu!(cuCtxSetCurrent(primary as *mut _));
        cu!(cuMemFree_v2(raw))
    });
    t.eq("cuMemFree on another thread", status.join().unwrap_or(u32::MAX), 0);
    Ok(())
}

/// Whose memory the GPU reads: where it goes by the host's page tables it reads what they have, and managed memory that both
/// use at once is managed memory.
fn attributes_agree(t: &mut Checker) -> Done {
    use cudarc::driver::sys::CUdevice_attribute::*;
    let mut values = [0; 4];
    for (value, id) in values.iter_mut().zip([
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    ]) {
        ok("cuDeviceGetAttribute", cu!(cuDeviceGetAttribute(value, id, t.gpu.device)))?;
    }
    let [pageable, by_host_tables, managed, at_once] = values;
    t.yes(&format!("pageable {pageable}, by the host's page tables {by_host_tables}"), by_host_tables <= pageable);
    t.yes(&format!("managed {managed}, by both at once {at_once}"), at_once <= managed);
    Ok(())
}

/// For a device that says that its memory is the machine's, which most devices do not: it has no more memory than the
/// machine, and memory that is allocated there is taken from the machine.
fn integrated_is_the_machines(t: &mut Checker) -> Done {
    use cudarc::driver::sys::CUdevice_attribute;
    let mut integrated = 0;
    let id = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED;
    ok("cuDeviceGetAttribute", cu!(cuDeviceGetAttribute(&mut integrated, id, t.gpu.device)))?;
    t.one_of("CU_DEVICE_ATTRIBUTE_INTEGRATED", integrated as u32, &[0, 1]);
    // The simulator's memory is not taken from the machine.
    if integrated == 0 || std::env::var_os("SIM_INTEGRATED").is_some() {
        return Ok(());
    }
    let machine = |what: &str| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0) << 10
    };
    let (mut free, mut total) = (0, 0);
    ok("cuMemGetInfo", cu!(cuMemGetInfo_v2(&mut free, &mut total)))?;
    t.yes(&format!("{total} bytes are no more than the machine has"), total <= machine("MemTotal"));
    let (bytes, before) = (512 * MIB, machine("MemAvailable"));
    let mem = Mem::new(bytes)?;
    let taken = before.saturating_sub(machine("MemAvailable"));
    t.yes(&format!("{taken} of {bytes} bytes are missing to the machine"), taken >= bytes / 2);
    t.eq("free", mem.free(), 0);
    Ok(())
}
