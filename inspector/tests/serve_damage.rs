//! Requests that are damaged at random, from several clients at a time: `gpumem serve` answers or closes, and neither falls
//! nor grows. `GPUMEM_CASES=20000 cargo nextest run -p gpumem-inspector --test serve_damage` asks for more than a test has
//! time for.

mod common;
use common::web::{Server, status};
use common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

/// Connections that are open at a time, so that they are served in between one another.
const AT_A_TIME: usize = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % most.max(1)
    }
}

/// Requests of clients that mean no harm, and of some that do.
const CORPUS: [&str; 10] = [
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain;q=0.5,*/*\r\nConnection: close\r\n\r\n",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1\r\n\r\n",
    "HEAD /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YWxpY2U6c2VjcmV0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "GET http://x/metrics?a=b#c HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
];

/// Pieces that mean something to HTTP.
const PIECES: [&str; 12] = [
    "\r\n",
    "\n",
    "\r\n\r\n",
    ": ",
    "A: b\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Transfer-Encoding: chunked\r\n",
    "ffffffffffffffff\r\n",
    "%00",
    "\u{0}",
    "\t folded\r\n",
    "q=nan,",
];

fn damaged(random: &mut Random) -> Vec<u8> {
    if random.below(10) == 0 {
        return (0..random.below(3000)).map(|_| random.below(256) as u8).collect();
    }
    let mut text = CORPUS[random.below(CORPUS.len())].as_bytes().to_vec();
    for _ in 0..random.below(5) {
        let at = random.below(text.len() + 1);
        match random.below(6) {
            0 if at < text.len() => text[at] = random.below(256) as u8,
            1 => text.truncate(at),
            2 => {
                let times = 1 << random.below(11);
                let piece = PIECES[random.below(PIECES.len())].repeat(times);
                text.splice(at..at, piece.bytes());
            }
            3 => {
                let end = (at + random.below(40)).min(text.len());
                let piece = text[at..end].to_vec().repeat(1 << random.below(9));
                text.splice(at..at, piece);
            }
            4 => {
                let end = (at + random.below(20)).min(text.len());
                text.drain(at..end);
            }
            _ => {
                let other = CORPUS[random.below(CORPUS.len())];
                text.splice(at..at, other.bytes());
            }
        }
    }
    text
}

/// Sends all of it, or the first half and then the rest; then says that nothing more comes.
fn send(server: &Server, bytes: &[u8], random: &mut Random) -> TcpStream {
    let mut stream = server.connect();
    let half = if random.below(4) == 0 { bytes.len() / 2 } else { bytes.len() };
    // It may have closed already: that is an answer.
    let _ = stream.write_all(&bytes[..half]);
    let _ = stream.write_all(&bytes[half..]);
    let _ = stream.shutdown(Shutdown::Write);
    stream
}

#[test]
fn damaged_requests_are_answered_or_cut() {
    let cases = std::env::var("GPUMEM_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(800);
    let dir = dir();
    dir.put(me(), demo(me()));
    let mut server = Server::start(&dir, &[]);
    assert!(server.is_well());
    assert_eq!(status(&server.get("/metrics", "")), 200);
    let before = server.resident_kib();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut answers = std::collections::BTreeMap::new();
    for _ in 0..cases / AT_A_TIME {
        let open: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                let bytes = damaged(&mut random);
                (send(&server, &bytes, &mut random), bytes)
            })
            .collect();
        for (mut stream, bytes) in open {
            // Some leave before they are answered.
            if random.below(16) == 0 {
                continue;
            }
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
            let known = [0, 100, 200, 400, 401, 403, 404, 405, 413, 414, 417, 431, 503, 505];
            assert!(
                known.contains(&status(&answer)) && (status(&answer) > 0 || answer.is_empty()),
                "{shown:?}: {answer}"
            );
            *answers.entry(status(&answer)).or_insert(0) += 1;
        }
        assert!(server.is_running());
    }
    while !server.is_well() {}
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 32_000, "{grown} KiB");
    assert!([200, 400, 405].iter().all(|answer| answers.contains_key(answer)), "{answers:?}");
    println!("{cases} requests, by answer (0: closed without one): {answers:?}; {grown} KiB more than before");
}
