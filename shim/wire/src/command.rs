//! Requests of the inspector to a running process, over its control socket: one line of text each way. The socket lies
//! beside the ledger and answers only its own user (and root).
//!
//! A request is a verb, a space, and an argument up to the end of the line. The answer is `ok`, possibly with a text,
//! or `error` and what is wrong. An unknown verb is an error, so that an older shim says so.

/// Maximum length of a line, with its end, in bytes. Both sides refuse a longer one rather than cut it.
pub const MAX_LINE: usize = 1024;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Answers `ok` and the shim's version.
    Ping,
    /// Puts a named moment into the ring of events.
    Mark(String),
    /// Gives what the pool keeps back to the driver; with `press`, also makes the program give back what its own pool
    /// keeps.
    Trim { press: bool },
    /// Changes a variable, as [`crate::settings::change`] reads name and value. `force`: even if that does harm.
    Set { name: String, value: String, force: bool },
    /// Steps aside for all later calls: new objects are the driver's own, and nothing is kept.
    Off,
    /// Reads all memory that the guard watches, for at most this time, and reports the findings.
    Check { longest_ms: u64 },
    /// Searches for words that refer to live allocations, for at most this time; the answer has many lines
    /// ([`crate::references`]).
    References { longest_ms: u64 },
    /// Gives back what the pool and the graph cache keep, then makes no driver call until [`Request::Resumed`]. The
    /// answer comes once no thread of the shim is in the driver.
    Park,
    /// The driver has moved the process's device memory, so many bytes, to the host.
    Parked { bytes: u64 },
    /// The process has its device memory, and the driver answers again: after a restore, or if parking was given up.
    Resumed,
}

impl Request {
    /// Parses a line, without its end.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn parse(line: &str) -> Result<Self, String> {
        let (verb, argument) = line.split_once(' ').unwrap_or((line, ""));
        match (verb, argument.trim()) {
            ("ping", "") => Ok(Self::Ping),
            ("mark", name) if !name.is_empty() => Ok(Self::Mark(name.to_owned())),
            ("mark", _) => Err("mark wants a name".into()),
            ("ping", _) => Err("ping wants nothing".into()),
            ("trim", "") => Ok(Self::Trim { press: false }),
            ("trim", "press") => Ok(Self::Trim { press: true }),
            ("trim", _) => Err("trim wants nothing, or press".into()),
            ("set" | "force", change) => match change.split_once(' ') {
                Some((name, value)) => {
                    Ok(Self::Set { name: name.to_owned(), value: value.trim().to_owned(), force: verb == "force" })
                }
                None => Err(format!("{verb} wants the name of a variable and a value")),
            },
            ("off", "") => Ok(Self::Off),
            ("off", _) => Err("off wants nothing".into()),
            ("park", "") => Ok(Self::Park),
            ("park", _) => Err("park wants nothing".into()),
            ("parked", bytes) => match bytes.parse() {
                Ok(bytes) => Ok(Self::Parked { bytes }),
                Err(_) => Err("parked wants a number of bytes".into()),
            },
            ("resumed", "") => Ok(Self::Resumed),
            ("resumed", _) => Err("resumed wants nothing".into()),
            // A client that gives no time waits three seconds for the answer.
            ("check", "") => Ok(Self::Check { longest_ms: 2000 }),
            ("check" | "references", longest) => match (verb, longest.parse()) {
                ("check", Ok(longest_ms)) => Ok(Self::Check { longest_ms }),
                (_, Ok(longest_ms)) => Ok(Self::References { longest_ms }),
                (_, Err(_)) => Err(format!("{verb} wants a number of milliseconds")),
            },
            _ => Err(format!(
                "{verb:?} is no command of this libgpumem.so; it knows ping, mark, trim, set, force, off, check, \
                 references, park, parked and resumed"
            )),
        }
    }

    /// Returns the line of this request, with its end. Control characters in it become spaces.
    ///
    /// # Errors
    /// A sentence that states the maximum length.
    pub fn line(&self) -> Result<String, String> {
        let text = match self {
            Self::Ping => "ping".to_owned(),
            Self::Mark(name) => format!("mark {name}"),
            Self::Trim { press: false } => "trim".to_owned(),
            Self::Trim { press: true } => "trim press".to_owned(),
            Self::Set { name, value, force: false } => format!("set {name} {value}"),
            Self::Set { name, value, force: true } => format!("force {name} {value}"),
            Self::Off => "off".to_owned(),
            Self::Check { longest_ms } => format!("check {longest_ms}"),
            Self::References { longest_ms } => format!("references {longest_ms}"),
            Self::Park => "park".to_owned(),
            Self::Parked { bytes } => format!("parked {bytes}"),
            Self::Resumed => "resumed".to_owned(),
        };
        let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        line.push('\n');
        match line.len() {
            ..=MAX_LINE => Ok(line),
            len => {
                Err(format!("the command is {len} bytes long; at most {MAX_LINE} are allowed, and nothing was sent"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_turn_back() {
        for request in [
            Request::Ping,
            Request::Mark("before the upload".into()),
            Request::Trim { press: false },
            Request::Trim { press: true },
            Request::Set { name: "POOL_MAX".into(), value: "1 GiB".into(), force: false },
            Request::Set { name: "LIMIT".into(), value: "1GiB".into(), force: true },
            Request::Off,
            Request::Check { longest_ms: 8000 },
            Request::References { longest_ms: 10_000 },
            Request::Park,
            Request::Parked { bytes: 12 << 30 },
            Request::Resumed,
        ] {
            assert_eq!(Request::parse(request.line().expect("short").trim_end_matches('\n')), Ok(request));
        }
        assert_eq!(Request::Mark("a\nmark b".into()).line().as_deref(), Ok("mark a mark b\n"));
        let longest = MAX_LINE - "mark \n".len();
        assert_eq!(Request::Mark("x".repeat(longest)).line().map(|line| line.len()), Ok(MAX_LINE));
        let refused = Request::Mark("x".repeat(longest + 1)).line().unwrap_err();
        assert!(refused.contains("1025 bytes") && refused.contains("1024"), "{refused}");
    }

    #[test]
    fn strangers_are_refused_by_name() {
        assert!(Request::parse("reset").unwrap_err().contains("\"reset\""));
        assert!(Request::parse("trim all").is_err());
        assert!(Request::parse("off now").is_err());
        assert!(Request::parse("references soon").is_err());
        assert!(Request::parse("check soon").unwrap_err().contains("check wants a number"));
        assert_eq!(Request::parse("check"), Ok(Request::Check { longest_ms: 2000 }));
        assert!(Request::parse("set POOL_MAX").is_err());
        assert!(Request::parse("parked").unwrap_err().contains("parked wants a number of bytes"));
        assert!(Request::parse("park 5").is_err() && Request::parse("resumed 5").is_err());
        assert!(Request::parse("mark ").is_err());
        assert!(Request::parse("").is_err());
    }
}
