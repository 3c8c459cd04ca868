//! What the inspector may ask of a running process, over its control socket: one line of text each
//! way. The socket lies beside the ledger and answers its own user (and root) only.
//!
//! A request is a verb, a space, and an argument up to the end of the line. The answer is `ok`,
//! maybe with a text, or `error` and what is wrong. Unknown verbs are an error, so that an older
//! shim says so.

/// Longest line either side believes, bytes.
pub const MAX_LINE: usize = 1024;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Answers `ok` and the shim's version.
    Ping,
    /// Puts a named moment into the ring of events.
    Mark(String),
    /// Gives what the pool keeps back to the driver; with `press`, also makes the program give back
    /// what its own pool keeps.
    Trim { press: bool },
    /// Changes a variable, as [`crate::settings::change`] reads name and value.
    Set(String, String),
}

impl Request {
    /// The request in a line, without its end.
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
            ("set", change) => match change.split_once(' ') {
                Some((name, value)) => Ok(Self::Set(name.to_owned(), value.trim().to_owned())),
                None => Err("set wants the name of a variable and a value".into()),
            },
            _ => Err(format!("{verb:?} is no command of this libgpumem.so; it knows ping, mark, trim and set")),
        }
    }

    /// The line of this request, with its end. Control characters in it become spaces.
    pub fn line(&self) -> String {
        let text = match self {
            Self::Ping => "ping".to_owned(),
            Self::Mark(name) => format!("mark {name}"),
            Self::Trim { press: false } => "trim".to_owned(),
            Self::Trim { press: true } => "trim press".to_owned(),
            Self::Set(name, value) => format!("set {name} {value}"),
        };
        let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        while line.len() >= MAX_LINE {
            line.pop();
        }
        line.push('\n');
        line
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
            Request::Set("POOL_MAX".into(), "1 GiB".into()),
        ] {
            assert_eq!(Request::parse(request.line().trim_end_matches('\n')), Ok(request));
        }
        assert_eq!(Request::Mark("a\nmark b".into()).line(), "mark a mark b\n");
        assert!(Request::Mark("ü".repeat(2000)).line().len() <= MAX_LINE);
    }

    #[test]
    fn strangers_are_refused_by_name() {
        assert!(Request::parse("reset").unwrap_err().contains("\"reset\""));
        assert!(Request::parse("trim all").is_err());
        assert!(Request::parse("set POOL_MAX").is_err());
        assert!(Request::parse("mark ").is_err());
        assert!(Request::parse("").is_err());
    }
}
