//! HIP launches after which a graph's node has something that HIP does not tell, or that an update changes: blocks that
//! work together, events, a grid that is not a multiple of its blocks (docs/decisions/graphs.md, "HIP's graphs have no
//! sources").

use crate::backend::hip_nodes_hold_more;
use crate::call::{Arguments, Call, Real};
use crate::progress::queries;
use gpumem_abi::types::*;

/// The program launches a kernel whose blocks work together, or a kernel with attributes.
#[inline]
pub(crate) unsafe fn with_more<A: Arguments>(_: Call, real: Real<A>) -> Status {
    launched(&real, true)
}

#[inline(always)]
fn launched<A: Arguments>(real: &Real<A>, holds_more: bool) -> Status {
    if holds_more && queries::capturing() {
        hip_nodes_hold_more();
    }
    real.call()
}

/// The program launches a kernel between two events.
#[inline]
pub(crate) unsafe fn with_events(
    _: Call,
    real: Real<(Opaque, Dim3, Dim3, Opaque, usize, Stream, Opaque, Opaque, i32)>,
) -> Status {
    let (.., start, stop, _) = real.args;
    launched(&real, !start.is_null() || !stop.is_null())
}

/// As [`with_events`], with a kernel of a module; its grid is counted in threads.
#[inline]
pub(crate) unsafe fn with_events_of_module(
    _: Call,
    real: Real<(Opaque, u32, u32, u32, u32, u32, u32, usize, Stream, Opaque, Opaque, Opaque, Opaque, u32)>,
) -> Status {
    let (_, x, y, z, bx, by, bz, .., start, stop, _) = real.args;
    launched(&real, !start.is_null() || !stop.is_null() || has_rest([(x, bx), (y, by), (z, bz)]))
}

/// As [`with_events_of_module`], without flags.
#[inline]
pub(crate) unsafe fn with_events_of_module_hcc(
    _: Call,
    real: Real<(Opaque, u32, u32, u32, u32, u32, u32, usize, Stream, Opaque, Opaque, Opaque, Opaque)>,
) -> Status {
    let (_, x, y, z, bx, by, bz, .., start, stop) = real.args;
    launched(&real, !start.is_null() || !stop.is_null() || has_rest([(x, bx), (y, by), (z, bz)]))
}

/// True if dividing a grid of threads into blocks leaves a remainder.
fn has_rest(grid: [(u32, u32); 3]) -> bool {
    grid.into_iter().any(|(threads, block)| threads.checked_rem(block) != Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_fill_no_block_are_a_rest() {
        assert!(!has_rest([(256, 64), (1, 1), (6, 2)]));
        assert!(has_rest([(257, 64), (1, 1), (1, 1)]));
        assert!(has_rest([(256, 64), (1, 1), (1, 0)]));
    }
}
