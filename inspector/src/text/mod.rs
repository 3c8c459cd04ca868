//! Words: text from elsewhere (names, tags, paths, messages) made fit for a terminal, and numbers with [`units`].

pub(crate) mod units;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// True for characters that a terminal may act on, or that reorder what is shown.
pub(crate) fn hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Text in which every control character is written out, as `\x1b`.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// As [`clean`], with line breaks kept.
pub(crate) fn clean_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| hostile(c) && !keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if !hostile(c) || keep(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            _ if (c as u32) < 0x100 => drop(write!(out, "\\x{:02x}", c as u32)),
            _ => drop(write!(out, "\\u{{{:x}}}", c as u32)),
        }
    }
    Cow::Owned(out)
}

/// A name that need not be UTF-8 as text: each byte that is none is written as `\\xNN`.
pub(crate) fn os(name: &OsStr) -> Cow<'_, str> {
    if let Some(text) = name.to_str() {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for chunk in name.as_encoded_bytes().utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// A path in JSON, as [`os`] writes it.
pub(crate) fn serialize_path<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&os(path.as_os_str()))
}

/// As [`serialize_path`], where there may be none.
pub(crate) fn serialize_maybe_path<S: serde::Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => to.serialize_some(&os(path.as_os_str())),
        None => to.serialize_none(),
    }
}

/// The part of a path behind its last slash, at most as long as a file's name can be.
pub(crate) fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).chars().take(255).collect()
}

/// As [`shell_word`], for a name that need not be UTF-8.
pub(crate) fn os_word(name: &OsStr) -> String {
    match name.to_str() {
        Some(word) => shell_word(word),
        None => format!("$'{}'", os(name).replace('\'', "\\'")),
    }
}

/// A word as a shell wants it, quoted only where needed.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Columns that text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// The middle left out where text is longer than `max` columns.
pub(crate) fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    let width = unicode_width::UnicodeWidthStr::width(text);
    if width <= max || max < 4 {
        return Cow::Borrowed(text);
    }
    let (head, tail) = ((max - 1) / 2, max - 1 - (max - 1) / 2);
    let start = take(text.chars(), head);
    let end: String = take(text.chars().rev(), tail).chars().rev().collect();
    Cow::Owned(format!("{start}…{end}"))
}

fn take(chars: impl Iterator<Item = char>, columns: usize) -> String {
    let mut left = columns;
    chars
        .take_while(|&c| {
            let width = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
            let fits = width <= left;
            left = left.saturating_sub(width);
            fits
        })
        .collect()
}

/// A painted line cut at so many columns; its styles are kept, and ended where it is cut.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut left, mut in_style) = (columns, false);
    for c in line.chars() {
        if c == '\x1b' || in_style {
            // A style is `ESC [ … m`, and nothing else escapes here: text is cleaned.
            in_style = c != 'm';
        } else {
            let width = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
            if width > left {
                out.push_str("\x1b[0m");
                break;
            }
            left -= width;
        }
        out.push(c);
    }
    out
}

/// "1 graph", "2 graphs", "2 launches".
pub(crate) fn count(n: u64, one: &str) -> String {
    let end = match n {
        1 => "",
        _ if one.ends_with("ch") || one.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {one}{end}", units::number(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_gets_through() {
        assert_eq!(clean("plain ünïcode"), "plain ünïcode");
        assert_eq!(clean("\x1b]0;owned\x07a\nb"), "\\x1b]0;owned\\x07a\\nb");
        assert_eq!(clean("\u{9b}31m \u{202e}abc"), "\\x9b31m \\u{202e}abc");
        assert_eq!(clean_lines("a\nb\x1b"), "a\nb\\x1b");
        for c in (0..=0x2fff).filter_map(char::from_u32) {
            assert!(!clean(&c.to_string()).chars().any(hostile));
        }
    }

    #[test]
    fn names_that_are_no_text_are_shown_byte_by_byte() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(os(OsStr::new("plain ü")), "plain ü");
        let odd = OsStr::from_bytes(b"a\xff\xc3/\xc3\xbc'");
        assert_eq!(os(odd), "a\\xff\\xc3/ü'");
        assert_eq!(os_word(odd), "$'a\\xff\\xc3/ü\\''");
        assert_eq!(os_word(OsStr::new("a b")), "'a b'");
    }

    #[test]
    fn shell_words_survive() {
        assert_eq!(shell_word("a-b/c=1"), "a-b/c=1");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("it's $HOME"), "'it'\\''s $HOME'");
    }

    #[test]
    fn painted_lines_are_cut_by_what_is_seen() {
        assert_eq!(cut("\x1b[1mbold\x1b[0m plain", 20), "\x1b[1mbold\x1b[0m plain");
        assert_eq!(cut("\x1b[1mbold\x1b[0m plain", 6), "\x1b[1mbold\x1b[0m p\x1b[0m");
        assert_eq!(cut("日本", 3), "日\x1b[0m");
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(shorten("abcdefghij", 7), "abc…hij");
        assert_eq!(shorten("abc", 7), "abc");
        assert_eq!(unicode_width::UnicodeWidthStr::width(&*shorten("日本語日本語日本語", 9)), 9);
    }
}
