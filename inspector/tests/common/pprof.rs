//! A reader of pprof's profiles, by their description alone.
//! Source: <https://github.com/google/pprof/blob/main/proto/profile.proto>

use flate2::read::GzDecoder;
use std::collections::BTreeMap;
use std::io::Read;

/// A profile as its readers see it.
pub struct Profile {
    /// Type and unit of each number of a sample, then of the period.
    pub types: Vec<String>,
    pub samples: Vec<Sample>,
}

pub struct Sample {
    /// Names of functions, innermost first.
    pub stack: Vec<String>,
    pub values: [u64; 4],
    pub labels: BTreeMap<String, String>,
}

impl Profile {
    /// Reads a profile that is packed by gzip.
    pub fn read(packed: &[u8]) -> Self {
        let profile = fields(&unpacked(packed));
        let of = |number| profile.iter().filter(move |field| field.0 == number).map(|field| &*field.1);
        let texts: Vec<String> = of(6).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
        assert_eq!(texts[0], "", "the first text is the empty one");
        let text = |number: u64| texts[number as usize].clone();
        let types =
            of(1).chain(of(11)).map(|value| format!("{} {}", text(one(value, 1)), text(one(value, 2)))).collect();
        let functions: BTreeMap<u64, String> =
            of(5).map(|function| (one(function, 1), text(one(function, 2)))).collect();
        let lines = |location: &[u8]| -> Vec<String> {
            let lines = fields(location).into_iter().filter(|field| field.0 == 4);
            lines.map(|line| functions[&one(&line.1, 1)].clone()).collect()
        };
        let locations: BTreeMap<u64, Vec<String>> = of(4).map(|location| (one(location, 1), lines(location))).collect();
        let sample = |sample: &[u8]| {
            let values = packed_numbers(sample, 2);
            let labels = fields(sample).into_iter().filter(|field| field.0 == 3);
            Sample {
                stack: packed_numbers(sample, 1).iter().flat_map(|location| locations[location].clone()).collect(),
                values: values.try_into().expect("four numbers"),
                labels: labels.map(|label| (text(one(&label.1, 1)), text(one(&label.1, 2)))).collect(),
            }
        };
        Self { types, samples: of(2).map(sample).collect() }
    }

    /// The sum of each number.
    pub fn sums(&self) -> [u64; 4] {
        let mut sums = [0; 4];
        for sample in &self.samples {
            sums.iter_mut().zip(sample.values).for_each(|(sum, value)| *sum += value);
        }
        sums
    }
}

/// The bytes that were packed by gzip.
pub fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The fields of a message: number, and bytes or a number. Only what profiles have.
pub fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => found.push((key >> 3, Vec::new(), varint(&mut bytes))),
            1 => {
                let (number, rest) = bytes.split_first_chunk().unwrap();
                found.push((key >> 3, Vec::new(), u64::from_le_bytes(*number)));
                bytes = rest;
            }
            2 => {
                let len = varint(&mut bytes) as usize;
                found.push((key >> 3, bytes[..len].to_vec(), 0));
                bytes = &bytes[len..];
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

/// A number of a message; 0 if it is not there.
pub fn one(message: &[u8], number: u64) -> u64 {
    fields(message).iter().find(|field| field.0 == number).map_or(0, |field| field.2)
}

pub fn packed_numbers(message: &[u8], number: u64) -> Vec<u64> {
    let packed = fields(message).into_iter().find(|field| field.0 == number).map(|field| field.1).unwrap_or_default();
    let (mut rest, mut numbers) = (&packed[..], Vec::new());
    while !rest.is_empty() {
        numbers.push(varint(&mut rest));
    }
    numbers
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}
