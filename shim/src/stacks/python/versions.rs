//! Offsets of CPython's data that a walk reads, by version.
//!
//! 3.9 to 3.12 do not publish them: these numbers are from their headers, which no release of a minor version has
//! changed. 3.13 and later publish most of them at the beginning of `_PyRuntime`. No number is trusted before
//! [`super::verdict`] has tried it on this process.

use crate::process::peek::read_value;

/// Versions whose frames are read, as a text.
pub(super) const KNOWN: &str = "3.9 to 3.14";

/// A release, in the form of `Py_Version`: major, minor and micro version, level and serial, from the upper byte down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(pub u32);

impl Version {
    pub(super) fn minor(self) -> (u8, u8) {
        ((self.0 >> 24) as u8, (self.0 >> 16) as u8)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ((major, minor), micro, level) = (self.minor(), (self.0 >> 8) as u8, (self.0 >> 4) & 0xf);
        match (self.0 & 0xffff, level) {
            // Before 3.11 only the minor version is known.
            (0, _) => write!(f, "CPython {major}.{minor}"),
            (_, 0xf) => write!(f, "CPython {major}.{minor}.{micro}"),
            _ => write!(f, "CPython {major}.{minor}.{micro}, a pre-release"),
        }
    }
}

/// The reference from a thread's state to its innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Innermost {
    /// At this offset.
    Here(u64),
    /// At the second offset of the structure that the first offset leads to, which lies on the thread's own stack.
    There(u64, u64),
}

/// A frame's position in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// As a number of units: offset of the number, and bytes of a unit.
    Number(u64, i64),
    /// As an address. The code begins at the second offset of the code object.
    Address(u64, u64),
}

/// The mark of a frame that native code called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Native code calls each frame.
    Each,
    /// This byte is the mark.
    Flag(u64),
    /// A frame behind it that is not Python's is the mark: this byte is 3 or more there.
    Trampoline(u64),
}

/// Format of a line table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// Steps of address and line (3.9).
    Steps,
    /// Ranges with the step of the line (3.10).
    Ranges,
    /// Entries of several forms (3.11 and later).
    Entries,
}

/// All offsets of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub thread_id: u64,
    pub innermost: Innermost,
    pub previous: u64,
    pub code: u64,
    pub instruction: Instruction,
    pub entry: Entry,
    pub first_line: u64,
    /// The qualified name, if the version has one.
    pub name: u64,
    pub file: u64,
    pub lines_at: u64,
    pub lines: Lines,
    /// A number of a code object that no other one of the same interpreter has; 0 if there is none.
    pub serial: u64,
    /// The interpreter in a thread's state, if the version has serial numbers.
    pub interpreter: u64,
    /// Bytes of a text's head: of one in ASCII, and of any other.
    pub ascii: u64,
    pub compact: u64,
}

impl Shape {
    /// Returns the bytes of a frame that are read, all within the frame.
    pub(super) fn frame_bytes(&self) -> usize {
        let last = match (self.instruction, self.entry) {
            (Instruction::Number(at, _), _) => at + 4,
            (_, Entry::Flag(at) | Entry::Trampoline(at)) => at + 1,
            (Instruction::Address(at, _), Entry::Each) => at + 8,
        };
        last.next_multiple_of(8) as usize
    }
}

/// For every version: the type of an object; length, hash and form of a text; length and bytes of a `bytes`.
pub(super) const OBJECT_TYPE: u64 = 8;
pub(super) const TEXT_LENGTH: u64 = 16;
pub(super) const TEXT_HASH: u64 = 24;
pub(super) const TEXT_FORM: u64 = 32;
pub(super) const BYTES_LENGTH: u64 = 16;
pub(super) const BYTES: u64 = 32;

const V39: Shape = Shape {
    thread_id: 176,
    innermost: Innermost::Here(24),
    previous: 24,
    code: 32,
    instruction: Instruction::Number(104, 1),
    entry: Entry::Each,
    first_line: 40,
    name: 112,
    file: 104,
    lines_at: 120,
    lines: Lines::Steps,
    serial: 0,
    interpreter: 0,
    ascii: 48,
    compact: 72,
};

const V310: Shape = Shape { instruction: Instruction::Number(96, 2), lines: Lines::Ranges, ..V39 };

const V311: Shape = Shape {
    thread_id: 152,
    innermost: Innermost::There(56, 8),
    previous: 48,
    code: 32,
    instruction: Instruction::Address(56, 184),
    entry: Entry::Flag(68),
    first_line: 72,
    name: 128,
    file: 112,
    lines_at: 136,
    lines: Lines::Entries,
    serial: 0,
    interpreter: 0,
    ascii: 48,
    compact: 72,
};

const V312: Shape = Shape {
    thread_id: 136,
    innermost: Innermost::There(56, 0),
    previous: 8,
    code: 0,
    instruction: Instruction::Address(56, 192),
    entry: Entry::Trampoline(70),
    first_line: 68,
    serial: 92,
    interpreter: 16,
    ascii: 40,
    compact: 56,
    ..V311
};

