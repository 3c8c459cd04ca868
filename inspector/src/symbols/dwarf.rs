//! Debug information (DWARF) of an address: functions, files and lines.

use super::files::Parsed;
use super::question::{MOST_INLINED, MOST_NAME, Symbol};
use super::words::cut;
use addr2line::{Context, FrameIter, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{AbbreviationsCacheStrategy, DwLang, DwarfPackage, EndianSlice, RunTimeEndian};
use std::path::PathBuf;
use std::sync::Arc;

type Bytes = EndianSlice<'static, RunTimeEndian>;

/// The debug information of one file.
pub(super) struct Dwarf {
    context: Option<Context<Bytes>>,
    package: Option<DwarfPackage<Bytes>>,
    /// The separate debug file that it was read from, if any, with a symbol table of its own.
    separate: Option<Parsed>,
}

impl Dwarf {
    /// Reads the debug information of a file, or of its separate debug file.
    pub(super) fn of(file: &Parsed) -> Self {
        let separate = file.separate();
        let from = separate.as_ref().unwrap_or(file);
        let package = file.package().and_then(|file| {
            let empty = Bytes::new(&[], endian(&file));
            DwarfPackage::load(|id| section(&file, id.dwo_name().unwrap_or_default()), empty).ok()
        });
        let context = if from.has_debug_information() { context(from).ok() } else { None };
        Self { context, package, separate }
    }

    /// Returns the separate file with the matching symbol table, if any.
    pub(super) fn with_names(&self) -> Option<PathBuf> {
        self.separate.as_ref().map(|file| file.opened.path())
    }

    /// Returns the functions at an address, innermost first. The last one has no name if only lines are known.
    pub(super) fn symbols(&self, address: u64) -> Vec<Symbol> {
        let Some(context) = &self.context else { return Vec::new() };
        let mut found = context.find_frames(address);
        let frames = loop {
            match found {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => found = continuation.resume(self.split(&load)),
            }
        };
        frames.map(symbols).unwrap_or_default()
    }

    fn split(&self, load: &SplitDwarfLoad<Bytes>) -> Option<Arc<gimli::Dwarf<Bytes>>> {
        self.package.as_ref()?.find_cu(load.dwo_id, &load.parent).ok()?.map(Arc::new)
    }
}

fn context(file: &Parsed) -> Result<Context<Bytes>, gimli::Error> {
    let mut dwarf = gimli::Dwarf::load(|id| needed(file, id))?;
    if let Some(shared) = file.shared() {
        dwarf.load_sup(|id| section(&shared, id.name()))?;
    }
    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
    Context::from_dwarf(dwarf)
}

/// Returns a section that names and lines need; no bytes for places of variables and for macros.
fn needed(file: &Parsed, id: gimli::SectionId) -> Result<Bytes, gimli::Error> {
    use gimli::SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
    match matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro) {
        true => Ok(Bytes::new(&[], endian(file))),
        false => section(file, id.name()),
    }
}

fn endian(file: &Parsed) -> RunTimeEndian {
    if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

fn section(file: &Parsed, name: &str) -> Result<Bytes, gimli::Error> {
    Ok(Bytes::new(file.section(name), endian(file)))
}

fn symbols(mut frames: FrameIter<'_, Bytes>) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        let function = frame.function.as_ref().and_then(|function| {
            let name = function.raw_name().ok()?;
            Some(demangled(&name, function.language))
        });
        let location = frame.location.as_ref();
        symbols.push(Symbol {
            function: cut(&function.unwrap_or_default(), MOST_NAME).to_owned(),
            file: location.and_then(|location| location.file).map(|file| cut(file, MOST_NAME).to_owned()),
            line: location.and_then(|location| location.line),
            inlined: true,
        });
    }
    // The outermost function is the one that was called; the others were inlined.
    if let Some(mut outermost) = symbols.pop() {
        outermost.inlined = false;
        symbols.truncate(MOST_INLINED);
        symbols.push(outermost);
    }
    symbols
}

/// Returns a function's name as in the source. Other languages may use the manglings of Rust and C++ too.
fn demangled(name: &str, language: Option<DwLang>) -> String {
    let rust = || rustc_demangle::try_demangle(name).ok().map(|name| format!("{name:#}"));
    // A template's symbol begins with the return type.
    let options = cpp_demangle::DemangleOptions::new().no_return_type();
    let cpp = || {
        // Without the prefix the parser takes `f`, a function of C, for the type float.
        let symbol = name.starts_with("_Z").then(|| cpp_demangle::Symbol::new(name).ok()).flatten();
        symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok())
    };
    let found = match language {
        Some(gimli::DW_LANG_Rust) => rust(),
        Some(
            gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20,
        ) => cpp(),
        _ => rust().or_else(cpp),
    };
    found.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_c_is_not_taken_for_a_type_of_cpp() {
        let of = |name| (demangled(name, None), demangled(name, Some(gimli::DW_LANG_C_plus_plus_17)));
        let same = |name: &str| (name.to_owned(), name.to_owned());
        for name in ["f", "St", "PKc", "main", "_start"] {
            assert_eq!(of(name), same(name));
        }
        assert_eq!(of("_Z4leakPKc"), same("leak(char const*)"));
    }
}
