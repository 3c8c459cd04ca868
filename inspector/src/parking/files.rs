//! Small files of gpumem's beside the ledgers: objects in JSON, and locks.

use crate::source::world::World;
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Anyone can write to a public directory: no link is followed, and nothing that lies there makes an open wait.
const CAREFULLY: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Writes an object. The file is complete or not there. It matters to processes of this boot alone, so it need not
/// reach a disk.
///
/// # Errors
/// Those of the system.
pub(super) fn write(world: &World, path: &Path, object: &impl Serialize) -> io::Result<()> {
    make_directory(world)?;
    let mut file = tempfile::NamedTempFile::new_in(&world.own_dir)?;
    serde_json::to_writer(&mut file, object)?;
    file.flush()?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

/// Reads an object of at most `most` bytes from a file of one of these users.
pub(super) fn read<T: DeserializeOwned>(path: &Path, owners: &[u32], most: u64) -> Option<T> {
    let file = OpenOptions::new().read(true).custom_flags(CAREFULLY).open(path).ok()?;
    let what = file.metadata().ok()?;
    if !what.is_file() || !owners.contains(&what.uid()) {
        return None;
    }
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Locks a file, which is made if it is not there. The kernel ends the lock when the file is closed, however the process
/// ends.
///
/// # Errors
/// Those of the system; also if the lock is taken and `how` does not wait.
pub(super) fn lock(world: &World, path: &Path, how: FlockOperation) -> io::Result<File> {
    make_directory(world)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(CAREFULLY);
    let file = options.open(path)?;
    rustix::fs::flock(&file, how)?;
    Ok(file)
}

fn make_directory(world: &World) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(&world.own_dir)
}
