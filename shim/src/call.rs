//! One call of the program: its API, its origin, and the function that it named.

use crate::process::regs::Regs;
use crate::process::threads;
use gpumem_abi::types::Status;
use gpumem_wire::kinds::Vendor;

/// A call that came in at a door.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub vendor: Vendor,
    regs: Regs,
}

impl Call {
    #[inline(always)]
    pub(crate) fn new(vendor: Vendor, regs: Regs) -> Self {
        Self { vendor, regs }
    }

    /// Returns the place of the program's call: the runtime call, if this call comes from inside one.
    #[inline]
    pub(crate) fn site(&self) -> Regs {
        let outer = threads::local(|local| local.caller.get());
        outer.filter(|outer| encloses(outer, &self.regs)).unwrap_or(self.regs)
    }
}

/// True if an inner call can have been made inside an outer one: then it is further down the stack. An outer call that
/// is not further up was left by `longjmp`.
#[inline]
fn encloses(outer: &Regs, inner: &Regs) -> bool {
    outer.sp > inner.sp
}

/// The function that the program called, and the arguments of the call.
pub(crate) struct Real<A: Arguments> {
    pub function: A::Function,
    pub args: A,
}

impl<A: Arguments> Real<A> {
    /// # Safety
    /// The function at this address takes arguments of these types. The program is calling it with these, and the value
    /// is used only until that call returns.
    #[inline(always)]
    pub(crate) unsafe fn new(address: usize, args: A) -> Self {
        // SAFETY: our caller vouches for the function's type.
        Self { function: unsafe { A::function(address) }, args }
    }

    /// Calls it as the program did.
    #[inline(always)]
    pub(crate) fn call(&self) -> Status {
        // SAFETY: the function that the program named gets the program's arguments, while its call goes on: who made
        // this value has vouched for that.
        unsafe { self.args.pass(self.function) }
    }

    /// Calls it with other arguments.
    ///
    /// # Safety
    /// The function accepts these arguments as it does those of the program.
    #[inline(always)]
    pub(crate) unsafe fn with(&self, args: A) -> Status {
        // SAFETY: our caller vouches for the arguments.
        unsafe { args.pass(self.function) }
    }
}

/// Arguments of a function of a library.
pub(crate) trait Arguments: Copy {
    type Function: Copy;
    type Words: AsRef<[u64]>;

    /// # Safety
    /// The function at this address takes these arguments.
    unsafe fn function(address: usize) -> Self::Function;

    /// # Safety
    /// The function accepts these arguments now.
    unsafe fn pass(self, function: Self::Function) -> Status;

    /// Returns the arguments as words, 0 for those that cannot be addresses.
    fn words(&self) -> Self::Words;
}

/// Returns an argument as a word, 0 if it cannot be an address.
#[inline(always)]
fn word<T: Copy>(argument: T) -> u64 {
    if size_of::<T>() != 8 {
        return 0;
    }
    // SAFETY: a `T` has eight bytes here. Arguments of that size are numbers, pointers and structs of numbers, none of
    // which has padding.
    unsafe { std::mem::transmute_copy(&argument) }
}

macro_rules! arguments {
    ($($count:literal $($arg:ident: $ty:ident),*;)*) => { $(
        impl<$($ty: Copy),*> Arguments for ($($ty,)*) {
            type Function = unsafe extern "C-unwind" fn($($ty),*) -> Status;
            type Words = [u64; $count];

            #[inline(always)]
            unsafe fn function(address: usize) -> Self::Function {
                // SAFETY: our caller vouches for a function of this type at the address.
                unsafe { std::mem::transmute::<usize, Self::Function>(address) }
            }

            #[inline(always)]
            unsafe fn pass(self, function: Self::Function) -> Status {
                let ($($arg,)*) = self;
                // SAFETY: our caller vouches for the function and its arguments.
                unsafe { function($($arg),*) }
            }

            #[inline(always)]
            fn words(&self) -> Self::Words {
                let ($($arg,)*) = *self;
                [$(word($arg)),*]
            }
        }
    )* };
}
arguments! {
    0;
    1 a: A;
    2 a: A, b: B;
    3 a: A, b: B, c: C;
    4 a: A, b: B, c: C, d: D;
    5 a: A, b: B, c: C, d: D, e: E;
    6 a: A, b: B, c: C, d: D, e: E, f: F;
    7 a: A, b: B, c: C, d: D, e: E, f: F, g: G;
    8 a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H;
    9 a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I;
    10 a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J;
    11 a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K;
    13 a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L, m: M;
    14 a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L, m: M, n: N;
}

/// Attributes driver calls of this thread to a runtime call while it lives.
pub(crate) struct Anchor {
    outer: Option<Regs>,
    records: u64,
}

/// Remembers a runtime call for the driver calls that it will make.
#[inline]
pub(crate) fn anchor(call: Call) -> Anchor {
    threads::local(|local| {
        // A runtime function inside another one (a wrapper library): the program called the outer one.
        let outer = local.caller.get().filter(|outer| encloses(outer, &call.regs));
        local.caller.set(outer.or(Some(call.regs)));
        Anchor { outer, records: local.records.get() }
    })
}

impl Anchor {
    /// True if no driver call was seen inside this runtime call so far.
    #[inline]
    pub(crate) fn saw_nothing(&self) -> bool {
        threads::local(|local| local.records.get() == self.records && !local.busy.get())
    }
}

impl Drop for Anchor {
    #[inline]
    fn drop(&mut self) {
        threads::local(|local| local.caller.set(self.outer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_arguments_that_may_be_addresses() {
        let pointer = std::ptr::without_provenance::<u8>(0x77);
        assert_eq!((0x1234_u64, pointer, 5_u32, [1_u64, 2]).words(), [0x1234, 0x77, 0, 0]);
        assert_eq!(().words(), [0_u64; 0]);
    }

    #[test]
    fn a_function_is_called_with_the_arguments_that_came_or_with_others() {
        /// # Safety
        /// None: it takes any numbers.
        unsafe extern "C-unwind" fn less(a: u32, b: u64) -> Status {
            a - b as u32
        }
        // SAFETY: the function has this type and takes any numbers.
        let real = unsafe { Real::new(less as *const () as usize, (7, 3_u64)) };
        // SAFETY: as above: any numbers will do.
        assert_eq!((real.call(), unsafe { real.with((9, 1)) }), (4, 8));
    }
}
