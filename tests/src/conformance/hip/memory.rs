//! The checks of HIP's memory: the properties that the pool relies on, and the contents of blocks.

use super::super::{Done, Stop};
use super::api::*;
use super::probe::{Probe, hip};
use std::ffi::c_void;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

/// Returns the offset of the first byte that differs from this one.
fn other_than(p: &Probe, block: *mut c_void, bytes: usize, byte: u8) -> Result<Option<usize>, Stop> {
    let mut host = vec![!byte; bytes];
    hip!(p, hipMemcpy(host.as_mut_ptr().cast(), block, bytes, DEVICE_TO_HOST));
    Ok(host.iter().position(|&found| found != byte))
}

/// Memory is freed while work on it is running: that work does not touch the next allocation.
pub(super) fn freed_beside_work(p: &Probe) -> Done {
    for round in 0..40_u8 {
        let first = p.block(4 * MIB)?;
        for fill in 0..8 {
            hip!(p, hipMemsetAsync(first, 0x80 + fill, 4 * MIB, p.streams[usize::from(round) % 2]));
        }
        hip!(p, hipFree(first));
        let second = p.block(4 * MIB)?;
        hip!(p, hipMemset(second, round.into(), 4 * MIB));
        hip!(p, hipDeviceSynchronize());
        if let Some(at) = other_than(p, second, 4 * MIB, round)? {
            return Err(Stop::Fail(format!("byte {at} of memory was written by work from before its allocation")));
        }
        hip!(p, hipFree(second));
    }
    Ok(())
}

/// Blocks of many sizes come and go. The remaining ones keep their contents, and none overlaps another.
pub(super) fn contents(p: &Probe) -> Done {
    let bytes = |i: usize| 256 + (i * 7919) % (3 * MIB);
    let mut kept = Vec::new();
    for i in 0..96 {
        let (len, byte) = (bytes(i), 1 + i as u8);
        let one = p.block(len)?;
        hip!(p, hipMemset(one, byte.into(), len));
        kept.push((one, len, byte));
        if i % 3 == 2 {
            let (gone, ..) = kept.remove(i / 3);
            hip!(p, hipFree(gone));
        }
    }
    hip!(p, hipDeviceSynchronize());
    for &(one, len, byte) in &kept {
        if let Some(at) = other_than(p, one, len, byte)? {
            return Err(Stop::Fail(format!("byte {at} of {len} is not {byte}")));
        }
    }
    for (one, ..) in kept {
        hip!(p, hipFree(one));
    }
    Ok(())
}

/// A pointer that cannot be freed is refused, and the error becomes the thread's last error.
pub(super) fn refused(p: &Probe) -> Done {
    let one = p.block(MIB)?;
    hip!(p, hipFree(null_mut()));
    hip!(p, hipFree(one));
    // SAFETY: HIP looks the address up, and refuses what it does not know. hipGetLastError takes no arguments.
    let (again, last) = unsafe { ((p.hip.hipFree)(one), (p.hip.hipGetLastError)()) };
    if again == 0 || last != again {
        return Err(Stop::Fail(format!("a second free gives {again}, and the last error is {last}")));
    }
    Ok(())
}

/// Memory comes and goes during a capture in relaxed mode, and the capture ends well.
pub(super) fn beside_capture(p: &Probe) -> Done {
    let (mut graph, held) = (null_mut(), p.block(MIB)?);
    hip!(p, hipStreamBeginCapture(p.streams[0], RELAXED));
    hip!(p, hipMemsetAsync(held, 7, MIB, p.streams[0]));
    let one = p.block(2 * MIB)?;
    hip!(p, hipFree(one));
    let again = p.block(2 * MIB)?;
    hip!(p, hipStreamEndCapture(p.streams[0], &mut graph));
    hip!(p, hipGraphDestroy(graph));
    hip!(p, hipFree(again));
    hip!(p, hipFree(held));
    Ok(())
}
