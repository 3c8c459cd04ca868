//! Counts of a service's work, in a file beside its socket. `gpumem serve` reads it.

use crate::parking::files;
use crate::source::world::World;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Ending of the file's name.
const SUFFIX: &str = ".share.json";
/// Most bytes of it that are read.
const MOST: u64 = 1 << 16;

/// Counts since the service began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub name: String,
    pub parks: u64,
    pub parked_bytes: u64,
    pub park_seconds: f64,
    pub resumes: u64,
    pub resumed_bytes: u64,
    pub resume_seconds: f64,
    /// Requests that were granted and refused.
    pub granted: u64,
    pub refused: u64,
    /// Time that granted requests waited.
    pub waited_seconds: f64,
    pub longest_wait_seconds: f64,
    /// Parks and resumes that the driver refused.
    pub failed: u64,
}

impl Counts {
    /// Writes the file; what cannot be written is left out.
    pub(super) fn write(&self, world: &World) {
        if let Err(error) = files::write(world, &path(world, &self.name), self) {
            tracing::debug!("the counts of {} were not written: {error}", self.name);
        }
    }
}

/// Returns what the services in this user's directory have done, by name. A service that has ended left its counts.
pub(crate) fn all(world: &World) -> Vec<Counts> {
    let files = std::fs::read_dir(&world.own_dir).into_iter().flatten().flatten();
    let of_service = files.filter(|file| file.file_name().to_str().is_some_and(|name| name.ends_with(SUFFIX)));
    let mut all: Vec<Counts> = of_service.filter_map(|file| read(world, &file.path())).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
    all
}

/// Reads a file of this user, if it says what its name says.
fn read(world: &World, file: &Path) -> Option<Counts> {
    let counts: Counts = files::read(file, &[world.uid], MOST)?;
    (path(world, &counts.name) == file && gpumem_wire::share::is_name(&counts.name)).then_some(counts)
}

fn path(world: &World, name: &str) -> PathBuf {
    world.own_dir.join(format!("{name}{SUFFIX}"))
}
