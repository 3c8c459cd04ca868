//! Text from elsewhere (names, tags, paths, messages) made safe for a terminal, and numbers with [`units`].

pub(crate) mod units;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// True if a character is visible and safe in foreign text: printable in Unicode's sense, no separator except the
/// blank, and no default-ignorable code point. Other characters steer a terminal, reorder text, or hide in it.
pub(crate) fn printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut text = [b'x'; 5];
    let len = 1 + c.encode_utf8(&mut text[1..]).len();
    // The standard library escapes unprintable characters anywhere in a text, but combining marks only at its
    // beginning.
    let shows = std::str::from_utf8(&text[..len]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c));
    shows && !is_default_ignorable(c)
}

/// True for characters with Unicode's Default_Ignorable_Code_Point, as of version 16.
fn is_default_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes every character that is not [printable], as `\x1b`.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// As [`clean`], with line breaks kept.
pub(crate) fn clean_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(|c| printable(c) || keep(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if printable(c) || keep(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            _ if (c as u32) < 0x100 => drop(write!(out, "\\x{:02x}", c as u32)),
            _ => drop(write!(out, "\\u{{{:x}}}", c as u32)),
        }
    }
    Cow::Owned(out)
}

/// Returns a name as text; each byte that is not UTF-8 is written as `\\xNN`.
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

/// Returns a path as text that is safe for a terminal.
pub(crate) fn path(path: &Path) -> String {
    clean(&os(path.as_os_str())).into_owned()
}

/// Writes a path in JSON, as [`os`] writes it.
pub(crate) fn serialize_path<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&os(path.as_os_str()))
}

/// As [`serialize_path`], for an optional path.
pub(crate) fn serialize_maybe_path<S: serde::Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => to.serialize_some(&os(path.as_os_str())),
        None => to.serialize_none(),
    }
}

/// Returns the part of a path behind its last slash, cut to the longest length of a file name.
pub(crate) fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).chars().take(255).collect()
}

/// Returns a path with an ending added to it.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// As [`shell_word`], for a name that may not be UTF-8.
pub(crate) fn os_word(name: &OsStr) -> String {
    match name.to_str() {
        Some(word) => shell_word(word),
        None => format!("$'{}'", os(name).replace('\'', "\\'")),
    }
}

/// Quotes a word for a shell, only if needed.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns the terminal columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// Separator between a frame of a call site's name and its caller.
pub(crate) const CALLED_BY: &str = " ← ";

/// Cuts the middle out of text longer than `max` columns. A call site's name loses whole frames, the innermost first,
/// since a function through which everything allocates says the least.
pub(crate) fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    let width = unicode_width::UnicodeWidthStr::width(text);
    if width <= max || max < 4 {
        return Cow::Borrowed(text);
    }
    // From the outermost frame inwards, each piece measured once: a foreign file may have any number of frames.
    let (mut fits, mut end, mut columns) = (None, text.len(), 0);
    for (at, _) in text.rmatch_indices(CALLED_BY) {
        columns += self::width(&text[at..end]);
        if columns >= max {
            break;
        }
        (fits, end) = (Some(at), at);
    }
    if let Some(at) = fits {
        return Cow::Owned(format!("…{}", &text[at..]));
    }
    // Not even the outermost frame fits beside the ellipsis.
    let text = text.rsplit(CALLED_BY).next().unwrap_or(text);
    if self::width(text) <= max {
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

/// As [`wrap_at`], with continued lines below the line's last column of text.
pub(crate) fn wrap(line: &str, columns: usize) -> Cow<'_, str> {
    wrap_at(line, columns, hanging(&anstream::adapter::strip_str(line).to_string()).min(columns / 2))
}

/// Breaks a painted line between words if it is longer than `columns`. A number stays with its unit. Continued lines
/// are indented.
pub(crate) fn wrap_at(line: &str, columns: usize, indent: usize) -> Cow<'_, str> {
    if width(&anstream::adapter::strip_str(line).to_string()) <= columns {
        return Cow::Borrowed(line);
    }
    let indent = " ".repeat(indent);
    let (mut out, mut at) = (String::with_capacity(line.len() + 16), 0);
    for word in words(line) {
        let seen = anstream::adapter::strip_str(word).to_string();
        let wide = width(seen.trim_end());
        if at > indent.len() && at + wide > columns {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.push_str(&indent);
            at = indent.len();
        }
        out.push_str(word);
        at += width(&seen);
    }
    out.truncate(out.trim_end_matches(' ').len());
    Cow::Owned(out)
}

/// Returns the column at which continued lines begin: below the text behind the first gap, as in `  10 MiB  idle in the
/// pool`.
fn hanging(line: &str) -> usize {
    let text = line.trim_start_matches(' ');
    let lead = line.len() - text.len();
    match text.split_once("  ") {
        Some((value, rest)) if lead > 0 => {
            width(&line[..lead + value.len()]) + 2 + rest.len() - rest.trim_start().len()
        }
        _ => lead + 2,
    }
}

