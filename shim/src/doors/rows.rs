//! The rows of the driver's functions: what `dlsym` and `cuGetProcAddress` are asked for. [`super::driver`] has the
//! addresses of our functions.

use crate::backend::driver::{Function, HOOKS, N, Thunk, index_at, is_known_at};
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

/// Returns the row of a function. Thunks come after all functions with a hook.
const fn row(index: usize, name: &'static str, base: &'static str, since: u32, flavour: &str) -> Row {
    Row { index, name, base, since, per_thread: matches!(flavour.as_bytes(), b"ptds"), thunk: index >= HOOKS }
}

macro_rules! hooked {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HOOKED: [Row; Function::Count as usize] = [$(
            row(Function::$name as usize, stringify!($name), $base, $since, stringify!($flavour)),
        )*];
    };
}

gpumem_abi::driver_functions!(hooked);

macro_rules! thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        const THUNKS: [Row; Thunk::Count as usize] = [$(
            row(HOOKS + Thunk::$name as usize, stringify!($name), $base, $since, stringify!($flavour)),
        )*];
    };
}

gpumem_abi::graph_thunks!(thunks);

static ROWS: [Row; N] = join(HOOKED, THUNKS);

/// Indices of all rows, in the order of their names and of their bases.
static BY_NAME: [u16; N] = sorted(false);
static BY_BASE: [u16; N] = sorted(true);

/// Sorts the rows while this is compiled, so that no process has to.
const fn sorted(by_base: bool) -> [u16; N] {
    let (mut order, mut gap) = ([0; N], N);
    let mut index = 0;
    while index < N {
        order[index] = index as u16;
        index += 1;
    }
    while gap > 1 {
        gap = gap / 3 + 1;
        let mut next = gap;
        while next < N {
            let (moved, mut at) = (order[next], next);
            while at >= gap && is_before(moved, order[at - gap], by_base) {
                order[at] = order[at - gap];
                at -= gap;
            }
            order[at] = moved;
            next += 1;
        }
    }
    order
}

const fn is_before(one: u16, other: u16, by_base: bool) -> bool {
    let is_first = one < other;
    let (one, other) = (&ROWS[one as usize], &ROWS[other as usize]);
    let (one, other) = if by_base { (one.base, other.base) } else { (one.name, other.name) };
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    match (at < one.len(), at < other.len()) {
        (true, true) => one[at] < other[at],
        (false, false) => is_first,
        (_, is_longer) => is_longer,
    }
}

/// Returns all rows, in the order of the slots.
pub(crate) fn rows() -> &'static [Row] {
    &ROWS
}

/// Returns the row of a symbol, by its `dlsym` name.
pub fn row_named(name: &[u8]) -> Option<&'static Row> {
    let found = BY_NAME.binary_search_by(|&index| ROWS[index as usize].name.as_bytes().cmp(name)).ok()?;
    Some(&ROWS[BY_NAME[found] as usize])
}

/// Returns the rows of a base name.
pub(crate) fn rows_of(base: &[u8]) -> impl Iterator<Item = &'static Row> {
    let row = |index: &u16| &ROWS[*index as usize];
    let first = BY_BASE.partition_point(|index| row(index).base.as_bytes() < base);
    BY_BASE[first..].iter().map(row).take_while(move |row| row.base.as_bytes() == base)
}

/// True if this row's real function lies at an address.
pub(crate) fn is_at(row: &Row, address: usize) -> bool {
    is_known_at(row.index, address)
}

/// Returns the row whose real function lies at an address.
pub(crate) fn row_at(address: usize) -> Option<&'static Row> {
    index_at(address).map(|index| &rows()[index])
}

/// Returns the row for a base name at a version: the newest one that is not newer than the version.
pub(crate) fn row_for(base: &[u8], version: u32, per_thread: bool) -> Option<&'static Row> {
    let newest = |per_thread| {
        rows_of(base).filter(|row| row.since <= version && row.per_thread == per_thread).max_by_key(|row| row.since)
    };
    if per_thread { newest(true).or_else(|| newest(false)) } else { newest(false) }
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
        for row in rows() {
            let of_base = rows().iter().filter(|other| other.base == row.base).count();
            assert!(rows_of(row.base.as_bytes()).any(|found| found.index == row.index));
            assert_eq!(rows_of(row.base.as_bytes()).count(), of_base);
        }
        assert!(row_named(b"cuMemAlloc").is_none() && rows_of(b"cuMemAl").next().is_none());
        assert!(row_named(b"curl_easy_init").is_none());
    }
}
