//! The verdict of `gpumem selftest --rules` on one driver and one kind of GPU: the parts that may be on there.
//!
//! ```text
//! gpumem verdict 1
//! release 0.1.0
//! driver 14000
//! gpu 9.0 NVIDIA H200
//! pool on
//! graph-cache off
//! end
//! ```
//!
//! A file has these lines, in this order, and nothing else. The inspector writes such files, and the shim only reads
//! them: from a directory of the system or of the user, which no other user can write to.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directory that root writes and every process reads.
pub const SYSTEM: &str = "/var/lib/gpumem";
/// Maximum length of a verdict, bytes.
const MOST_BYTES: u64 = 1024;
const FIRST: &str = "gpumem verdict 1";
const LAST: &str = "end";

/// Subject of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Of gpumem, e.g. "0.1.0".
    pub release: String,
    /// As `cuDriverGetVersion` gives it, e.g. 14000.
    pub driver: u32,
    /// The GPU's name. Other GPUs of this name and capability count as equal.
    pub gpu: String,
    /// Its compute capability, major and minor.
    pub capability: (u32, u32),
}

impl Subject {
    /// Returns the name of its file: of letters, digits, `.`, `-` and `_`.
    pub fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        let gpu: String = self.gpu.chars().map(plain).take(80).collect();
        let release: String = self.release.chars().map(plain).take(40).collect();
        format!("{release}-driver{}-sm{}{}-{gpu}.verdict", self.driver, self.capability.0, self.capability.1)
    }
}

/// The parts that may be on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub subject: Subject,
    pub pool: bool,
    pub graph_cache: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { release, driver, gpu, capability } = &self.subject;
        let word = |on| if on { "on" } else { "off" };
        writeln!(f, "{FIRST}\nrelease {release}\ndriver {driver}\ngpu {}.{} {gpu}", capability.0, capability.1)?;
        writeln!(f, "pool {}\ngraph-cache {}\n{LAST}", word(self.pool), word(self.graph_cache))
    }
}

impl Verdict {
    /// # Errors
    /// A description of the fault in the text.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is no text")?;
        if text.contains('\0') {
            return Err("it has NUL bytes".into());
        }
        let text = text.strip_suffix('\n').ok_or("it is cut")?;
        let mut lines = text.split('\n');
        if lines.next() != Some(FIRST) {
            return Err(format!("it does not begin with \"{FIRST}\""));
        }
        let mut value = |key: &str| -> Result<&str, String> {
            let line = lines.next().ok_or_else(|| format!("it is cut before {key}"))?;
            let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' '));
            value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{line:?} stands where {key} has to"))
        };
        let release = value("release")?.to_owned();
        let driver = number(value("driver")?)?;
        let gpu = value("gpu")?;
        let (capability, gpu) = gpu.split_once(' ').ok_or("its GPU has no name")?;
        let (major, minor) = capability.split_once('.').ok_or("its GPU has no compute capability")?;
        let capability = (number(major)?, number(minor)?);
        let subject = Subject { release, driver, gpu: gpu.to_owned(), capability };
        let (pool, graph_cache) = (switch(value("pool")?)?, switch(value("graph-cache")?)?);
        match (lines.next(), lines.next()) {
            (Some(LAST), None) => Ok(Self { subject, pool, graph_cache }),
            (None, _) => Err("it is cut at its end".into()),
            _ => Err("it goes on behind what belongs there".into()),
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| number.to_string() == text);
    number.ok_or_else(|| format!("{text:?} is no number"))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is neither on nor off")),
    }
}

/// Returns the user's own directory for verdicts: under `$XDG_STATE_HOME`, else under `$HOME`; `None` without either.
/// Relative paths count as unset.
pub fn user_place(state_home: Option<&OsStr>, home: Option<&OsStr>) -> Option<PathBuf> {
    let absolute = |dir: Option<&OsStr>| dir.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let state = absolute(state_home).or_else(|| absolute(home).map(|home| home.join(".local/state")));
    state.map(|state| state.join("gpumem"))
}

/// Returns the directories that are searched for verdicts, in this order: the system's, then the user's.
pub fn places() -> Vec<PathBuf> {
    let user = user_place(std::env::var_os("XDG_STATE_HOME").as_deref(), std::env::var_os("HOME").as_deref());
    std::iter::once(PathBuf::from(SYSTEM)).chain(user).collect()
}

/// A verdict that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    pub verdict: Verdict,
}

impl Found {
    pub fn turns_off(&self) -> bool {
        !self.verdict.pool || !self.verdict.graph_cache
    }
}

