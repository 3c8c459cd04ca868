//! Randomly damaged web-config files: each gets an answer in words.

use super::*;

/// `GPUMEM_CASES` requests more cases than a test has time for.
fn cases(few: u64) -> u64 {
    std::env::var("GPUMEM_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few)
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most.max(1)
    }
}

/// Typical files.
const CORPUS: [&str; 6] = [
    "",
    "basic_auth_users:\n  alice: $2y$04$hB1Sn9KSn8cXx7nOJPy0tuTbRA4HVo1uRyNGKnhjhcC7WHmNZ7zHm\n  bob: ''\n",
    "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n  min_version: TLS12\n",
    "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    Strict-Transport-Security: max-age=1\n",
    "# a comment\n\nhttp_server_config: {headers: {X-Frame-Options: \"a\\tb\"}}\nbasic_auth_users: {}\n",
    "---\nbasic_auth_users: &users\n  alice: |\n    text\nhttp_server_config: *users\n...\n",
];

/// Fragments with a meaning in YAML.
const PIECES: [&str; 16] = [
    "&a ",
    "*a",
    "<<: *a\n",
    "- ",
    "? ",
    ": ",
    "{",
    "}",
    "[",
    "\t",
    "!!binary ",
    "|\n",
    "\u{0}",
    "\u{feff}",
    "\"\\x41\"",
    "%YAML 9.9\n---\n",
];

fn damaged(random: &mut Random) -> Vec<u8> {
    let mut text = CORPUS[random.below(CORPUS.len())].as_bytes().to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(text.len() + 1);
        match random.below(6) {
            0 if at < text.len() => text[at] = random.below(256) as u8,
            1 => text.truncate(at),
            2 => {
                let times = 1 << random.below(12);
                let piece = PIECES[random.below(PIECES.len())].repeat(times);
                text.splice(at..at, piece.bytes());
            }
            3 => {
                let end = (at + random.below(80)).min(text.len());
                let piece = text[at..end].to_vec();
                let times = 1 << random.below(8);
                text.splice(at..at, piece.repeat(times));
            }
            4 => {
                let end = (at + random.below(20)).min(text.len());
                text.drain(at..end);
            }
            _ => {
                let other = CORPUS[random.below(CORPUS.len())].as_bytes();
                text.splice(at..at, other.iter().copied());
            }
        }
    }
    text
}

#[test]
fn damaged_files_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("web.yml");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut read, mut refused) = (0, 0);
    for case in 0..cases(500) {
        let text = damaged(&mut random);
        std::fs::write(&path, &text).unwrap();
        let begin = std::time::Instant::now();
        match Config::read(&path) {
            Ok(_) => read += 1,
            Err(failure) => {
                refused += 1;
                let said = failure.to_string();
                assert!(said.contains("web.yml") || said.contains(".pem"), "case {case}: {said}");
                assert!(said.chars().count() < 1_000, "case {case}: {} bytes: {said}", said.len());
                assert!(!said.contains("$2y$04$hB1S"), "case {case}: a secret is told: {said}");
            }
        }
        // Only on request, on a machine that does nothing else.
        if std::env::var_os("GPUMEM_CASES").is_some() {
            assert!(begin.elapsed().as_secs() < 5, "case {case} takes {:?}", begin.elapsed());
        }
    }
    assert!(read > 0 && refused > read, "{read} were read, {refused} refused");
    println!("{} web-config files: {read} were read, {refused} refused", read + refused);
}