/// Returns the words, each with the blanks behind it. A number and its unit are one word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let ends = rest.char_indices().filter(|&(at, c)| c != ' ' && rest[at + c.len_utf8()..].starts_with(' '));
        let breaks = |&(at, c): &(usize, char)| {
            let next = rest[at + 1..].trim_start_matches(' ').chars().next();
            !(c.is_ascii_digit() && next.is_some_and(|next| next.is_alphabetic() || next == '%'))
        };
        let end = ends.map(|(at, c)| (at + c.len_utf8() - 1, c)).find(breaks).map_or(rest.len(), |(at, _)| {
            let blanks = rest[at + 1..].len() - rest[at + 1..].trim_start_matches(' ').len();
            at + 1 + blanks
        });
        let (word, left) = rest.split_at(end);
        rest = left;
        (!word.is_empty()).then_some(word)
    })
}

/// Returns the words for a value; none if it is 0 or empty.
pub(crate) fn if_any<T: Default + PartialEq>(value: T, words: impl FnOnce(T) -> String) -> String {
    if value == T::default() { String::new() } else { words(value) }
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
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            assert!(clean(&c.to_string()).chars().all(printable));
        }
    }

    #[test]
    fn what_hides_or_reorders_text_is_written_out() {
        let bad = "\u{61c}\u{200b}\u{e0041}\u{ad}\u{34f}\u{115f}\u{17b4}\u{180e}\u{200e}\u{202e}\u{2028}\u{2060}\u{2066}\u{206f}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{1bca0}\u{1d173}\u{e0100}\u{a0}\u{3000}\u{e000}\u{10ffff}\u{378}\u{7f}\u{85}";
        for c in bad.chars() {
            assert!(!printable(c), "{:x}", c as u32);
            let short = (c as u32) < 0x100;
            let shown = if short { format!("\\x{:02x}", c as u32) } else { format!("\\u{{{:x}}}", c as u32) };
            assert_eq!(clean(&format!("a{c}b")), format!("a{shown}b"));
        }
        // Letters that people write their names with stay, combining marks included.
        for good in ["ü", "e\u{301}", "日本語", "עברית", "العربية", "हिन्दी", "ไทย", "🦀", "Ω≈ç√", "'\"\\"]
        {
            assert_eq!(clean(good), good);
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
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("short", 10), "short");
        assert_eq!(wrap("one two three", 9), "one two\n  three");
        assert_eq!(wrap("held: 300.0 MiB of 4 blocks", 11), "held:\n  300.0 MiB\n  of\n  4 blocks");
        assert_eq!(wrap("  1.0 B  idle in the pool", 18), "  1.0 B  idle in\n         the pool");
        assert_eq!(wrap("\x1b[1mone two\x1b[0m three", 9), "\x1b[1mone two\x1b[0m\n  three");
        assert_eq!(wrap("a_word_that_is_too_long x", 9), "a_word_that_is_too_long\n  x");
        assert_eq!(wrap("ü日本 ü日本", 6), "ü日本\n  ü日本");
    }

    /// A foreign file may name any number of frames: each is measured once.
    #[test]
    fn a_name_of_many_frames_is_shortened_about_as_fast_as_it_is_measured() {
        let (frames, plain) = ("a ← ".repeat(1 << 13), "abcde ".repeat(1 << 13));
        let time = |text: &str| {
            let took = || {
                let begin = std::time::Instant::now();
                assert!(width(&shorten(std::hint::black_box(text), 300)) <= 300);
                begin.elapsed()
            };
            (0..5).map(|_| took()).min().unwrap_or_default()
        };
        let (slow, fast) = (time(&frames), time(&plain));
        assert!(slow < fast * 100, "{slow:?} and {fast:?}");
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(shorten("abcdefghij", 7), "abc…hij");
        assert_eq!(shorten("abc", 7), "abc");
        assert_eq!(unicode_width::UnicodeWidthStr::width(&*shorten("日本語日本語日本語", 9)), 9);
    }

    #[test]
    fn a_call_site_keeps_the_frame_that_tells_it_from_others() {
        let site = "dev_alloc rt.h:11 ← pool_alloc demo.h:42 ← prefill demo.c:66";
        let shown = [60, 59, 44, 43, 21, 20, 17, 16, 10].map(|max| shorten(site, max).into_owned());
        let both = "… ← pool_alloc demo.h:42 ← prefill demo.c:66";
        let last = "… ← prefill demo.c:66";
        assert_eq!(shown[..5], [site, both, both, last, last]);
        assert_eq!(shown[5..], ["prefill demo.c:66", "prefill demo.c:66", "prefill…emo.c:66", "pref….c:66"]);
        assert!(shown.iter().zip([60, 59, 44, 43, 21, 20, 17, 16, 10]).all(|(text, max)| width(text) <= max));
    }
}
