//! Paths of ledgers: `PID-STARTTICKS.ledger` in a directory of the user.
//!
//! The shim and the inspector derive the directories from the same rules, so that they meet: the shim takes the first
//! one that can hold a ledger, the inspector looks in all of them.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The variable that names another directory.
pub const DIR_VARIABLE: &str = "GPUMEM_DIR";
/// Ending of a ledger's name.
pub const LEDGER_SUFFIX: &str = ".ledger";
/// Ending of the name of a process's control socket.
pub const SOCKET_SUFFIX: &str = ".sock";
/// Ending of the name of a note that a process is parked.
pub const NOTE_SUFFIX: &str = ".parked";

/// Returns `$XDG_RUNTIME_DIR` if it is a directory of this user: under sudo or su it may name another user's, or none.
pub fn runtime_dir(uid: u32) -> Option<OsString> {
    std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| is_of(Path::new(dir), uid))
}

fn is_of(dir: &Path, uid: u32) -> bool {
    std::fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// Returns the directories for ledgers, the best one first: `gpumem_dir` alone if set, else `gpumem` under
/// `runtime_dir` if that is set, then the user's own directory in /dev/shm and in /tmp. Empty values count as unset, as
/// in the XDG specification.
///
/// The first two are memory: problems of a disk do not reach the program through them.
pub fn directories(gpumem_dir: Option<&OsStr>, runtime_dir: Option<&OsStr>, uid: u32) -> Vec<PathBuf> {
    if let Some(dir) = gpumem_dir.filter(|dir| !dir.is_empty()) {
        return vec![PathBuf::from(dir)];
    }
    let runtime = runtime_dir.filter(|dir| !dir.is_empty()).map(|dir| Path::new(dir).join("gpumem"));
    runtime.into_iter().chain(SHARED.map(|dir| PathBuf::from(format!("{dir}/{SHARED_PREFIX}{uid}")))).collect()
}

/// Returns the best of [`directories`].
pub fn directory(gpumem_dir: Option<&OsStr>, runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
    directories(gpumem_dir, runtime_dir, uid).swap_remove(0)
}

/// Directories that all users share, in which each user has a directory.
pub const SHARED: [&str; 2] = ["/dev/shm", "/tmp"];
/// Beginning of the name of a user's directory in them; the user's number follows.
pub const SHARED_PREFIX: &str = "gpumem-";

/// The process that wrote a ledger, as in the ledger's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    pub pid: u32,
    /// Field 22 of /proc/PID/stat, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// Returns the name of this process's ledger.
    pub fn ledger_name(&self) -> String {
        format!("{}-{}{LEDGER_SUFFIX}", self.pid, self.start_ticks)
    }

    /// Returns the name of this process's control socket.
    pub fn socket_name(&self) -> String {
        format!("{}-{}{SOCKET_SUFFIX}", self.pid, self.start_ticks)
    }

    /// Returns the name of the note that this process is parked.
    pub fn note_name(&self) -> String {
        format!("{}-{}{NOTE_SUFFIX}", self.pid, self.start_ticks)
    }

    /// Returns the process that a note of this name is about; `None` if it is not a note's name.
    pub fn from_note_name(name: &str) -> Option<Self> {
        Self::from_stem(name.strip_suffix(NOTE_SUFFIX)?)
    }

    /// Returns the process that a ledger of this name belongs to; `None` if it is not a ledger's name.
    pub fn from_ledger_name(name: &str) -> Option<Self> {
        Self::from_stem(name.strip_suffix(LEDGER_SUFFIX)?)
    }

    /// Returns the process that a socket of this name belongs to; `None` if it is not a socket's name.
    pub fn from_socket_name(name: &str) -> Option<Self> {
        Self::from_stem(name.strip_suffix(SOCKET_SUFFIX)?)
    }

    /// Parses a name as [`ProcessId::ledger_name`] writes it: `+5` and `05` are not numbers.
    fn from_stem(stem: &str) -> Option<Self> {
        let (pid, start) = stem.split_once('-')?;
        let id = Self { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? };
        (format!("{}-{}", id.pid, id.start_ticks) == stem).then_some(id)
    }
}