/// Looks for the verdict on a subject in some places, for a process of user `uid`. Returns the first valid one, and a
/// line for each file that exists and is not valid.
pub fn find(places: &[PathBuf], subject: &Subject, uid: u32) -> (Option<Found>, Vec<String>) {
    let mut refused = Vec::new();
    for place in places {
        let path = place.join(subject.file_name());
        match read(place, subject, uid) {
            Ok(Some(verdict)) => return (Some(Found { path, verdict }), refused),
            Ok(None) => {}
            Err(why) => refused.push(format!("{} is not believed: {why}", path.display())),
        }
    }
    (None, refused)
}

/// Reads the verdict on a subject in a place; `None` if there is no such file.
fn read(place: &Path, subject: &Subject, uid: u32) -> Result<Option<Verdict>, String> {
    let plain = |error: io::Error| error.to_string();
    let absent = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
    let dir = match open(libc::AT_FDCWD, place.as_os_str(), libc::O_DIRECTORY | libc::O_PATH) {
        Ok(dir) => dir,
        Err(error) if absent(&error) => return Ok(None),
        // Another user's home, or a link: a process that may not look there has no verdict there.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Ok(None),
        Err(error) => return Err(plain(error)),
    };
    let file = match open(dir.as_raw_fd(), OsStr::new(&subject.file_name()), libc::O_NONBLOCK | libc::O_NOCTTY) {
        Ok(file) => file,
        Err(error) if absent(&error) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err("it is a link".into()),
        Err(error) => return Err(plain(error)),
    };
    trusted(&dir.metadata().map_err(plain)?, uid).map_err(|why| format!("its directory {why}"))?;
    let meta = file.metadata().map_err(plain)?;
    if !meta.is_file() {
        return Err("it is no file".into());
    }
    trusted(&meta, uid).map_err(|why| format!("it {why}"))?;
    let mut text = Vec::new();
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut text);
    read.map_err(plain)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("it is longer than {MOST_BYTES} bytes"));
    }
    let verdict = Verdict::parse(&text)?;
    match verdict.subject == *subject {
        true => Ok(Some(verdict)),
        false => {
            let Subject { release, driver, gpu, capability } = verdict.subject;
            let (major, minor) = capability;
            Err(format!("it is of gpumem {release}, driver {driver}, {gpu} ({major}.{minor})"))
        }
    }
}

/// Checks that only root or the user could have written it.
fn trusted(meta: &std::fs::Metadata, uid: u32) -> Result<(), String> {
    match (meta.uid(), meta.mode() & 0o022) {
        (owner, _) if owner != 0 && owner != uid => Err(format!("is user {owner}'s")),
        (_, 0) => Ok(()),
        (_, _) => Err("can be written by others".into()),
    }
}

