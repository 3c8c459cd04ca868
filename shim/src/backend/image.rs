//! Device memory of a code image: the loaded sections of a cubin, which is an ELF file, or the variables that PTX
//! declares. Source: the ELF format (gabi); the sections' names as `cuobjdump -elf` shows them; NVIDIA, PTX ISA, state
//! spaces and variables.

use crate::process::errno::KeepErrno;
use crate::process::peek::read_memory;
use std::mem::MaybeUninit;

const HEADER: usize = 64;
const SECTION: usize = 64;
/// A cubin of a large library has some thousand sections.
const MOST_SECTIONS: u64 = 1 << 14;
/// Loaded into memory: `SHF_ALLOC`.
const ALLOC: u64 = 2;
/// Memory of a block of threads or of one thread. It is not loaded.
const NOT_LOADED: [&[u8]; 2] = [b".nv.shared", b".nv.local"];

/// Returns the device bytes of the image at an address once all of it is loaded, as far as it states them. `None` if it
/// states nothing: a file name, a fat binary, PTX without variables.
pub(crate) fn device_bytes(image: u64) -> Option<u64> {
    let _errno = KeepErrno::new();
    of_cubin(image).or_else(|| Some(of_ptx(&text(image)?)).filter(|&bytes| bytes > 0))
}

fn of_cubin(image: u64) -> Option<u64> {
    let header: [u8; HEADER] = read(image)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let word = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().unwrap_or(&[0; 8]));
    let half = |at: usize| u64::from(u16::from_le_bytes(*header[at..].first_chunk().unwrap_or(&[0; 2])));
    let (sections, size, number, names) = (image.checked_add(word(0x28))?, half(0x3a), half(0x3c), half(0x3e));
    if size != SECTION as u64 || number > MOST_SECTIONS {
        return None;
    }
    let section = |number: u64| read::<SECTION>(sections.checked_add(number * size)?);
    let of = |section: &[u8; SECTION], at: usize| u64::from_le_bytes(*section[at..].first_chunk().unwrap_or(&[0; 8]));
    let names = image.checked_add(of(&section(names)?, 0x18))?;
    let mut sum = 0_u64;
    for number in 0..number {
        let section = section(number)?;
        let name = names.checked_add(of(&section, 0) & u64::from(u32::MAX))?;
        if of(&section, 8) & ALLOC != 0 && !is_not_loaded(name)? {
            sum = sum.saturating_add(of(&section, 0x20));
        }
    }
    Some(sum)
}

/// True if a section with the name at this address is not loaded.
fn is_not_loaded(name: u64) -> Option<bool> {
    let name: [u8; 10] = read(name)?;
    Some(NOT_LOADED.iter().any(|prefix| name.starts_with(prefix)))
}

/// Reads `N` bytes from an address; `None` if they are not mapped.
fn read<const N: usize>(address: u64) -> Option<[u8; N]> {
    let mut bytes = [MaybeUninit::uninit(); N];
    read_memory(address, &mut bytes).first_chunk().copied()
}

/// Reads the PTX at an address, up to its NUL; `None` if there is none.
fn text(image: u64) -> Option<Vec<u8>> {
    /// The compiler takes minutes for more.
    const MOST: usize = 16 << 20;
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    while text.len() < MOST {
        let at = image.checked_add(text.len() as u64)?;
        let mut page = [MaybeUninit::uninit(); PAGE as usize];
        // Mapped memory ends with a page.
        let read = read_memory(at, &mut page[..(PAGE - at % PAGE) as usize]);
        let end = read.iter().position(|&byte| byte == 0);
        text.extend_from_slice(&read[..end.unwrap_or(read.len())]);
        if text.len() as u64 >= PAGE && !is_ptx(&text) || read.is_empty() {
            return None;
        }
        if end.is_some() {
            return is_ptx(&text).then_some(text);
        }
    }
    None
}

/// True for text whose first statement is PTX's. Comments may come before it.
fn is_ptx(text: &[u8]) -> bool {
    text.windows(9).any(|word| word == b".version ")
}

/// Returns the bytes of the variables that PTX declares in device memory.
fn of_ptx(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    // These end with their line, and everything else with a semicolon or a brace.
    let is_directive =
        |line: &&str| [".version", ".target", ".address_size", ".file"].iter().any(|name| line.starts_with(name));
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let lines = lines.filter(|line| !is_directive(line));
    let code = lines.collect::<Vec<_>>().join(" ");
    code.split([';', '{', '}']).filter_map(declared).reduce(u64::saturating_add).unwrap_or(0)
}

