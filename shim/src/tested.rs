//! Parts of the shim that `shim/linked`, the same sources as a library, shows to its tests. Everything else is private.

pub use crate::doors::driver::ours;
pub use crate::doors::rows::row_named;
pub use crate::pool::is_peer_access_enabled;
pub use crate::progress::activity;
