//! The tables of one object's dynamic section: its symbols by name, and the libraries it was linked with.
//!
//! A `dlclose` in another thread may unmap this memory. So callers read it while the loader's list is locked, or only
//! for objects that stay. No function of another library is called, not even `memcpy` or `strlen`, for the reason in
//! [`super::shown`]. Bytes are read as volatile, since the compiler would turn a plain loop into such a call.

use std::ffi::CStr;
use std::ptr;

/// A name to look up, with its hash.
pub(crate) struct Name<'a> {
    bytes: &'a [u8],
    gnu: u32,
}

impl<'a> Name<'a> {
    pub(crate) fn new(name: &'a CStr) -> Self {
        let bytes = name.to_bytes();
        let gnu = bytes.iter().fold(5381_u32, |h, &c| h.wrapping_mul(33).wrapping_add(u32::from(c)));
        Self { bytes, gnu }
    }

    /// Returns the hash of objects without a GNU hash table, which are rare.
    fn sysv(&self) -> u32 {
        self.bytes.iter().fold(0_u32, |h, &c| {
            let h = (h << 4).wrapping_add(u32::from(c));
            let high = h & 0xf000_0000;
            (h ^ (high >> 24)) & !high
        })
    }

    /// True if the C string at an address is this name.
    ///
    /// # Safety
    /// There is a C string at `text`.
    unsafe fn is_at(&self, text: *const u8) -> bool {
        // SAFETY: our caller vouches for a C string. The loop stops at the first byte that differs,
        // so nothing behind the NUL is read.
        unsafe {
            for (index, byte) in self.bytes.iter().enumerate() {
                if text.add(index).read_volatile() != *byte {
                    return false;
                }
            }
            text.add(self.bytes.len()).read_volatile() == 0
        }
    }
}

/// The tables that a lookup needs.
pub(super) struct Tables {
    bias: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const u8,
    gnu_hash: *const u32,
    sysv_hash: *const u32,
}

/// Iterates over tags and values of a dynamic section.
///
/// # Safety
/// `dynamic` is the address of a dynamic section, mapped for as long as the iterator is used.
pub(super) unsafe fn entries(dynamic: usize) -> impl Iterator<Item = (i64, usize)> {
    let mut entry = dynamic as *const [i64; 2];
    std::iter::from_fn(move || {
        // SAFETY: our caller vouches for a mapped dynamic section. It ends with a DT_NULL entry,
        // behind which no entry is used.
        let [tag, value] = unsafe { *entry };
        entry = entry.wrapping_add(1);
        (tag != 0).then_some((tag, value as usize))
    })
}

impl Tables {
    /// Returns the tables of the object with this dynamic section; `dynamic` is 0 for an object without one.
    ///
    /// # Safety
    /// The object is mapped, and stays so while the tables are used.
    pub(super) unsafe fn of(bias: usize, dynamic: usize) -> Option<Self> {
        const DT_HASH: i64 = 4;
        const DT_STRTAB: i64 = 5;
        const DT_SYMTAB: i64 = 6;
        const DT_GNU_HASH: i64 = 0x6fff_fef5;
        if dynamic == 0 {
            return None;
        }
        let mut found =
            Self { bias, symbols: ptr::null(), strings: ptr::null(), gnu_hash: ptr::null(), sysv_hash: ptr::null() };
        // SAFETY: our caller vouches that the object is mapped, and so is its dynamic section.
        for (tag, value) in unsafe { entries(dynamic) } {
            // glibc has relocated these in place, except in objects that it maps read-only (the vDSO).
            let address = if value < bias { bias + value } else { value };
            match tag {
                DT_HASH => found.sysv_hash = address as *const u32,
                DT_STRTAB => found.strings = address as *const u8,
                DT_SYMTAB => found.symbols = address as *const libc::Elf64_Sym,
                DT_GNU_HASH => found.gnu_hash = address as *const u32,
                _ => {}
            }
        }
        (!found.symbols.is_null() && !found.strings.is_null()).then_some(found)
    }

    /// Returns the string at an offset of the string table.
    pub(super) fn string(&self, offset: usize) -> *const u8 {
        self.strings.wrapping_add(offset)
    }

    /// Returns the address of a symbol that the object itself defines, of any version; 0 if it does not.
    ///
    /// # Safety
    /// As for [`Tables::of`].
    pub(super) unsafe fn find(&self, name: &Name) -> usize {
        // SAFETY: our caller vouches that the object is mapped. The branch has checked that the
        // hash table it reads is there.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.find_gnu(name)
            } else if !self.sysv_hash.is_null() {
                self.find_sysv(name)
            } else {
                0
            }
        }
    }

    /// Returns the address of this symbol if it has the name and is defined; else 0.
    ///
    /// # Safety
    /// As for [`Tables::of`]; `index` is the index of a symbol.
    unsafe fn defined(&self, index: usize, name: &Name) -> usize {
        // SAFETY: our caller vouches that the object is mapped and that `index` is a symbol's. The
        // symbol's name lies in the object's string table.
        unsafe {
            let symbol = self.symbols.add(index);
            let kind = (*symbol).st_info & 0xf;
            // STT_NOTYPE, STT_OBJECT, STT_FUNC: in these libraries a real function is never an ifunc.
            if (*symbol).st_shndx == 0 || kind > 2 || !name.is_at(self.strings.add((*symbol).st_name as usize)) {
                return 0;
            }
            self.bias + (*symbol).st_value as usize
        }
    }

    /// # Safety
    /// As for [`Tables::of`]; the object has a GNU hash table.
    unsafe fn find_gnu(&self, name: &Name) -> usize {
        // SAFETY: our caller vouches for a DT_GNU_HASH table: four words, the bloom filter, the
        // buckets, the chains. All reads stay in that layout.
        unsafe {
            let table = self.gnu_hash;
            let (buckets, first, bloom, shift) = (*table, *table.add(1), *table.add(2) as usize, *table.add(3));
            if buckets == 0 || bloom == 0 {
                return 0;
            }
            let filter = *table.add(4).cast::<u64>().add((name.gnu as usize / 64) % bloom);
            let bit = |hash: u32| 1 << (hash % 64);
            let wanted: u64 = bit(name.gnu) | bit(name.gnu.checked_shr(shift).unwrap_or(0));
            if filter & wanted != wanted {
                return 0;
            }
            let bucket_at = table.add(4).add(bloom * 2);
            let chains = bucket_at.add(buckets as usize);
            let mut index = *bucket_at.add((name.gnu % buckets) as usize);
            if index < first {
                return 0;
            }
            loop {
                let entry = *chains.add((index - first) as usize);
                if (entry | 1) == (name.gnu | 1) {
                    let address = self.defined(index as usize, name);
                    if address != 0 {
                        return address;
                    }
                }
                if entry & 1 == 1 {
                    return 0;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// As for [`Tables::of`]; the object has a SysV hash table.
    unsafe fn find_sysv(&self, name: &Name) -> usize {
        // SAFETY: our caller vouches for a DT_HASH table: two counts, the buckets, the chains. All
        // reads stay in that layout.
        unsafe {
            let (buckets, table) = (*self.sysv_hash, self.sysv_hash);
            if buckets == 0 {
                return 0;
            }
            let mut index = *table.add(2 + (name.sysv() % buckets) as usize);
            while index != 0 {
                let address = self.defined(index as usize, name);
                if address != 0 {
                    return address;
                }
                index = *table.add(2 + buckets as usize + index as usize);
            }
            0
        }
    }
}