/// Returns the bytes of the variables that a statement declares, such as `.visible .global .align 4 .b8 table[1024]`.
fn declared(statement: &str) -> Option<u64> {
    let begin = statement.find(".global").into_iter().chain(statement.find(".const")).min()?;
    let (linking, rest) = statement.split_at(begin);
    if linking.split_whitespace().any(|word| ![".visible", ".weak", ".common"].contains(&word)) {
        return None;
    }
    let (names, _) = rest.split_once('=').unwrap_or((rest, ""));
    let mut words = names.split_whitespace().skip(1).skip_while(|word| !word.starts_with('.') || *word == ".align");
    let mut each = 1_u64;
    let bytes = loop {
        match words.next()?.strip_prefix('.')? {
            "v2" => each = 2,
            "v4" => each = 4,
            "align" => drop(words.next()),
            "f16x2" => break 4,
            name => break name.trim_start_matches(char::is_alphabetic).parse::<u64>().ok()? / 8,
        }
    };
    let names = words.collect::<String>();
    let size = |name: &str| {
        let places = name.split('[').skip(1).map(|places| places.trim_end_matches(']').parse().unwrap_or(1));
        [bytes, each].into_iter().chain(places).reduce(u64::saturating_mul)
    };
    names.split(',').filter_map(size).reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a cubin with these sections: name, flags, bytes.
    fn cubin(sections: &[(&str, u64, u64)]) -> Vec<u8> {
        let mut names = vec![0];
        let mut rows = vec![[0_u8; SECTION]];
        let mut add = |name: &str, flags: u64, at: u64, bytes: u64| {
            let mut row = [0; SECTION];
            row[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            row[8..16].copy_from_slice(&flags.to_le_bytes());
            row[0x18..0x20].copy_from_slice(&at.to_le_bytes());
            row[0x20..0x28].copy_from_slice(&bytes.to_le_bytes());
            names.extend(name.bytes().chain([0]));
            rows.push(row);
        };
        add(".shstrtab", 0, HEADER as u64, 0);
        sections.iter().for_each(|&(name, flags, bytes)| add(name, flags, 0, bytes));
        // The read of the last name goes beyond it.
        names.extend([0; 16]);
        let mut image = vec![0; HEADER];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[0x28..0x30].copy_from_slice(&((HEADER + names.len()) as u64).to_le_bytes());
        image[0x3a..0x40].copy_from_slice(&[SECTION as u8, 0, rows.len() as u8, 0, 1, 0]);
        image.extend(names);
        image.extend(rows.iter().flatten());
        image
    }

    #[test]
    fn what_is_loaded_is_added_up() {
        let image =
            cubin(&[(".text.k", 6, 4096), (".nv.global", 3, 1 << 24), (".nv.shared.k", 3, 512), (".nv.info", 0, 99)]);
        assert_eq!(device_bytes(image.as_ptr() as u64), Some(4096 + (1 << 24)));
    }

    #[test]
    fn what_is_no_cubin_has_no_size() {
        let mut image = cubin(&[(".text.k", 6, 4096)]);
        assert_eq!(
            device_bytes(c".version 7.0 .target sm_52 and enough text behind it, as PTX has always".as_ptr() as u64),
            None
        );
        assert_eq!(device_bytes(8), None);
        assert_eq!(device_bytes(c"./file.cubin".as_ptr() as u64), None);
        // Its section table is at an invalid address.
        image[0x28..0x30].copy_from_slice(&(1_u64 << 46).to_le_bytes());
        assert_eq!(device_bytes(image.as_ptr() as u64), None);
    }

    #[test]
    fn variables_of_ptx_are_added_up() {
        let ptx = c"// made by hand\n.version 7.0\n.target sm_52\n.visible .global .align 4 .b8 big[16777216];\n\
                    .const .align 8 .u64 table[4][2] = {1, 2};\n.global .v4 .f32 one; .global .u32 a, b[3];\n\
                    .extern .global .b8 elsewhere[4096];\n.shared .b8 block[512];\n\
                    .visible .entry k(.param .u64 .ptr .global .align 1 p){ ld.global.u32 %r1, [a]; ret;}\n";
        assert_eq!(device_bytes(ptx.as_ptr() as u64), Some((16 << 20) + 64 + 16 + 16));
    }
}
