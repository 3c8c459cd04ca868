//! A self-contained page of HTML: its style, script and data are inside, and it loads nothing.

use super::out::{Through, json};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &[&str] =
    &[include_str!("common.js"), include_str!("chart.js"), include_str!("flame.js"), include_str!("table.js")];

/// Writes a page: `body` is its text, `data` the input of its script.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(out: &mut dyn Write, title: &str, body: &Markup, data: &impl Serialize) -> io::Result<()> {
    // The browser runs only scripts with this nonce, so foreign text cannot become one.
    let word = format!("{:016x}", RandomState::new().hash_one(title));
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{word}'; script-src 'nonce-{word}'; base-uri 'none'; form-action 'none'"
    );
    let head = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style nonce=(word) { (PreEscaped(STYLE)) }
            }
        }
    };
    // Drops the closing tag, because the rest of the page is written in pieces.
    let head = head.into_string();
    out.write_all(head.strip_suffix("</html>").unwrap_or(&head).as_bytes())?;
    write!(out, "<body>{}", body.0)?;
    write!(out, "<script type=\"application/json\" id=\"data\">")?;
    serde_json::to_writer(json(in_script(&mut *out)), data)?;
    write!(out, "</script>")?;
    for script in SCRIPT {
        write!(out, "<script nonce=\"{word}\">{script}</script>")?;
    }
    writeln!(out, "</body></html>")
}

/// JSON inside of a script element, which it cannot end: `<` occurs only in strings, and is escaped there.
fn in_script(out: &mut dyn Write) -> impl Write {
    Through::new(out, |out: &mut &mut dyn Write, bytes: &[u8]| {
        let mut pieces = bytes.split(|&byte| byte == b'<');
        out.write_all(pieces.next().unwrap_or_default())?;
        pieces.try_for_each(|piece| out.write_all(b"\\u003c").and_then(|()| out.write_all(piece)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_the_data_or_becomes_a_tag() {
        let evil = "</script><img src=x onerror=alert(1)><!--<script>";
        let mut out = Vec::new();
        write(&mut out, evil, &html! { p { (evil) } }, &serde_json::json!({ evil: evil })).unwrap();
        let page = String::from_utf8(out).unwrap();
        assert!(!page.contains("<img") && !page.contains("<!--"), "{page}");
        let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(data).unwrap(), serde_json::json!({ evil: evil }));
    }
}
