//! The files of a program in the child that reads them: opened safely, mapped, and parsed.
//!
//! Only this module decides which file has the debug information of another. A file may name any file as its debug
//! file, so the name is looked up in the program's own file system, or below `/usr/lib/debug` here, and only a regular
//! file is opened.

use super::question::{CodeFile, Content};
use crate::source::seen::{LastLink, Seen};
use flate2::Crc;
use flate2::read::ZlibDecoder;
use object::read::CompressionFormat;
use object::{Object, ObjectSection};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Directory of separate debug information, in each file system.
const DEBUG_DIR: &str = "usr/lib/debug";
/// Shorter build ids do not identify a file.
const LEAST_BUILD_ID: usize = 8;
/// Most bytes that a compressed section may unpack to.
const MOST_UNPACKED: u64 = 512 << 20;

/// An open file, which stays open as long as the child lives.
pub(super) struct Opened {
    file: File,
    identity: (u64, u64),
    content: Content,
}

/// The parsed bytes of a file.
pub(super) struct Parsed {
    pub opened: Rc<Opened>,
    bytes: &'static [u8],
    elf: object::File<'static>,
    /// The file system in which its links hold, and its path there.
    root: PathBuf,
    path: PathBuf,
}

impl Opened {
    pub(super) fn of(file: &CodeFile) -> std::io::Result<Self> {
        let root = Path::new(&file.root);
        let seen = match &file.kept {
            // Follow the kernel's link to the very file.
            Some(kept) => Seen::at(rustix::fs::CWD, Path::new(kept), LastLink::Follow)?,
            None => Seen::inside(root, Path::new(&file.path), LastLink::Follow)?,
        };
        Self::seen(seen, root)
    }

    fn seen(seen: Seen, root: &Path) -> std::io::Result<Self> {
        let file = seen.open()?;
        let (meta, root) = (file.metadata()?, std::fs::metadata(root)?);
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        // Sub-second parts tell writes within a second apart.
        let [modified, modified_ns, changed, changed_ns] = times.map(|time| time as u64);
        let times = [modified.wrapping_mul(1 << 30) ^ modified_ns, changed.wrapping_mul(1 << 30) ^ changed_ns];
        let content = Content([meta.dev(), meta.ino(), meta.len(), times[0], times[1], root.dev(), root.ino()]);
        Ok(Self { file, identity: seen.identity(), content })
    }

    pub(super) fn content(&self) -> Content {
        self.content
    }

    /// Returns a path that leads to this very file.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

impl Parsed {
    /// Parses an opened file of a program.
    pub(super) fn of(file: &CodeFile, opened: Rc<Opened>) -> Option<Self> {
        Self::new(opened, PathBuf::from(&file.root), PathBuf::from(&file.path))
    }

    fn inside(root: &Path, path: PathBuf) -> Option<Self> {
        let seen = Seen::inside(root, &path, LastLink::Follow).ok()?;
        Self::new(Rc::new(Opened::seen(seen, root).ok()?), root.to_owned(), path)
    }

    fn new(opened: Rc<Opened>, root: PathBuf, path: PathBuf) -> Option<Self> {
        // SAFETY: nothing here writes to the mapping. Its owner may change or shorten the file. Bytes that change are
        // read by parsers that trust no byte, and a read behind the new end ends this child alone, which its parent
        // bears.
        let mapped = unsafe { memmap2::Mmap::map(&opened.file) }.ok()?;
        let bytes: &'static [u8] = Box::leak(Box::new(mapped));
        let elf = object::File::parse(bytes).ok()?;
        Some(Self { opened, bytes, elf, root, path })
    }

    pub(super) fn has_debug_information(&self) -> bool {
        self.elf.section_by_name(".debug_info").is_some()
    }

    pub(super) fn is_little_endian(&self) -> bool {
        self.elf.is_little_endian()
    }

