//! Finds the rule of a code address in the object's .eh_frame_hdr and .eh_frame.
//!
//! Everything is copied before it is parsed (about twelve small reads, a few microseconds, once per address): another
//! thread may unload the object at any moment.

use std::mem::MaybeUninit;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, Operation, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};

use super::modules::Module;
use super::rules::{Kind, Rule, SavedFp};
use crate::process::peek::{read_memory, read_value};

/// Maximum bytes of a CIE and an FDE together. An FDE's program is cut, not refused: rows before the cut are right (the
/// longest of libtorch_cuda and CPython are a few KiB).
const MOST_BYTES: usize = 8192;
const MOST_CIE: usize = 512;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Fixed room for gimli: x86-64 has 17 registers with rules.
struct InPlace;

impl UnwindContextStorage<usize> for InPlace {
    type Rules = [(Register, RegisterRule<usize>); 32];
    type Stack = [UnwindTableRow<usize, InPlace>; 4];
}

/// Returns the rule for `address` in `module`.
#[inline(never)]
pub(super) fn rule_for(module: &Module, address: u64) -> Rule {
    find_fde(module.eh_frame_hdr, address).and_then(|fde| read_rule(fde, address)).unwrap_or(Rule::UNKNOWN)
}

/// Searches the table of .eh_frame_hdr by bisection, in the form that all linkers write: pairs of signed 32-bit
/// distances from the header, function and FDE.
fn find_fde(header: u64, address: u64) -> Option<u64> {
    const UDATA4: u8 = 0x03;
    const DATAREL_SDATA4: u8 = 0x3b;
    const AT_ONCE: u64 = 128;
    if header == 0 {
        return None;
    }
    let head: [u8; 12] = read_value(header)?;
    if head[0] != 1 || head[2] != UDATA4 || head[3] != DATAREL_SDATA4 {
        return None;
    }
    let table = header + 12;
    let wanted = i32::try_from(address.wrapping_sub(header) as i64).ok()?;
    let start_of = |entry: u64| read_value::<u32>(table + entry * 8).map(|start| start as i32);
    // The entry sought is in first..end.
    let (mut first, mut end) = (0, u64::from(u32::from_le_bytes([head[8], head[9], head[10], head[11]])));
    while end - first > AT_ONCE {
        let middle = first + (end - first) / 2;
        if start_of(middle)? <= wanted { first = middle } else { end = middle }
    }
    let mut entries = [MaybeUninit::uninit(); AT_ONCE as usize * 8];
    let entries = read_memory(table + first * 8, &mut entries[..(end - first) as usize * 8]);
    let distance = |at: &[u8]| i32::from_le_bytes([at[0], at[1], at[2], at[3]]);
    let entry = entries.chunks_exact(8).take_while(|entry| distance(entry) <= wanted).last()?;
    Some(header.wrapping_add_signed(distance(&entry[4..]).into()))
}

/// Evaluates the FDE for `address`.
fn read_rule(fde: u64, address: u64) -> Option<Rule> {
    // The two entries follow each other as if they were a whole section.
    let mut buffer = [MaybeUninit::uninit(); MOST_BYTES];
    let head: [u8; 8] = read_value(fde)?;
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let fde_len = word(&head) as usize + 4;
    let cie = (fde + 4).checked_sub(word(&head[4..]).into())?;
    let cie_len = read_value::<u32>(cie)? as usize + 4;
    if cie_len > MOST_CIE || fde_len < 16 {
        return None;
    }
    let fde_len = fde_len.min(MOST_BYTES - cie_len);
    if read_memory(cie, &mut buffer[..cie_len]).len() < cie_len
        || read_memory(fde, &mut buffer[cie_len..cie_len + fde_len]).len() < fde_len
    {
        return None;
    }
    let put = |at: &mut [MaybeUninit<u8>], value: usize| {
        at.iter_mut().zip((value as u32).to_le_bytes()).for_each(|(to, byte)| *to = MaybeUninit::new(byte));
    };
    put(&mut buffer[cie_len..cie_len + 4], fde_len - 4);
    put(&mut buffer[cie_len + 4..cie_len + 8], cie_len + 4);
    // SAFETY: the lines above have written the first `cie_len + fde_len` bytes of `buffer`, which
    // has room for them.
    let section = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), cie_len + fde_len) };

    let mut frames = EhFrame::new(section, LittleEndian);
    frames.set_address_size(8);
    // The address at which the section would begin, for pointers relative to their own place.
    let bases = BaseAddresses::default().set_eh_frame(fde.wrapping_sub(cie_len as u64));
    let entry = frames.fde_from_offset(&bases, EhFrameOffset(cie_len), EhFrame::cie_from_offset).ok()?;
    if !entry.contains(address) {
        return None;
    }
    if entry.is_signal_trampoline() {
        return Some(Rule::SIGNAL);
    }
    let mut context = UnwindContext::<usize, InPlace>::new_in();
    let row = entry.unwind_info_for_address(&frames, &bases, &mut context, address).ok()?;
    if !row.contains(address) {
        return None;
    }
    to_rule(row, &frames, entry.cie().encoding())
}

fn to_rule(
    row: &UnwindTableRow<usize, InPlace>,
    frames: &EhFrame<Bytes<'_>>,
    encoding: gimli::Encoding,
) -> Option<Rule> {
    match row.register(X86_64::RA) {
        Some(RegisterRule::Offset(-8)) => {}
        None | Some(RegisterRule::Undefined) => return Some(Rule::END),
        _ => return None,
    }
    let from_fp = |expression: &UnwindExpression<usize>, then_load: bool| -> Option<i64> {
        let mut operations = expression.get(frames).ok()?.operations(encoding);
        let Some(Operation::RegisterOffset { register: X86_64::RBP, offset, .. }) = operations.next().ok()? else {
            return None;
        };
        if then_load && !matches!(operations.next().ok()?, Some(Operation::Deref { size: 8, .. })) {
            return None;
        }
        operations.next().ok()?.is_none().then_some(offset)
    };
    let (kind, cfa) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => (Kind::Sp, *offset),
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset } => (Kind::Fp, *offset),
        CfaRule::Expression(expression) => (Kind::AtFp, from_fp(expression, true)?),
        _ => return None,
    };
    let (saved, fp) = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => (SavedFp::Kept, 0),
        Some(RegisterRule::Offset(offset)) => (SavedFp::AtCfa, offset),
        Some(RegisterRule::Expression(expression)) => (SavedFp::AtFp, from_fp(&expression, false)?),
        _ => return None,
    };
    Rule::new(kind, cfa, saved, fp)
}
