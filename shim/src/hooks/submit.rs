//! Work for the device: copies, fills, host functions, events, waits. Each call is counted and its answer checked
//! ([`crate::progress::activity`]). Its arguments are examined only while uses of memory are wanted
//! ([`crate::stranded`]). Nothing else is done.

pub(crate) use super::launch::{cooperative_kernel, kernel, kernel_with_attributes};
use crate::backend::attributes_set;
use crate::call::Call;
use crate::pool::guard::{self, LaunchKind};
use crate::pool::guarded;
use crate::progress::activity;
use crate::progress::queries;
use crate::stranded;
use gpumem_abi::types::{Opaque, SUCCESS, Status, Stream};

macro_rules! work {
    ($($name:ident($($arg:ident: $ty:ident),+) $first:block $($within:block)?)*) => { $(
        /// The program gives the device work, by a call with this many arguments.
        #[inline]
        pub(crate) unsafe fn $name<$($ty),+>(
            call: Call,
            real: unsafe extern "C-unwind" fn($($ty),+) -> Status,
            $($arg: $ty),+
        ) -> Status {
            $first
            if stranded::watching() {
                looked_at(&call, &[$(stranded::word(&$arg)),+]);
            }
            let status = activity::submit(|| {
                $($within)?
                // SAFETY: rule of the call: `real` gets all arguments as they came.
                unsafe { real($($arg),+) }
            });
            activity::saw(status);
            status
        }
    )* };
}

work! {
    work_1(a: A) {}
    work_2(a: A, b: B) {}
    work_3(a: A, b: B, c: C) {}
    work_4(a: A, b: B, c: C, d: D) {}
    work_5(a: A, b: B, c: C, d: D, e: E) {}
    work_6(a: A, b: B, c: C, d: D, e: E, f: F) {}
    work_8(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H) {}
    work_9(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I) {}
    // Kernels of older calls (see launch.rs): the thread is in the middle of a computation.
    kernel_1(a: A) { stranded::submitted() }
    kernel_3(a: A, b: B, c: C) { stranded::submitted() }
    kernel_4(a: A, b: B, c: C, d: D) { stranded::submitted() }
    cooperative_3(a: A, b: B, c: C) { stranded::submitted(); attributes_set::cooperative() }
    // Work that something outside the device completes: a host function, a value in memory, a semaphore of another
    // library.
    outside_3(a: A, b: B, c: C) {} { activity::outside(queries::capturing()) }
    outside_4(a: A, b: B, c: C, d: D) {} { activity::outside(queries::capturing()) }
}

/// Passes the arguments of a submission to the parts that want to know of uses.
#[cold]
fn looked_at(call: &Call, words: &[u64]) {
    stranded::used(words);
    if guard::is_on() && words.iter().any(|&word| stranded::may_matter(word)) {
        guarded::note_launch(call, std::ptr::null_mut(), LaunchKind::Other, words);
    }
}

/// Bytes of `CUDA_MEMCPY2D_v2`, and of `CUDA_MEMCPY3D_v2` and `CUDA_MEMCPY3D_PEER`.
const COPY_2D: usize = 128;
const COPY_3D: usize = 200;

/// Examines a copy's description while uses are wanted.
///
/// # Safety
/// A description of `BYTES` bytes, which the driver has just read.
#[inline(always)]
unsafe fn described<const BYTES: usize>(call: &Call, status: Status, copy: Opaque) {
    if stranded::watching() && status == SUCCESS {
        // SAFETY: our caller vouches for a description of BYTES bytes, which the driver has just
        // read. Each word lies whole within them.
        let words = (0..BYTES / 8).map(|word| unsafe { copy.cast::<u64>().add(word).read_unaligned() });
        let mut seen = [0; COPY_3D / 8];
        seen.iter_mut().zip(words).for_each(|(seen, word)| *seen = word);
        looked_at(call, &seen);
    }
}

macro_rules! copies {
    ($($(#[$doc:meta])+ $name:ident, $name_async:ident: $bytes:ident;)*) => { $(
        $(#[$doc])+
        #[inline]
        pub(crate) unsafe fn $name(call: Call, real: unsafe extern "C-unwind" fn(Opaque) -> Status, copy: Opaque) -> Status {
            // SAFETY: rule of the call: `real` gets the description as it came. Rule of parameters:
            // after success it has the bytes of its type.
            unsafe {
                let status = work_1(call, real, copy);
                described::<$bytes>(&call, status, copy);
                status
            }
        }

        $(#[$doc])+
        /// In stream order.
        #[inline]
        pub(crate) unsafe fn $name_async(
            call: Call,
            real: unsafe extern "C-unwind" fn(Opaque, Stream) -> Status,
            copy: Opaque,
            stream: Stream,
        ) -> Status {
            // SAFETY: rule of the call: `real` gets the description and the stream as they came.
            // Rule of parameters: after success the description has the bytes of its type.
            unsafe {
                let status = work_2(call, real, copy, stream);
                described::<$bytes>(&call, status, copy);
                status
            }
        }
    )* };
}

copies! {
    /// The program copies rows.
    copy_2d, copy_2d_async: COPY_2D;
    /// The program copies a volume.
    copy_3d, copy_3d_async: COPY_3D;
}