    /// Returns the bytes of a section; empty if there is none.
    pub(super) fn section(&self, name: &str) -> &'static [u8] {
        let packed = self.elf.section_by_name(name).and_then(|section| section.compressed_data().ok());
        let Some(packed) = packed else { return &[] };
        match packed.format {
            CompressionFormat::None => packed.data,
            CompressionFormat::Zlib => {
                let mut bytes = Vec::new();
                let whole = ZlibDecoder::new(packed.data).take(MOST_UNPACKED).read_to_end(&mut bytes);
                whole.map_or(&[], |_| Vec::leak(bytes))
            }
            _ => &[],
        }
    }

    fn build_id(&self) -> Option<&[u8]> {
        self.elf.build_id().ok().flatten().filter(|id| id.len() >= LEAST_BUILD_ID)
    }

    /// Returns the file with the debug information of this one.
    pub(super) fn separate(&self) -> Option<Self> {
        let link = self.elf.gnu_debuglink().ok().flatten();
        // A bare file name: a path could lead anywhere below a root.
        let link = link.filter(|(name, _)| !name.contains(&b'/') && ![&b""[..], b".", b".."].contains(name));
        let by_id = self.build_id().map(of_build_id);
        let by_name = link.map(|(name, _)| self.by_name(Path::new(OsStr::from_bytes(name)))).unwrap_or_default();
        let is_ours = |file: &Self| {
            file.opened.identity != self.opened.identity
                && match (self.build_id(), file.build_id()) {
                    (Some(one), Some(other)) => one == other,
                    _ => link.is_some_and(|(_, checksum)| file.checksum() == checksum),
                }
        };
        let in_root = |root: &Path| {
            let paths = by_id.iter().chain(by_name.iter()).cloned();
            paths.filter_map(|path| Self::inside(root, path)).find(is_ours)
        };
        in_root(&self.root).or_else(|| {
            // On this machine, only below the directory of debug information.
            let own = by_id.iter().chain(by_name.iter()).filter(|path| path.starts_with(DEBUG_DIR));
            let mut own = own.filter(|_| self.root != Path::new("/")).cloned();
            own.find_map(|path| Self::inside(Path::new("/"), path).filter(is_ours))
        })
    }

    /// Returns the paths at which a file named by a link may lie.
    fn by_name(&self, name: &Path) -> Vec<PathBuf> {
        let here = self.path.strip_prefix("/").unwrap_or(&self.path).parent().unwrap_or(Path::new("")).to_owned();
        let mut paths = vec![Path::new(DEBUG_DIR).join(name), here.join(name), here.join(".debug").join(name)];
        paths.extend(here.ancestors().map(|dir| Path::new(DEBUG_DIR).join(dir).join(name)));
        paths
    }

    fn checksum(&self) -> u32 {
        let mut crc = Crc::new();
        crc.update(self.bytes);
        crc.sum()
    }

    /// Returns the file with debug information that several files share (`.gnu_debugaltlink`).
    pub(super) fn shared(&self) -> Option<Self> {
        let (path, id) = self.elf.gnu_debugaltlink().ok().flatten()?;
        let path = Path::new(OsStr::from_bytes(path));
        let named = self.path.parent().unwrap_or(Path::new("")).join(path);
        let by_id = Some(of_build_id(id)).filter(|_| id.len() >= LEAST_BUILD_ID);
        let is_it = |file: &Self| file.elf.build_id().ok().flatten() == Some(id);
        let here = std::iter::once(named).chain(by_id.clone()).map(|path| (self.root.as_path(), path));
        let own = by_id.into_iter().map(|path| (Path::new("/"), path));
        here.chain(own).find_map(|(root, path)| Self::inside(root, path).filter(is_it))
    }

    /// Returns the package with split debug information: `app.dwp` beside `app`.
    pub(super) fn package(&self) -> Option<Self> {
        let mut path = self.path.clone().into_os_string();
        path.push(".dwp");
        Self::inside(&self.root, path.into())
    }
}

fn of_build_id(id: &[u8]) -> PathBuf {
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = digits.split_at(2.min(digits.len()));
    Path::new(DEBUG_DIR).join(".build-id").join(first).join(format!("{rest}.debug"))
}
