//! Sharing a card (`gpumem share NAME`): where the service listens, and what a member and the service say to each other.
//!
//! A member is a process with `GPUMEM_SHARE=NAME`. It connects to the service's socket beside its ledger and sends one
//! line, an [`Ask`]. The service answers with lines, each an [`Answer`]: any number of [`Answer::Wait`], then one that
//! ends the connection. While it makes progress it sends a `wait` at least once a second.

use crate::command::MAX_LINE;
use std::path::{Path, PathBuf};

/// Ending of the name of a service's socket.
pub const SUFFIX: &str = ".share";
/// Maximum length of a service's name.
pub const MAX_NAME: usize = 32;

/// True if a service may have this name.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}

/// Returns the socket of the service of this name, in a directory of ledgers.
pub fn socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{SUFFIX}"))
}

/// Returns the name of the service with this socket; `None` if it is not a socket of a service.
pub fn name_of_socket(file: &str) -> Option<&str> {
    file.strip_suffix(SUFFIX).filter(|name| is_name(name))
}

/// Request of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A device has no memory for this many bytes (0: unknown).
    Short { pid: u32, uuid: [u8; 16], bytes: u64 },
    /// The process is parked, and one of its threads is about to call the driver.
    Wake { pid: u32 },
}

/// Answer of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The service is at work; the text says what it does.
    Wait(String),
    /// Memory was freed: the member is to try again.
    Again,
    /// The process is resumed.
    Awake,
    /// The service does not help; the text says why.
    No(String),
}

impl Ask {
    /// Parses a line, without its end.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let parsed = match words[..] {
            ["short", pid, card, bytes] => number(pid).zip(uuid_in(card)).zip(number(bytes)),
            ["wake", pid] => return number(pid).map(|pid| Self::Wake { pid }).ok_or("wake wants a process".into()),
            _ => return Err(format!("{line:?} is no request of a member: allowed are short and wake")),
        };
        let short = parsed.map(|((pid, uuid), bytes)| Self::Short { pid, uuid, bytes });
        short.ok_or("short wants a process, the UUID of a card, and bytes".into())
    }

    /// Returns the line of this request, with its end.
    pub fn line(&self) -> String {
        match self {
            Self::Short { pid, uuid, bytes } => format!("short {pid} {} {bytes}\n", uuid_text(uuid)),
            Self::Wake { pid } => format!("wake {pid}\n"),
        }
    }
}

impl Answer {
    /// Parses a line, without its end; `None` if it is no answer.
    pub fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("wait", text) => Some(Self::Wait(text.to_owned())),
            ("again", "") => Some(Self::Again),
            ("awake", "") => Some(Self::Awake),
            ("no", text) => Some(Self::No(text.to_owned())),
            _ => None,
        }
    }

    /// Returns the line of this answer, with its end. Control characters become spaces, and a long text is cut.
    pub fn line(&self) -> String {
        let mut line: String = match self {
            Self::Wait(text) => format!("wait {text}"),
            Self::Again => "again".to_owned(),
            Self::Awake => "awake".to_owned(),
            Self::No(text) => format!("no {text}"),
        };
        line = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        while line.len() >= MAX_LINE {
            line.pop();
        }
        line + "\n"
    }
}

/// Parses a number in decimal digits: `+5` is none.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns a card's UUID as NVML writes it: `GPU-00112233-4455-6677-8899-aabbccddeeff`.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Parses a UUID as [`uuid_text`] writes it.
pub fn uuid_in(text: &str) -> Option<[u8; 16]> {
    crate::place::boot_id(text.strip_prefix("GPU-")?).filter(|uuid| uuid_text(uuid) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] =
        [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];

    #[test]
    fn requests_turn_back() {
        for (ask, line) in [
            (
                Ask::Short { pid: 12, uuid: UUID, bytes: 5 << 30 },
                "short 12 GPU-00112233-4455-6677-8899-aabbccddeeff 5368709120\n",
            ),
            (Ask::Wake { pid: u32::MAX }, "wake 4294967295\n"),
        ] {
            assert_eq!(ask.line(), line);
            assert_eq!(Ask::parse(line.trim_end()), Ok(ask));
        }
    }

    #[test]
    fn answers_turn_back() {
        for answer in [Answer::Wait("for 12".into()), Answer::Again, Answer::Awake, Answer::No("it is busy".into())] {
            assert_eq!(Answer::parse(answer.line().strip_suffix('\n').expect("an end")), Some(answer));
        }
        assert_eq!(Answer::parse("wait"), Some(Answer::Wait(String::new())));
    }

    #[test]
    fn strangers_are_refused() {
        let short = "short 1 GPU-00112233-4455-6677-8899-aabbccddeeff";
        for line in [
            "",
            "wake",
            "wake +1",
            "wake 1 2",
            "wake -1",
            "wake 4294967296",
            "short 1 GPU-1 5",
            "sleep 1",
            short,
            &format!("{short} -1"),
            &format!("{short} 1 "),
            &format!("{} 1", short.replace("GPU-", "")),
            &format!("{} 1", short.replace("aabb", "AABB")),
        ] {
            assert!(Ask::parse(line).is_err(), "{line}");
        }
        for line in ["", "again now", "awake 1", "ok", "waits"] {
            assert_eq!(Answer::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_line_is_never_longer_than_allowed() {
        let line = Answer::No("\u{e9}\n".repeat(MAX_LINE)).line();
        assert!(line.len() <= MAX_LINE && line.ends_with('\n') && line.matches('\n').count() == 1);
        assert!(Ask::Short { pid: u32::MAX, uuid: UUID, bytes: u64::MAX }.line().len() <= MAX_LINE);
    }

    #[test]
    fn a_service_has_a_plain_name() {
        assert_eq!(socket(Path::new("/x"), "a"), Path::new("/x/a.share"));
        let longest = "a".repeat(MAX_NAME);
        for name in ["a", "pod_7.x-1", &longest] {
            assert_eq!(name_of_socket(&format!("{name}{SUFFIX}")), Some(name));
        }
        for name in ["", "a/b", "a b", "\u{e9}", &"a".repeat(MAX_NAME + 1)] {
            assert_eq!(name_of_socket(&format!("{name}{SUFFIX}")), None, "{name}");
        }
        assert_eq!(name_of_socket("1-2.sock"), None);
    }
}
