//! Damage to the lines of a recording: they are unpacked, changed, and packed again, so that what reads them gets to see
//! it.

use super::image::Image;
use super::mutate;
use crate::differ::random::Random;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::io::{Read, Write};

/// Bytes that one change adds at most by copies of a line. Reading takes longer with the size, and the time allowed does not.
const MOST_BYTES: usize = 64 << 20;

/// A recording with other lines.
pub fn mutated(image: &Image, random: &mut Random) -> Image {
    let packed: Vec<u8> = image.parts.iter().flat_map(|(_, part)| part.iter().copied()).collect();
    let mut text = Vec::new();
    // An image leaves out blocks of zeroes, so unpacking may fail there. What was unpacked before is used.
    let _ = GzDecoder::new(&packed[..]).read_to_end(&mut text);
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..1 + random.below(6) {
        if lines.len() < 2 {
            break;
        }
        let (at, other) = (random.below(lines.len()), random.below(lines.len()));
        match random.below(10) {
            7.. => lines[at] = stacks(&lines, random).unwrap_or_else(|| lines[at].clone()),
            0 => drop(lines.remove(at)),
            1 => lines.swap(at, other),
            2 => {
                let line = lines[at].clone();
                let most = MOST_BYTES / line.len().max(1);
                lines.splice(other..other, std::iter::repeat_n(line, most.min(1 << random.below(10))));
            }
            3 => {
                let byte = random.below(lines[at].len());
                lines[at][byte] = random.next() as u8;
            }
            4 => lines[at] = repeated(&lines[at], random),
            _ => lines[at] = with_number(&lines[at], random),
        }
    }
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = out.write_all(&lines.concat()).and_then(|()| out.finish());
    let mut bytes = packed.expect("memory takes everything");
    if random.chance(20) {
        bytes.truncate(random.below(bytes.len()));
    }
    Image { len: bytes.len() as u64, parts: vec![(0, bytes)] }
}

/// A line of frames in words, or of a stack of them, with others.
fn stacks(lines: &[Vec<u8>], random: &mut Random) -> Option<Vec<u8>> {
    const WORDS: &[&str] = &[
        "",
        "\u{1b}[2J",
        "\u{202e}\u{e0041}",
        "</script><b>",
        "a ← b",
        "f (x.so)",
        "\"},\n{",
        "\u{0}",
        "main app.c:1",
    ];
    let is_wanted = |line: &&Vec<u8>| line.starts_with(b"{\"frames\"") || line.starts_with(b"{\"stack\"");
    let wanted: Vec<_> = lines.iter().filter(is_wanted).collect();
    let mut line: Value = serde_json::from_slice(wanted.get(random.below(wanted.len()))?).ok()?;
    let many = 1 << random.below(12);
    let number = |random: &mut Random| Value::from(mutate::number(random));
    if let Some(frames) = line.get_mut("frames").and_then(Value::as_array_mut) {
        match random.below(3) {
            0 => frames.extend((0..many).map(|_| Value::from(*random.pick(WORDS)))),
            1 => frames.clear(),
            _ => frames.push(Value::from(random.pick(WORDS).repeat(many))),
        }
    } else if let Some(stack) = line.get_mut("stack") {
        match random.below(4) {
            0 => stack["site"] = number(random),
            1 => stack["id"] = number(random),
            2 => stack["frames"] = (0..many).map(|_| number(random)).collect(),
            _ => stack["frames"] = vec![Value::from(random.below(4)); many].into(),
        }
    }
    let mut bytes = serde_json::to_vec(&line).ok()?;
    bytes.push(b'\n');
    Some(bytes)
}

/// Replaces a number in a line.
fn with_number(line: &[u8], random: &mut Random) -> Vec<u8> {
    let digits = |at: usize| line.get(at).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> = (1..line.len()).filter(|&at| digits(at) && !digits(at - 1)).collect();
    if starts.is_empty() {
        return line.to_vec();
    }
    let start = *random.pick(&starts);
    let end = (start..).find(|&at| !digits(at)).unwrap_or(line.len());
    [&line[..start], mutate::number(random).to_string().as_bytes(), &line[end..]].concat()
}

/// Lengthens a list by many copies of its first items, or a text by many letters.
fn repeated(line: &[u8], random: &mut Random) -> Vec<u8> {
    let openings: Vec<usize> = (0..line.len()).filter(|&at| line[at] == b'[').collect();
    let times = 1 << random.below(16);
    match openings.is_empty() {
        true => line.iter().flat_map(|&byte| std::iter::repeat_n(byte, if byte == b'a' { times } else { 1 })).collect(),
        false => {
            let at = *random.pick(&openings) + 1;
            let item = [&b"{},"[..], b"[0,0,0,0,0],", b"1,", b"\"\","][random.below(4)].repeat(times);
            [&line[..at], &item, &line[at..]].concat()
        }
    }
}
