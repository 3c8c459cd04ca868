//! The answer of a call to a library, as a result.

use gpumem_abi::types::{SUCCESS, SYMBOL_NOT_FOUND, Status};
use zerocopy::FromZeros;

/// Returns an error unless a call has succeeded. `None`: the library lacks the function.
#[inline(always)]
pub(super) fn done(status: Option<Status>) -> Result<(), Status> {
    match status {
        Some(SUCCESS) => Ok(()),
        other => Err(other.unwrap_or(SYMBOL_NOT_FOUND)),
    }
}

/// Returns what a successful call has written to its out-parameter.
#[inline(always)]
pub(super) fn told<T: FromZeros>(call: impl FnOnce(&mut T) -> Option<Status>) -> Result<T, Status> {
    let mut answer = T::new_zeroed();
    done(call(&mut answer)).map(|()| answer)
}