/// Offsets in `_Py_DebugOffsets` of the published offsets.
struct Published {
    interpreter: u64,
    current_frame: u64,
    thread_id: u64,
    previous: u64,
    executable: u64,
    instruction: u64,
    owner: u64,
    file: u64,
    name: u64,
    lines: u64,
    first_line: u64,
    code: u64,
    ascii: u64,
}

const P313: Published = Published {
    interpreter: 176,
    current_frame: 184,
    thread_id: 192,
    previous: 232,
    executable: 240,
    instruction: 248,
    owner: 264,
    file: 280,
    name: 296,
    lines: 304,
    first_line: 312,
    code: 344,
    ascii: 560,
};

const P314: Published = Published {
    interpreter: 200,
    current_frame: 208,
    thread_id: 216,
    previous: 256,
    executable: 264,
    instruction: 272,
    owner: 288,
    file: 320,
    name: 336,
    lines: 344,
    first_line: 352,
    code: 384,
    ascii: 640,
};

/// Returns the shape of a release whose `_PyRuntime` lies at an address.
///
/// # Errors
/// Why its frames cannot be read.
pub(super) fn shape(version: Version, runtime: u64) -> Result<Shape, String> {
    match version.minor() {
        (3, 9) => Ok(V39),
        (3, 10) => Ok(V310),
        (3, 11) => Ok(V311),
        (3, 12) => Ok(V312),
        (3, 13) => published(version, runtime, &P313),
        (3, 14) => published(version, runtime, &P314),
        _ => Err(format!("this release reads the frames of {KNOWN}")),
    }
}

fn published(version: Version, runtime: u64, at: &Published) -> Result<Shape, String> {
    const COOKIE: [u8; 8] = *b"xdebugpy";
    /// Upper bound for these numbers: every structure of the interpreter is shorter than this.
    const MOST: u64 = 4096;
    let word = |offset: u64| read_value::<u64>(runtime + offset).ok_or("its offsets cannot be read");
    if read_value::<[u8; 8]>(runtime) != Some(COOKIE) || word(8)? != u64::from(version.0) {
        return Err("it does not publish its offsets".into());
    }
    if word(16)? != 0 {
        return Err("it is a free-threaded build, whose frames other threads may change".into());
    }
    let offset =
        |offset: u64| word(offset).and_then(|word| if word < MOST { Ok(word) } else { Err("its offsets are odd") });
    let ascii = offset(at.ascii)?;
    let [first_line, file, name, lines_at] =
        [offset(at.first_line)?, offset(at.file)?, offset(at.name)?, offset(at.lines)?];
    // The place of the serial number is not published: it lies where it did if all around it does.
    let is_as_before = (first_line, file, name, lines_at) == (V312.first_line, V312.file, V312.name, V312.lines_at);
    Ok(Shape {
        thread_id: offset(at.thread_id)?,
        innermost: Innermost::Here(offset(at.current_frame)?),
        previous: offset(at.previous)?,
        code: offset(at.executable)?,
        instruction: Instruction::Address(offset(at.instruction)?, offset(at.code)?),
        entry: Entry::Trampoline(offset(at.owner)?),
        first_line,
        name,
        file,
        lines_at,
        serial: if is_as_before { V312.serial } else { 0 },
        interpreter: offset(at.interpreter)?,
        ascii,
        compact: ascii + 16,
        ..V312
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(Version(0x030b_07f0).to_string(), "CPython 3.11.7");
        assert_eq!(Version(0x030a_0000).to_string(), "CPython 3.10");
        assert_eq!(Version(0x030f_00a1).to_string(), "CPython 3.15.0, a pre-release");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for version in [0x0308_12f0, 0x030f_00f0, 0x0400_00f0, 0x0207_12f0] {
            assert!(shape(Version(version), 0).is_err_and(|why| why.contains("3.9 to 3.14")), "{version:x}");
        }
        assert_eq!(shape(Version(0x030d_00f0), 0), Err("it does not publish its offsets".into()));
    }

    /// Offsets published by 3.13, and by a free-threaded build of it.
    #[test]
    fn published_offsets_are_taken() {
        let mut words = vec![0_u64; 512];
        words[0] = u64::from_ne_bytes(*b"xdebugpy");
        words[1] = 0x030d_01f0;
        for (place, value) in [(P313.current_frame, 72), (P313.thread_id, 152), (P313.owner, 70), (P313.ascii, 40)] {
            words[place as usize / 8] = value;
        }
        let at = |words: &Vec<u64>| words.as_ptr() as u64;
        let shape = |words: &Vec<u64>| super::shape(Version(0x030d_01f0), at(words));
        let found = shape(&words).expect("they are there");
        assert_eq!((found.innermost, found.thread_id), (Innermost::Here(72), 152));
        assert_eq!((found.entry, found.compact), (Entry::Trampoline(70), 56));
        words[2] = 1;
        assert!(shape(&words).is_err_and(|why| why.contains("free-threaded")));
        words[2] = 0;
        words[P313.owner as usize / 8] = 1 << 20;
        assert!(shape(&words).is_err_and(|why| why.contains("odd")));
    }
}
