//! A receiver of OTLP that answers as a test wants, and a reader of its requests by the description alone.
//! Source: <https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/profiles/v1development/profiles.proto>

use super::pprof::{fields, one, packed_numbers, unpacked};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How a request is answered.
#[derive(Clone)]
pub enum Reply {
    /// Status, further lines of the head, and a body.
    Status(u32, &'static str, Vec<u8>),
    /// Half of an answer, then the end of the connection.
    Half,
    /// Nothing, until the client leaves.
    Hang,
}

pub const TAKEN: Reply = Reply::Status(200, "", Vec::new());

/// A request as it arrived.
pub struct Request {
    pub at: Instant,
    pub head: String,
    pub body: Vec<u8>,
}

/// A receiver on a free port. Its replies come in order; the last one is repeated.
pub struct Receiver {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    pub fn start(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let (all, replies) = (Arc::clone(&requests), replies.to_vec());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (all, replies) = (Arc::clone(&all), replies.clone());
                std::thread::spawn(move || connection(stream, &all, &replies));
            }
        });
        Self { url, requests }
    }

    /// Waits until there are so many requests, and returns what `look` makes of them.
    pub fn after<T>(&self, count: usize, look: impl FnOnce(&[Request]) -> T) -> T {
        let begin = Instant::now();
        loop {
            let requests = self.requests.lock().unwrap();
            if requests.len() >= count {
                return look(&requests);
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{} of {count} requests", requests.len());
            drop(requests);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn connection(mut stream: TcpStream, all: &Mutex<Vec<Request>>, replies: &[Reply]) {
    while let Some((head, body)) = read_request(&mut stream) {
        let reply = {
            let mut all = all.lock().unwrap();
            all.push(Request { at: Instant::now(), head, body });
            replies[(all.len() - 1).min(replies.len() - 1)].clone()
        };
        let written = match reply {
            Reply::Status(status, lines, body) => {
                let head = format!("HTTP/1.1 {status} X\r\n{lines}Content-Length: {}\r\n\r\n", body.len());
                stream.write_all(&[head.as_bytes(), &body].concat())
            }
            Reply::Half => return drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")),
            Reply::Hang => return drop(stream.read(&mut [0])),
        };
        if written.is_err() {
            return;
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; len.parse().unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// A request as its readers see it.
pub struct Pushed {
    /// Attributes of the process. Numbers are shown as text.
    pub resource: BTreeMap<String, String>,
    /// Sums by sample type.
    pub sums: BTreeMap<String, u64>,
    pub samples: Vec<Sample>,
    /// Duration in nanoseconds by sample type.
    pub durations: BTreeMap<String, u64>,
}

pub struct Sample {
    /// Type and unit.
    pub kind: String,
    pub value: u64,
    /// Names of functions, innermost first.
    pub stack: Vec<String>,
    pub attributes: BTreeMap<String, String>,
}

fn of(message: &[u8], number: u64) -> Vec<Vec<u8>> {
    fields(message).into_iter().filter(|field| field.0 == number).map(|field| field.1).collect()
}

fn the(message: &[u8], number: u64) -> Vec<u8> {
    of(message, number).into_iter().next().unwrap_or_default()
}

/// An `AnyValue`: text, or a number as text.
fn any(value: &[u8]) -> String {
    match fields(value).first() {
        Some((1, text, _)) => String::from_utf8(text.clone()).unwrap(),
        Some((3, _, number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

impl Pushed {
    /// Reads the body of a request.
    pub fn read(packed: &[u8]) -> Self {
        let bytes = unpacked(packed);
        let (resources, dictionary) = (of(&bytes, 1), the(&bytes, 2));
        let [mappings, locations, functions, links, texts, attributes, stacks] =
            [1, 2, 3, 4, 5, 6, 7].map(|table| of(&dictionary, table));
        for table in [&mappings, &locations, &functions, &links, &texts, &attributes, &stacks] {
            assert!(table[0].is_empty(), "the first entry of each table is the empty one");
        }
        let used = RefCell::new(BTreeSet::from([0]));
        let text = |number: u64| {
            used.borrow_mut().insert(number);
            String::from_utf8(texts[number as usize].clone()).unwrap()
        };
        let function = |line: Vec<u8>| {
            let function = &functions[one(&line, 1) as usize];
            text(one(function, 3));
            text(one(function, 1))
        };
        let step = |&location: &u64| -> Vec<String> {
            text(one(&mappings[one(&locations[location as usize], 1) as usize], 4));
            of(&locations[location as usize], 3).into_iter().map(function).collect()
        };
        let attribute = |&index: &u64| {
            let attribute = &attributes[index as usize];
            (text(one(attribute, 1)), any(&the(attribute, 2)))
        };
        let [of_process] = &resources[..] else { panic!("{} processes", resources.len()) };
        let key_value = |pair: Vec<u8>| (String::from_utf8(the(&pair, 1)).unwrap(), any(&the(&pair, 2)));
        let mut pushed = Self {
            resource: of(&the(of_process, 1), 1).into_iter().map(key_value).collect(),
            sums: BTreeMap::new(),
            samples: Vec::new(),
            durations: BTreeMap::new(),
        };
        for profile in of(&the(of_process, 2), 2) {
            let kind = the(&profile, 1);
            let period = the(&profile, 5);
            assert_eq!([text(one(&period, 1)), text(one(&period, 2))], ["space", "bytes"]);
            let kind = format!("{} {}", text(one(&kind, 1)), text(one(&kind, 2)));
            pushed.durations.insert(kind.clone(), one(&profile, 4));
            for sample in of(&profile, 2) {
                let [value] = packed_numbers(&sample, 4)[..] else { panic!("one value") };
                *pushed.sums.entry(kind.clone()).or_default() += value;
                pushed.samples.push(Sample {
                    kind: kind.clone(),
                    value,
                    stack: packed_numbers(&stacks[one(&sample, 1) as usize], 1).iter().flat_map(step).collect(),
                    attributes: packed_numbers(&sample, 2).iter().map(attribute).collect(),
                });
            }
        }
        assert_eq!(used.borrow().len(), texts.len(), "each text is used, and there once");
        assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), texts.len());
        pushed
    }

    pub fn sum(&self, kind: &str) -> u64 {
        self.sums.get(kind).copied().unwrap_or(0)
    }
}

/// A message that a receiver has taken only a part.
pub fn partial(rejected: u8, why: &str) -> Vec<u8> {
    let inner = [&[0x08, rejected, 0x12, why.len() as u8], why.as_bytes()].concat();
    [&[0x0a, inner.len() as u8], &inner[..]].concat()
}
