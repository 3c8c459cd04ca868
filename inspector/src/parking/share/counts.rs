//! What a service has done, as a file beside its socket that `gpumem serve` reads.

use crate::source::world::World;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;

/// Ending of the file's name.
const SUFFIX: &str = ".share.json";

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
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&world.own_dir)?;
            serde_json::to_writer(&mut file, self)?;
            file.flush()?;
            file.persist(path(world, &self.name)).map_err(|failed| failed.error)?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::debug!("the counts of {} were not written: {error}", self.name);
        }
    }
}

fn path(world: &World, name: &str) -> PathBuf {
    world.own_dir.join(format!("{name}{SUFFIX}"))
}
