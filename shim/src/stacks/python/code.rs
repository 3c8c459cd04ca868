//! Reads code objects.

use super::known::{mix, mix_bytes};
use super::lines;
use super::memory::Memory;
use super::versions::*;

/// Addresses of the interpreter's types, by which objects are recognised.
#[derive(Clone, Copy)]
pub(super) struct Types {
    pub code: u64,
    pub text: u64,
    pub bytes: u64,
}

/// A function, or another kind of Python code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// Qualified if the version has that; in UTF-8, like all texts here.
    pub name: Vec<u8>,
    pub file: Vec<u8>,
    pub first_line: u32,
}

impl Code {
    /// True for the code from which the interpreter runs a class's `__init__` (3.12 and later, `_Py_InitCleanup`).
    pub(super) fn is_the_interpreters(&self) -> bool {
        self.name == b"__init__" && self.file == b"__init__"
    }
}

/// Bytes of a code object that are read, behind its count of references: that changes at each call.
pub(super) const CODE_BYTES: usize = 136;
/// Bytes of a text, or of a line table, that go into a print: the first ones, and the last eight.
const PRINTED: usize = 256;
/// Longest text, in characters, and longest line table that are read.
const MOST_CHARACTERS: u64 = 2048;
const MOST_BYTES: u64 = 48 << 10;

/// Reads the object at an address; returns true if it is a code object.
#[inline(always)]
pub(super) fn read_code(memory: &mut Memory, types: &Types, code: u64) -> bool {
    code != 0
        && memory.window(code.wrapping_add(OBJECT_TYPE), CODE_BYTES).is_some()
        && memory.word(code.wrapping_add(OBJECT_TYPE)) == Some(types.code)
}

/// Returns a number for a place in a code object. Another code object of the same interpreter has another number.
/// `None` if the code object has no serial number. `era` is a number of that interpreter.
#[inline(always)]
pub(super) fn print_of_serial(memory: &mut Memory, shape: &Shape, era: u64, code: u64, at: i64) -> Option<u64> {
    let serial = memory.half(code.wrapping_add(shape.serial)).filter(|&serial| serial != 0)?;
    let sum = mix(mix(mix(era, code), at as u64), u64::from(serial));
    Some(sum ^ sum >> 29)
}

/// Returns a number for a place in a code object. Another function, file or line table gives another number, also at
/// the same address. If the version gives the object's serial number, that replaces the line table.
#[inline(always)]
pub(super) fn print(memory: &mut Memory, shape: &Shape, code: u64, at: i64) -> Option<u64> {
    let mut word = |offset| memory.word(code + offset);
    let (name, file, table) = (word(shape.name)?, word(shape.file)?, word(shape.lines_at)?);
    let first = u64::from(memory.half(code + shape.first_line)?);
    let serial = if shape.serial == 0 { 0 } else { memory.half(code + shape.serial)? };
    let sum = mix(mix(code, at as u64), first | u64::from(serial) << 32);
    let sum = mix(mix(mix(sum, name), file), table);
    let sum = print_text(memory, shape, name, sum)?;
    let sum = print_text(memory, shape, file, sum)?;
    // Subinterpreters, and a restarted interpreter, count from 1.
    if serial != 0 {
        return Some(sum ^ sum >> 29);
    }
    let len = memory.word(table.wrapping_add(BYTES_LENGTH))?;
    let sum = print_bytes(memory, table.wrapping_add(BYTES), len, mix(sum, len))?;
    Some(sum ^ sum >> 29)
}

/// Returns a number for a text: from its hash, a keyed one of 64 bits, if the interpreter has computed that, else from
/// its contents.
#[inline(always)]
fn print_text(memory: &mut Memory, shape: &Shape, text: u64, sum: u64) -> Option<u64> {
    const NO_HASH: u64 = u64::MAX;
    memory.window(text.wrapping_add(TEXT_LENGTH), (shape.ascii - TEXT_LENGTH) as usize)?;
    let (len, hash) = (memory.word(text + TEXT_LENGTH)?, memory.word(text + TEXT_HASH)?);
    let sum = mix(sum, len);
    if hash != NO_HASH {
        return Some(mix(sum, hash));
    }
    let form = Form::of(memory.half(text + TEXT_FORM)?);
    print_bytes(memory, text + form.head(shape), len.checked_mul(form.width)?, sum)
}

