//! Damage to the lines of a recording: they are unpacked, changed, and packed again, so that what reads them gets to see
//! it.

use super::image::Image;
use super::mutate;
use crate::differ::random::Random;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{Read, Write};

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
        match random.below(7) {
            0 => drop(lines.remove(at)),
            1 => lines.swap(at, other),
            2 => {
                let line = lines[at].clone();
                lines.splice(other..other, std::iter::repeat_n(line, 1 << random.below(10)));
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
