//! Writers through which an answer passes on its way out.

use crate::text::printable;
use std::fmt::Write as _;
use std::io::{self, Write};

/// A writer that passes everything to a function, which writes it to another writer.
pub(crate) struct Through<W, F> {
    out: W,
    pass: F,
}

impl<W: Write, F: FnMut(&mut W, &[u8]) -> io::Result<()>> Through<W, F> {
    pub(crate) fn new(out: W, pass: F) -> Self {
        Self { out, pass }
    }
}

impl<W: Write, F: FnMut(&mut W, &[u8]) -> io::Result<()>> Write for Through<W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.pass)(&mut self.out, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Ends an answer that grows beyond any size that its input can explain.
pub(crate) fn limited<W: Write>(out: W, mut left: u64) -> impl Write {
    Through::new(out, move |out: &mut W, bytes: &[u8]| match left.checked_sub(bytes.len() as u64) {
        Some(rest) => {
            left = rest;
            out.write_all(bytes)
        }
        None => Err(io::Error::other("the answer is out of proportion to the file, which is damaged or forged")),
    })
}

/// Text for a terminal: lines longer than the terminal is wide are broken between words.
pub(crate) struct Wrapped<W> {
    out: W,
    /// `None`: the output is no terminal, and lines stay whole.
    columns: Option<usize>,
    /// The beginning of an unfinished line.
    begun: Vec<u8>,
}

/// A longer line is not meant for a terminal, and passes unchanged.
const LONGEST: usize = 1 << 16;

impl<W: Write> Wrapped<W> {
    pub(crate) fn new(out: W, columns: Option<usize>) -> Self {
        Self { out, columns, begun: Vec::new() }
    }

    fn line(&mut self, columns: usize) -> io::Result<()> {
        match std::str::from_utf8(&self.begun) {
            Ok(line) if line.len() <= LONGEST => self.out.write_all(crate::text::wrap(line, columns).as_bytes())?,
            _ => self.out.write_all(&self.begun)?,
        }
        self.begun.clear();
        Ok(())
    }
}

impl<W: Write> Write for Wrapped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(columns) = self.columns else { return self.out.write(bytes) };
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.begun.extend_from_slice(text);
            if text.len() < piece.len() {
                self.line(columns)?;
                self.out.write_all(b"\n")?;
            } else if self.begun.len() > LONGEST {
                self.out.write_all(&std::mem::take(&mut self.begun))?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(columns) = self.columns.filter(|_| !self.begun.is_empty()) {
            self.line(columns)?;
        }
        self.out.flush()
    }
}

/// JSON that is safe to print on a terminal: escapes the characters that JSON allows raw and that are not printable
/// (DEL, C1, direction marks). They can occur only inside strings.
pub(crate) fn json<W: Write>(out: W) -> impl Write {
    // The beginning of an unfinished character.
    let mut begun = Vec::new();
    Through::new(out, move |out: &mut W, bytes: &[u8]| {
        if begun.is_empty() && bytes.is_ascii() && !bytes.contains(&0x7f) {
            return out.write_all(bytes);
        }
        begun.extend_from_slice(bytes);
        let whole = std::mem::take(&mut begun);
        match std::str::from_utf8(&whole) {
            Ok(text) => escaped(out, text),
            Err(error) if error.error_len().is_none() => {
                let (text, rest) = whole.split_at(error.valid_up_to());
                begun = rest.to_vec();
                escaped(out, std::str::from_utf8(text).unwrap_or_default())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    })
}

fn escaped(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|&(_, c)| !printable(c) && c != '\n') {
        let mut escape = String::new();
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(escape, "\\u{unit:04x}");
        }
        out.write_all(&rest.as_bytes()[..at])?;
        out.write_all(escape.as_bytes())?;
        rest = &rest[at + c.len_utf8()..];
    }
    out.write_all(rest.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_value_however_it_is_cut() {
        let value = serde_json::json!({ "text": "\u{7f}\u{9b}\u{202e}ok ü 日本 \u{e0041}\u{200b}" });
        let plain = serde_json::to_string_pretty(&value).unwrap();
        for piece in 1..plain.len() {
            let mut out = Vec::new();
            let mut json = json(&mut out);
            plain.as_bytes().chunks(piece).for_each(|piece| json.write_all(piece).unwrap());
            drop(json);
            let text = String::from_utf8(out).unwrap();
            assert!(text.chars().all(|c| printable(c) || c == '\n'));
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }

    #[test]
    fn lines_are_wrapped_however_they_are_cut() {
        let text = "one two three\nshort\n\n  4 KiB  five and six\nno end of it";
        let wrapped = text.split('\n').map(|line| crate::text::wrap(line, 10)).collect::<Vec<_>>().join("\n");
        for piece in 1..text.len() {
            let mut out = Vec::new();
            let mut writer = Wrapped::new(&mut out, Some(10));
            text.as_bytes().chunks(piece).for_each(|piece| writer.write_all(piece).unwrap());
            writer.flush().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), wrapped, "{piece}");
        }
        let mut out = Vec::new();
        Wrapped::new(&mut out, None).write_all(text.as_bytes()).unwrap();
        assert_eq!(out, text.as_bytes());
    }

    #[test]
    fn an_answer_without_end_is_ended() {
        let mut out = limited(Vec::new(), 10);
        out.write_all(b"0123456789").unwrap();
        assert!(out.write_all(b"x").unwrap_err().to_string().contains("out of proportion"));
    }
}
