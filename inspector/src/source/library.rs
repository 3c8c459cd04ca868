//! Functions of the vendors' libraries, which are loaded while this program runs.

/// Declares a library: its functions with the types of the vendor's header, under their own names. Each returns a status.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* struct $of:ident { $($name:ident($($arg:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(super) struct $of {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> std::ffi::c_int,)*
            /// Open for as long as the functions are kept.
            _library: libloading::Library,
        }

        impl $of {
            /// Looks all functions up.
            ///
            /// # Errors
            /// The name of the first one that the library lacks.
            pub(super) fn of(library: libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the rows give each function the type that the vendor's header gives it. `self` keeps the
                    // library open for as long as it has the pointers.
                    $($name: unsafe {
                        *library
                            .get(concat!(stringify!($name), "\0").as_bytes())
                            .map_err(|_| stringify!($name))?
                    },)*
                    _library: library,
                })
            }
        }
    };
}
pub(crate) use functions;