/// Iterates over the fields of `/proc/PID/stat` from the third on, the state.
///
/// The command's name may hold spaces and parentheses, so fields are counted from its last `)`. It need not be UTF-8:
/// the kernel cuts it after 15 bytes.
pub fn stat_fields(stat: &(impl AsRef<[u8]> + ?Sized)) -> impl Iterator<Item = &str> {
    let stat = stat.as_ref();
    let name = stat.iter().rposition(|&byte| byte == b')').map_or(stat.len(), |at| at + 1);
    std::str::from_utf8(&stat[name..]).unwrap_or_default().split_ascii_whitespace()
}

/// Returns a process's start time in clock ticks, from the contents of `/proc/PID/stat`.
pub fn start_ticks(stat: &(impl AsRef<[u8]> + ?Sized)) -> Option<u64> {
    stat_fields(stat).nth(19)?.parse().ok()
}

/// Returns the 16 bytes of a boot id (a UUID in text), `None` if it is not one.
pub fn boot_id(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut digits = text.bytes().filter(|&byte| byte != b'-' && !byte.is_ascii_whitespace());
    for byte in &mut bytes {
        let (high, low) = (digits.next()?, digits.next()?);
        *byte = ((high as char).to_digit(16)? * 16 + (low as char).to_digit(16)?) as u8;
    }
    digits.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_runtime_directory_does_not_count() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let uid = std::fs::metadata(dir).unwrap().uid();
        assert!(is_of(dir, uid));
        assert!(!is_of(dir, uid + 1) && !is_of(&dir.join("none"), uid));
    }

    #[test]
    fn directory_follows_the_most_specific_variable() {
        let os = OsStr::new;
        assert_eq!(directory(Some(os("/a")), Some(os("/b")), 7), Path::new("/a"));
        assert_eq!(directory(Some(os("")), Some(os("/b")), 7), Path::new("/b/gpumem"));
        assert_eq!(directory(None, None, 7), Path::new("/dev/shm/gpumem-7"));
    }

    #[test]
    fn memory_comes_before_a_disk_and_a_named_directory_is_the_only_one() {
        let os = OsStr::new;
        let all = |gpumem, runtime| directories(gpumem, runtime, 7);
        assert_eq!(all(Some(os("/a")), Some(os("/b"))), [Path::new("/a")]);
        let own = ["/dev/shm/gpumem-7", "/tmp/gpumem-7"].map(PathBuf::from);
        assert_eq!(all(None, None), own);
        assert_eq!(all(None, Some(os("/b"))), ["/b/gpumem".into(), own[0].clone(), own[1].clone()]);
    }

    #[test]
    fn names_turn_back_and_strangers_are_refused() {
        let id = ProcessId { pid: 12, start_ticks: 3456 };
        assert_eq!(ProcessId::from_ledger_name(&id.ledger_name()), Some(id));
        for name in [
            "12.ledger",
            "x-1.ledger",
            "12-3.sock",
            "-.ledger",
            "12-99999999999999999999999.ledger",
            "+5-+6.ledger",
            "05-6.ledger",
            "5-06.ledger",
            "5--6.ledger",
            "5- 6.ledger",
            "5-6-7.ledger",
            "-5-6.ledger",
            "٥-٦.ledger",
        ] {
            assert_eq!(ProcessId::from_ledger_name(name), None, "{name}");
            assert_eq!(
                ProcessId::from_socket_name(&name.replace(".ledger", ".sock")),
                match name {
                    "12-3.sock" => Some(ProcessId { pid: 12, start_ticks: 3 }),
                    _ => None,
                }
            );
        }
    }

    #[test]
    fn start_time_is_found_behind_a_hostile_command_name() {
        let stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 98765 20";
        assert_eq!(start_ticks(stat), Some(98765));
        assert_eq!(start_ticks("42 (x"), None);
        let mut cut = stat.replace("a) b", "\u{6f22}").into_bytes();
        cut.retain(|&byte| byte != 0xa2);
        assert!(std::str::from_utf8(&cut).is_err());
        assert_eq!(start_ticks(&cut), Some(98765), "half of a character in the name");
    }

    #[test]
    fn boot_id_is_sixteen_bytes_or_nothing() {
        let id = boot_id("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!((id[0], id[15]), (0, 0xff));
        assert_eq!(boot_id("0011"), None);
        assert_eq!(boot_id("00112233-4455-6677-8899-aabbccddeeff0"), None);
    }
}
