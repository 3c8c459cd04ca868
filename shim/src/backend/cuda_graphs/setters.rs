//! Parameters of node setters, as records.

use super::functions::Functions;
use super::layout::*;
use super::places::{tag_of_copy, tag_of_memset};
use super::read::{kernel_parts, kernel_record};
use super::shape::PACKED;
use crate::backend::answer::told;
use crate::backend::driver;
use crate::backend::graphs::Setter;
use gpumem_wire::kinds::NodeKind;
use zerocopy::{FromBytes, IntoBytes};

/// Writes the record for a setter's parameters.
///
/// # Safety
/// As for `GraphCalls::record`.
pub(super) unsafe fn record(functions: &Functions, kind: NodeKind, params: Setter, out: &mut Vec<u8>) -> bool {
    let Setter { params, context, v2 } = params;
    out.clear();
    // SAFETY: our caller vouches for the program's parameters of this kind, which are not NULL. So
    // the struct is there, as long as its version says, and its pointers are as the driver wants.
    unsafe {
        match kind {
            NodeKind::Kernel => {
                let mut copy = KernelParams::default();
                let len = if v2 { size_of::<KernelParams>() } else { KERNEL_PARAMS_V1 };
                copy.as_mut_bytes()[..len].copy_from_slice(std::slice::from_raw_parts(params.cast(), len));
                match functions.get(copy.function, copy.kernel) {
                    Some(function) => kernel_record(&copy, &function, out),
                    None => false,
                }
            }
            NodeKind::Host => {
                out.extend_from_slice(std::slice::from_raw_parts(params.cast(), size_of::<HostParams>()));
                true
            }
            NodeKind::Memcpy => {
                let params = params.cast::<CopyParams>().read_unaligned();
                out.extend_from_slice(CopyRecord { context, params }.as_bytes());
                true
            }
            NodeKind::Memset => {
                let params = params.cast::<SetParams>().read_unaligned();
                out.extend_from_slice(SetRecord { context, params }.as_bytes());
                true
            }
            _ => false,
        }
    }
}

/// True if a kernel node's setter is given parameters in one block.
///
/// # Safety
/// As for `GraphCalls::refuses`.
pub(super) unsafe fn is_packed(params: Setter) -> bool {
    let mut copy = KernelParams::default();
    // SAFETY: our caller vouches for the struct of a kernel node's setter. In its oldest form it
    // has KERNEL_PARAMS_V1 bytes, which is what is read.
    let given = unsafe { std::slice::from_raw_parts(params.params.cast(), KERNEL_PARAMS_V1) };
    copy.as_mut_bytes()[..KERNEL_PARAMS_V1].copy_from_slice(given);
    copy.params == 0 && copy.extra != 0
}

/// True if a node of this kind and tag can hold a record. It can if the record changes only what an exec can change, as
/// far as the driver checks a setter's parameters.
pub(super) fn takes(functions: &Functions, tag: u64, kind: NodeKind, record: &[u8]) -> bool {
    // SAFETY: rule of answers: `device` takes the ordinal.
    let device = told(|device| unsafe { driver::cuCtxGetDevice(device) });
    // With this bit, a setter can change nothing of copies and memsets.
    let free = device.is_ok() && tag & 1 == 0;
    let device = device.unwrap_or(0);
    match kind {
        NodeKind::Kernel => kernel_parts(record).is_some_and(|(head, _)| {
            let known = functions.known(head.function, head.kernel);
            let sizes = head.grid.iter().chain(&head.block);
            known.is_some_and(|function| u64::from(function.traits) == tag & !PACKED) && sizes.min() != Some(&0)
        }),
        NodeKind::Memcpy => CopyRecord::read_from_bytes(record)
            .is_ok_and(|of| free && of.params.width != 0 && tag_of_copy(&of.params, device) == Ok(tag)),
        NodeKind::Memset => SetRecord::read_from_bytes(record)
            .is_ok_and(|of| free && of.params.width != 0 && tag_of_memset(&of.params, device) == Ok(tag)),
        NodeKind::Host => HostParams::read_from_bytes(record).is_ok_and(|of| of.function != 0),
        _ => false,
    }
}
