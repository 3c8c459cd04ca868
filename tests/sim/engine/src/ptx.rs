//! Just enough of PTX: entry points with their parameters, and variables.

#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    /// Offset and size of each parameter, in bytes.
    pub params: Vec<(u32, u32)>,
    /// Bytes of local memory that each thread has.
    pub local: u32,
}

#[derive(Debug, PartialEq)]
pub struct Variable {
    pub name: String,
    pub size: u64,
}

#[derive(Debug, Default, PartialEq)]
pub struct Image {
    pub entries: Vec<Entry>,
    pub variables: Vec<Variable>,
}

fn type_size(t: &str) -> Option<u32> {
    let digits = t.trim_start_matches(|c: char| c == '.' || c.is_ascii_alphabetic());
    Some(digits.parse::<u32>().ok().filter(|b| [8, 16, 32, 64, 128].contains(b))? / 8)
}

/// `(name, size, align)` of `.param .align 8 .b8 name[32]` or `.global ...`.
fn declaration(text: &str) -> Option<(String, u32, u32)> {
    let mut align = 0;
    let mut size = None;
    let mut words = text.split_whitespace();
    while let Some(w) = words.next() {
        if w == ".align" {
            align = words.next()?.parse().ok()?;
        } else if w.starts_with('.') {
            size = type_size(w).or(size);
        } else {
            let (name, count) = match w.split_once('[') {
                Some((name, rest)) => (name, rest.split(']').next()?.trim().parse().ok()?),
                None => (w, 1u32),
            };
            let elem = size?;
            return Some((name.trim_end_matches([';', '=']).to_owned(), elem * count, align.max(elem)));
        }
    }
    None
}

fn strip_comments(text: &str) -> String {
    text.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Parses PTX; `None` if the text is not PTX.
pub fn parse(text: &str) -> Option<Image> {
    let text = strip_comments(text);
    if !text.contains(".version") {
        return None;
    }
    let mut image = Image::default();
    for (at, _) in text.match_indices(".entry") {
        let rest = &text[at + ".entry".len()..];
        let end = rest.find('{').unwrap_or(rest.len());
        let head = &rest[..end];
        let (name, list) = match head.split_once('(') {
            Some((name, list)) => (name, list.split(')').next().unwrap_or("")),
            None => (head, ""),
        };
        let mut params = Vec::new();
        let mut offset = 0u32;
        for item in list.split(',').filter(|i| !i.trim().is_empty()) {
            let (_, size, align) = declaration(item)?;
            offset = offset.next_multiple_of(align.max(1));
            params.push((offset, size));
            offset += size;
        }
        let name = name.split_whitespace().next()?.to_owned();
        let body = rest[end..].split(".entry").next().unwrap_or("");
        let locals = body.split(';').filter_map(|statement| statement.split_once(".local "));
        let local = locals.filter_map(|(_, rest)| declaration(rest)).map(|(_, size, _)| size).sum();
        image.entries.push(Entry { name, params, local });
    }
    for statement in text.split([';', '{', '}']) {
        let Some((_, rest)) = statement.split_once(".global ") else { continue };
        let instruction = statement.contains("ld.") || statement.contains("st.");
        let head = rest.split('=').next().unwrap_or("");
        if !instruction && let Some((name, size, _)) = declaration(head) {
            image.variables.push(Variable { name, size: size as u64 });
        }
    }
    Some(image)
}