fn open(dir: i32, name: &OsStr, flags: i32) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let flags = flags | libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `name` is a CString that lives until openat returns. A descriptor that comes back is
    // new, so the File is its only owner.
    unsafe {
        match libc::openat(dir, name.as_ptr(), flags) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(File::from_raw_fd(descriptor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn subject() -> Subject {
        Subject { release: "0.1.0".into(), driver: 14000, gpu: "Some GPU (80GB)".into(), capability: (9, 0) }
    }

    fn verdict() -> Verdict {
        Verdict { subject: subject(), pool: true, graph_cache: false }
    }

    /// A directory of the test's own, removed afterwards.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("gpumem-verdict-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
            Self(dir)
        }

        fn file(&self) -> PathBuf {
            self.0.join(subject().file_name())
        }

        fn write(&self, text: impl AsRef<[u8]>) {
            let _ = fs::remove_file(self.file());
            fs::write(self.file(), text).unwrap();
            fs::set_permissions(self.file(), fs::Permissions::from_mode(0o644)).unwrap();
        }

        fn found(&self) -> (Option<Found>, Vec<String>) {
            find(std::slice::from_ref(&self.0), &subject(), uid())
        }

        /// Returns the one reason why the file is not trusted.
        #[track_caller]
        fn refused(&self) -> String {
            let (found, mut lines) = self.found();
            assert_eq!((found, lines.len()), (None, 1));
            lines.remove(0)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn uid() -> u32 {
        // SAFETY: geteuid takes no arguments and cannot fail.
        unsafe { libc::geteuid() }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = verdict().to_string();
        assert_eq!(Verdict::parse(text.as_bytes()), Ok(verdict()));
        assert_eq!(subject().file_name(), "0.1.0-driver14000-sm90-Some_GPU__80GB_.verdict");
        let place = Place::new("good");
        assert_eq!(place.found(), (None, vec![]), "no file");
        place.write(&text);
        assert_eq!(place.found(), (Some(Found { path: place.file(), verdict: verdict() }), vec![]));
        assert_eq!(find(&[place.0.join("none")], &subject(), uid()), (None, vec![]), "no directory");
    }

    #[test]
    fn what_is_cut_or_forged_is_no_verdict() {
        let text = verdict().to_string();
        for len in 0..text.len() {
            assert!(Verdict::parse(&text.as_bytes()[..len]).is_err(), "{len} bytes");
        }
        for (of, to) in [
            ("pool on", "pool yes"),
            ("pool on\n", "pool on\npool off\n"),
            ("pool on\n", "pool on\nlimit 7\n"),
            ("pool on\ngraph-cache off", "graph-cache off\npool on"),
            ("driver 14000", "driver +14000"),
            ("driver 14000", "driver 99999999999"),
            ("gpu 9.0 ", "gpu 9 "),
            ("end\n", "end\nend\n"),
            ("end\n", "end"),
            ("end\n", "end\r\n"),
            ("release 0.1.0", "release "),
            ("verdict 1", "verdict 2"),
            ("Some GPU", "Some\0GPU"),
        ] {
            let forged = text.replacen(of, to, 1);
            assert_ne!(forged, text);
            assert!(Verdict::parse(forged.as_bytes()).is_err(), "{forged}");
        }
        assert!(Verdict::parse(&[&text.as_bytes()[..30], b"\xff\xfe"].concat()).is_err());
    }

    #[test]
    fn what_others_could_have_written_is_not_believed() {
        let place = Place::new("others");
        place.write(verdict().to_string());
        for mode in [0o664, 0o646, 0o777] {
            fs::set_permissions(place.file(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(place.refused().ends_with("it can be written by others"), "{mode:o}");
        }
        fs::set_permissions(place.file(), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(place.found().0.is_some());
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(place.refused().ends_with("its directory can be written by others"));
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755)).unwrap();
        // To a user other than its owner it is another user's, unless that is root.
        let (found, lines) = find(std::slice::from_ref(&place.0), &subject(), uid() + 1);
        match uid() {
            0 => assert!(found.is_some()),
            owner => assert!(lines[0].ends_with(&format!("its directory is user {owner}'s")), "{lines:?}"),
        }
        // Only root can give a file away.
        if uid() == 0 {
            std::os::unix::fs::chown(place.file(), Some(12345), None).unwrap();
            assert!(place.refused().ends_with("it is user 12345's"));
        }
    }

    #[test]
    fn what_is_no_small_plain_file_is_not_believed() {
        let place = Place::new("odd");
        place.write([verdict().to_string().into_bytes(), vec![b'\n'; 2000]].concat());
        assert!(place.refused().contains("longer than 1024 bytes"));
        place.write(vec![0; 64]);
        assert!(place.refused().contains("NUL"));
        fs::rename(place.file(), place.0.join("real")).unwrap();
        fs::write(place.0.join("real"), verdict().to_string()).unwrap();
        symlink("real", place.file()).unwrap();
        assert!(place.refused().ends_with("it is a link"));
        fs::remove_file(place.file()).unwrap();
        fs::create_dir(place.file()).unwrap();
        assert!(place.refused().ends_with("it is no file"));
        fs::remove_dir(place.file()).unwrap();
        let fifo = CString::new(place.file().as_os_str().as_bytes()).unwrap();
        // SAFETY: `fifo` is a CString: it ends in NUL and lives until mkfifo returns.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert!(place.refused().ends_with("it is no file"), "and nobody waits for a writer");
    }

    #[test]
    fn what_is_of_another_driver_gpu_or_release_is_not_believed() {
        let place = Place::new("another");
        let changes: [fn(&mut Subject); 4] = [
            |subject| subject.release = "0.2.0".into(),
            |subject| subject.driver = 14010,
            |subject| subject.gpu = "Another GPU".into(),
            |subject| subject.capability = (10, 0),
        ];
        for change in changes {
            let mut other = verdict();
            change(&mut other.subject);
            assert_ne!(other.subject.file_name(), subject().file_name());
            place.write(other.to_string());
            assert!(place.refused().contains("it is of gpumem "), "{other}");
        }
    }

    #[test]
    fn the_first_good_place_counts() {
        let (first, second) = (Place::new("first"), Place::new("second"));
        let places = [first.0.clone(), second.0.clone()];
        second.write(verdict().to_string());
        assert_eq!(find(&places, &subject(), uid()).0.map(|found| found.path), Some(second.file()));
        first.write("nonsense");
        let (found, lines) = find(&places, &subject(), uid());
        assert_eq!((found.map(|found| found.path), lines.len()), (Some(second.file()), 1));
        first.write(verdict().to_string());
        assert_eq!(find(&places, &subject(), uid()).0.map(|found| found.path), Some(first.file()));
    }

    #[test]
    fn the_users_place_follows_the_xdg_specification() {
        let os = |text: &'static str| Some(OsStr::new(text));
        assert_eq!(user_place(os("/s"), os("/h")), Some("/s/gpumem".into()));
        assert_eq!(user_place(os("s"), os("/h")), Some("/h/.local/state/gpumem".into()));
        assert_eq!((user_place(None, os("")), user_place(None, None)), (None, None));
    }
}
