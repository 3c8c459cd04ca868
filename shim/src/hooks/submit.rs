//! Work for the device: copies, fills, host functions, events, waits. Each call is counted and its answer checked
//! ([`crate::progress::activity`]). Its arguments are examined only while uses of memory are wanted
//! ([`crate::stranded`]). Nothing else is done.

pub(crate) use super::launch::{cooperative_kernel, kernel, kernel_with_attributes};
use crate::backend::attributes_set;
use crate::call::{Arguments, Call, Real};
use crate::guard::{self, LaunchKind};
use crate::progress::activity;
use crate::progress::queries;
use crate::stranded;
use gpumem_abi::types::{SUCCESS, Status};

/// The program gives the device work.
#[inline]
pub(crate) unsafe fn work<A: Arguments>(call: Call, real: Real<A>) -> Status {
    submitted(&call, &real, || ())
}

/// The program launches a kernel, by an older call: the thread is in the middle of a computation (see launch.rs).
#[inline]
pub(crate) unsafe fn older_kernel<A: Arguments>(call: Call, real: Real<A>) -> Status {
    stranded::submitted();
    submitted(&call, &real, || ())
}

/// As [`older_kernel`], with kernels whose blocks work together.
#[inline]
pub(crate) unsafe fn older_cooperative_kernels<A: Arguments>(call: Call, real: Real<A>) -> Status {
    stranded::submitted();
    attributes_set::cooperative();
    submitted(&call, &real, || ())
}

/// The program gives the device work that something outside the device completes: a host function, a value in memory, a
/// semaphore of another library.
#[inline]
pub(crate) unsafe fn outside<A: Arguments>(call: Call, real: Real<A>) -> Status {
    submitted(&call, &real, || activity::outside(queries::capturing()))
}

#[inline(always)]
fn submitted<A: Arguments>(call: &Call, real: &Real<A>, within: impl FnOnce()) -> Status {
    if stranded::watching() {
        looked_at(call, real.args.words().as_ref());
    }
    let status = activity::submit(|| {
        within();
        real.call()
    });
    activity::saw(status);
    status
}

/// Passes the arguments of a submission to the parts that want to know of uses.
#[cold]
fn looked_at(call: &Call, words: &[u64]) {
    stranded::used(words);
    if guard::is_on() {
        guard::note_launch(call, std::ptr::null_mut(), LaunchKind::Other, words);
    }
}

/// Bytes of `CUDA_MEMCPY2D_v2`, and of `CUDA_MEMCPY3D_v2` and `CUDA_MEMCPY3D_PEER`.
const COPY_2D: usize = 128;
const COPY_3D: usize = 200;

/// The program copies rows.
#[inline]
pub(crate) unsafe fn copy_2d<A: Arguments>(call: Call, real: Real<A>) -> Status {
    // SAFETY: rule of parameters: after success the description, which is the first argument, has the bytes of its type.
    unsafe { described::<A, COPY_2D>(&call, &real) }
}

/// The program copies a volume.
#[inline]
pub(crate) unsafe fn copy_3d<A: Arguments>(call: Call, real: Real<A>) -> Status {
    // SAFETY: rule of parameters: after success the description, which is the first argument, has the bytes of its type.
    unsafe { described::<A, COPY_3D>(&call, &real) }
}

/// Makes a copy, and examines its description while uses are wanted.
///
/// # Safety
/// The first argument is a description of `BYTES` bytes, if the call succeeds.
#[inline(always)]
unsafe fn described<A: Arguments, const BYTES: usize>(call: &Call, real: &Real<A>) -> Status {
    let status = submitted(call, real, || ());
    if stranded::watching()
        && status == SUCCESS
        && let Some(&copy) = real.args.words().as_ref().first()
    {
        // SAFETY: our caller vouches for a description of BYTES bytes, which the driver has just
        // read. Each word lies whole within them.
        let words = (0..BYTES / 8).map(|word| unsafe { (copy as *const u64).add(word).read_unaligned() });
        let mut seen = [0; COPY_3D / 8];
        seen.iter_mut().zip(words).for_each(|(seen, word)| *seen = word);
        looked_at(call, &seen);
    }
    status
}
