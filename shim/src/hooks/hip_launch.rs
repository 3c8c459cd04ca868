//! HIP launches after which a graph's node has something that HIP does not tell, or that an update changes: blocks that
//! work together, events, a grid that is not a multiple of its blocks (docs/decisions/graphs.md, "HIP's graphs have no
//! sources").

use crate::backend::hip_nodes_hold_more;
use crate::call::Call;
use crate::progress::queries;
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

macro_rules! launches {
    ($($(#[$doc:meta])+ $name:ident($($arg:ident: $ty:ty),+) if $more:expr;)*) => { $(
        $(#[$doc])+
        #[inline]
        pub(crate) unsafe fn $name(
            _: Call,
            real: unsafe extern "C-unwind" fn($($ty),+) -> Status,
            $($arg: $ty),+
        ) -> Status {
            if $more && queries::capturing() {
                hip_nodes_hold_more();
            }
            // SAFETY: rule of the call: `real` gets all arguments as they came.
            unsafe { real($($arg),+) }
        }
    )* };
}

launches! {
    /// The program launches a kernel whose blocks work together.
    cooperative(f: Opaque, grid: Dim3, block: Dim3, params: Opaque, shared: c_uint, stream: Stream) if true;
    /// As [`cooperative`], with a kernel of a module.
    cooperative_of_module(
        f: Opaque, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Stream, params: Opaque
    ) if true;
    /// The program launches a kernel with attributes.
    with_attributes(config: Opaque, f: Opaque, params: Opaque) if true;
    /// As [`with_attributes`], with a kernel of a module.
    with_attributes_of_module(config: Opaque, f: Opaque, params: Opaque, extra: Opaque) if true;
    /// The program launches a kernel between two events.
    with_events(
        f: Opaque, grid: Dim3, block: Dim3, params: Opaque, shared: usize, stream: Stream, start: Opaque, stop: Opaque,
        flags: c_int
    ) if !start.is_null() || !stop.is_null();
    /// As [`with_events`], with a kernel of a module; its grid is counted in threads.
    with_events_of_module(
        f: Opaque, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: usize,
        stream: Stream, params: Opaque, extra: Opaque, start: Opaque, stop: Opaque, flags: c_uint
    ) if !start.is_null() || !stop.is_null() || has_rest([(x, bx), (y, by), (z, bz)]);
    /// As [`with_events_of_module`], without flags.
    with_events_of_module_hcc(
        f: Opaque, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: usize,
        stream: Stream, params: Opaque, extra: Opaque, start: Opaque, stop: Opaque
    ) if !start.is_null() || !stop.is_null() || has_rest([(x, bx), (y, by), (z, bz)]);
}

/// True if dividing a grid of threads into blocks leaves a remainder.
fn has_rest(grid: [(c_uint, c_uint); 3]) -> bool {
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
