//! Gives a real exec other content, node by node.

use super::handle::INVALID;
use super::library::Library;
use super::real::Lease;
use crate::backend::graphs::SetCount;
use crate::backend::source::Records;
use gpumem_abi::types::{SUCCESS, Status};
use std::sync::atomic::Ordering::Relaxed;

/// Makes an exec hold the content in `target`; `target` gets the exec's previous content. Returns the number of nodes
/// that were set.
///
/// # Errors
/// The library's status. The exec then holds parts of both.
pub(crate) fn retarget(
    library: Library,
    lease: &mut Lease,
    target: &mut Records,
    disabled: &[u32],
) -> Result<u64, Status> {
    let real = lease.real();
    let exec = real.exec();
    let body = lease.body();
    let (Some(class), Some(template)) = (&body.class, &body.template) else { return Err(INVALID) };
    let check = |status| if status == SUCCESS { Ok(()) } else { Err(status) };
    let _alone = template.alone();
    let SetCount { nodes, mut reshaped } =
        library.calls.set(Some(exec), template.nodes(class), &body.content, target)?;
    let node = |index: u32| template.nodes.get(index as usize).copied().ok_or(INVALID);
    for &index in body.disabled.iter().filter(|index| !disabled.contains(index)) {
        check(library.calls.set_enabled(exec, node(index)?, true))?;
        reshaped += 1;
    }
    for &index in disabled.iter().filter(|index| !body.disabled.contains(index)) {
        check(library.calls.set_enabled(exec, node(index)?, false))?;
        reshaped += 1;
    }
    body.disabled = disabled.to_vec();
    std::mem::swap(&mut body.content, target);
    // Another handle had the exec and never launched it. An upload would save the device that time, but an uploaded
    // exec may run the code of another kernel (docs/decisions/drivers.md).
    let early = !body.launched && library.calls.behaviour().set_early_is_slow && nodes + reshaped > 0;
    real.degrades(if early { body.content.len() as u64 } else { reshaped }, body.content.len());
    Ok(nodes)
}

/// Makes an exec that could not take all of `target` hold its own content again.
///
/// # Errors
/// The library's status. The exec then holds parts of both.
pub(super) fn restore(library: Library, lease: &mut Lease, target: &Records) -> Result<(), Status> {
    let (context, exec) = (lease.real().context.load(Relaxed), lease.real().exec());
    let body = lease.body();
    let (Some(class), Some(template)) = (&body.class, &body.template) else { return Err(INVALID) };
    let _alone = template.alone();
    let _entered = library.enter(context);
    library.calls.set(Some(exec), template.nodes(class), target, &body.content).map(drop)
}
