//! Findings of checks.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands) enum Severity {
    #[default]
    Ok,
    Info,
    Warning,
    Error,
}

impl Severity {
    /// Its name in JSON.
    pub(in crate::commands) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A finding of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct Finding {
    /// Name of the check, which stays the same between releases. The table of checks sets it.
    pub id: &'static str,
    pub severity: Severity,
    /// The process, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub finding: String,
    /// Bytes behind the finding; findings of most bytes come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The command to paste.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub paste: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// Makes a finding of this severity.
pub(super) fn finding(severity: Severity, finding: impl Into<String>) -> Finding {
    Finding { severity, finding: finding.into(), ..Finding::default() }
}

/// Makes the finding that all is in order.
pub(super) fn ok(text: impl Into<String>) -> Finding {
    finding(Severity::Ok, text)
}

/// Makes a finding for information.
pub(super) fn info(text: impl Into<String>) -> Finding {
    finding(Severity::Info, text)
}

/// Makes a finding that deserves a look.
pub(super) fn warning(text: impl Into<String>) -> Finding {
    finding(Severity::Warning, text)
}

/// Makes a finding of an error.
pub(super) fn error(text: impl Into<String>) -> Finding {
    finding(Severity::Error, text)
}

impl Finding {
    /// Adds the remedy.
    pub(super) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }

    /// Sets the bytes behind the finding.
    pub(super) fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// Adds the command that helps.
    pub(super) fn paste(self, command: impl Into<String>) -> Self {
        Self { paste: command.into(), ..self }
    }
}

/// A check may return one finding, an optional one, or several.
impl IntoIterator for Finding {
    type Item = Self;
    type IntoIter = std::iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}