#[inline(always)]
fn print_bytes(memory: &mut Memory, at: u64, len: u64, sum: u64) -> Option<u64> {
    if len <= PRINTED as u64 {
        return Some(mix_bytes(sum, memory.bytes(at, len as usize)?));
    }
    let sum = mix_bytes(sum, memory.bytes(at, PRINTED)?);
    Some(mix_bytes(sum, memory.bytes(at.checked_add(len - 8)?, 8)?))
}

/// Storage form of a text's characters.
struct Form {
    width: u64,
    compact: bool,
    ascii: bool,
}

impl Form {
    fn of(bits: u32) -> Self {
        Self { width: u64::from(bits >> 2 & 7), compact: bits & 1 << 5 != 0, ascii: bits & 1 << 6 != 0 }
    }

    fn head(&self, shape: &Shape) -> u64 {
        if self.ascii { shape.ascii } else { shape.compact }
    }
}

/// Returns the code object in words, and the line of a place in it.
///
/// # Errors
/// The property that is not as expected.
#[cold]
pub(super) fn read(
    memory: &mut Memory,
    shape: &Shape,
    types: &Types,
    code: u64,
    at: i64,
) -> Result<(Code, u32), &'static str> {
    const GONE: &str = "a code object is not there";
    if !read_code(memory, types, code) {
        return Err("a frame leads to no code object");
    }
    let mut word = |offset| memory.word(code + offset).ok_or(GONE);
    let (name, file, table) = (word(shape.name)?, word(shape.file)?, word(shape.lines_at)?);
    let first_line = memory.half(code + shape.first_line).ok_or(GONE)?;
    let name = text(memory, shape, types, name)?;
    let file = text(memory, shape, types, file)?;
    memory.window_among_others(table.wrapping_add(OBJECT_TYPE), (BYTES - OBJECT_TYPE) as usize).ok_or(GONE)?;
    if memory.word(table.wrapping_add(OBJECT_TYPE)) != Some(types.bytes) {
        return Err("a code object has no table of lines");
    }
    let len = memory.word(table.wrapping_add(BYTES_LENGTH)).ok_or(GONE)?.min(MOST_BYTES);
    let table = memory.bytes(table.wrapping_add(BYTES), len as usize).ok_or(GONE)?;
    let line = lines::line(shape.lines, table, first_line, at);
    Ok((Code { name, file, first_line }, line))
}

fn text(memory: &mut Memory, shape: &Shape, types: &Types, at: u64) -> Result<Vec<u8>, &'static str> {
    const ODD: &str = "a code object's name is no text";
    memory.window_among_others(at.wrapping_add(OBJECT_TYPE), (shape.ascii - OBJECT_TYPE) as usize).ok_or(ODD)?;
    if memory.word(at.wrapping_add(OBJECT_TYPE)) != Some(types.text) {
        return Err(ODD);
    }
    let form = Form::of(memory.half(at.wrapping_add(TEXT_FORM)).ok_or(ODD)?);
    let len = memory.word(at.wrapping_add(TEXT_LENGTH)).ok_or(ODD)?.min(MOST_CHARACTERS);
    if !form.compact || (form.ascii && form.width != 1) {
        return Err(ODD);
    }
    let bytes = memory.bytes(at.wrapping_add(form.head(shape)), (len * form.width) as usize).ok_or(ODD)?;
    let unit = |unit: u32| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER);
    let text: String = match form.width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => bytes.as_chunks::<2>().0.iter().map(|&two| unit(u16::from_ne_bytes(two).into())).collect(),
        4 => bytes.as_chunks::<4>().0.iter().map(|&four| unit(u32::from_ne_bytes(four))).collect(),
        _ => return Err(ODD),
    };
    Ok(text.into_bytes())
}
