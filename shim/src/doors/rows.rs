//! The rows of the driver's functions: what `dlsym` and `cuGetProcAddress` are asked for. [`super::driver`] has the
//! addresses of our functions.

use crate::backend::driver::{Function, HOOKS, N, Thunk, index_at};
use crate::backend::join;

/// The flag of `cuGetProcAddress`, and of HIP's, for the flavour whose default stream is per thread.
pub(crate) const PER_THREAD: u64 = 2;

/// One function of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Index of its slot.
    pub index: usize,
    pub name: &'static str,
    /// The name that `cuGetProcAddress` is asked for.
    pub base: &'static str,
    /// First version of the API that has it.
    pub since: u32,
    /// The flavour whose default stream is per thread.
    pub per_thread: bool,
    /// True for a thunk.
    pub thunk: bool,
}

macro_rules! hooked {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HOOKED: [Row; Function::Count as usize] = [$(Row {
            index: Function::$name as usize,
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: matches!(stringify!($flavour).as_bytes(), b"ptds"),
            thunk: false,
        },)*];
    };
}
gpumem_abi::driver_functions!(hooked);

macro_rules! thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        const THUNKS: [Row; Thunk::Count as usize] = [$(Row {
            index: HOOKS + Thunk::$name as usize,
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: matches!(stringify!($flavour).as_bytes(), b"ptds"),
            thunk: true,
        },)*];
    };
}
gpumem_abi::graph_thunks!(thunks);

static ROWS: [Row; N] = join(HOOKED, THUNKS);

/// Returns all rows, in the order of the slots.
pub(crate) fn rows() -> &'static [Row] {
    &ROWS
}

/// Returns the row of a symbol, by its `dlsym` name.
pub fn row_named(name: &[u8]) -> Option<&'static Row> {
    let rows = rows();
    static SORTED: once_cell::race::OnceBox<Vec<u16>> = once_cell::race::OnceBox::new();
    let order = SORTED.get_or_init(|| {
        let mut order: Vec<u16> = (0..rows.len() as u16).collect();
        order.sort_unstable_by_key(|&index| rows[index as usize].name);
        Box::new(order)
    });
    let found = order.binary_search_by(|&index| rows[index as usize].name.as_bytes().cmp(name)).ok()?;
    Some(&rows[order[found] as usize])
}

/// Returns the row whose real function lies at an address.
pub(crate) fn row_at(address: usize) -> Option<&'static Row> {
    index_at(address).map(|index| &rows()[index])
}

/// Returns the row for a base name at a version: the newest one that is not newer than the version.
pub(crate) fn row_for(base: &[u8], version: u32, per_thread: bool) -> Option<&'static Row> {
    let newest = |per_thread| {
        rows()
            .iter()
            .filter(|row| row.base.as_bytes() == base && row.since <= version && row.per_thread == per_thread)
            .max_by_key(|row| row.since)
    };
    if per_thread { newest(true).or_else(|| newest(false)) } else { newest(false) }
}

/// True if the table has a row of this base name.
pub(crate) fn knows_base(base: &[u8]) -> bool {
    rows().iter().any(|row| row.base.as_bytes() == base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_flavours_choose_the_row_that_the_driver_gives() {
        let name = |base: &str, version, per_thread| row_for(base.as_bytes(), version, per_thread).map(|row| row.name);
        assert_eq!(name("cuGraphInstantiate", 10000, false), Some("cuGraphInstantiate"));
        assert_eq!(name("cuGraphInstantiate", 11000, false), Some("cuGraphInstantiate_v2"));
        assert_eq!(name("cuGraphInstantiate", 13000, true), Some("cuGraphInstantiate_v2"));
        assert_eq!(name("cuGraphLaunch", 12000, false), Some("cuGraphLaunch"));
        assert_eq!(name("cuGraphLaunch", 12000, true), Some("cuGraphLaunch_ptsz"));
        assert_eq!(name("cuStreamBeginCapture", 10000, true), Some("cuStreamBeginCapture_ptsz"));
        assert_eq!(name("cuMemAlloc", 2000, false), None, "32-bit pointers: not ours");
        assert_eq!(name("cuGetProcAddress", 11030, false), Some("cuGetProcAddress"));
        assert_eq!(name("cudnnCreate", 13000, false), None);
    }

    #[test]
    fn every_row_is_found_by_its_name() {
        for row in rows() {
            assert_eq!(row_named(row.name.as_bytes()).unwrap().index, row.index);
        }
        assert!(row_named(b"cuMemAlloc").is_none());
        assert!(row_named(b"curl_easy_init").is_none());
    }
}
