//! A file as the stretches of bytes that it stores.

use gpumem_wire::read::Source;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pub len: u64,
    /// The stretches with their offsets. They are in order and do not overlap.
    pub parts: Vec<(u64, Vec<u8>)>,
}

/// Blocks of zeroes are left out: the writer allocates storage ahead, so a ledger has many.
const BLOCK: usize = 512;

impl Image {
    /// Reads what a file stores.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn of(file: &File) -> io::Result<Self> {
        let mut image = Self { len: file.metadata()?.len(), parts: Vec::new() };
        let mut offset = 0;
        while let Some(stretch) = file.stored_from(offset)? {
            let mut bytes = vec![0; (stretch.end - stretch.start) as usize];
            let got = Source::read_at(file, stretch.start, &mut bytes)?;
            for (at, block) in bytes[..got].chunks(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|&b| b != 0))
            {
                image.append(stretch.start + (at * BLOCK) as u64, block);
            }
            offset = stretch.end;
        }
        Ok(image)
    }

    fn append(&mut self, offset: u64, bytes: &[u8]) {
        match self.parts.last_mut() {
            Some((at, part)) if *at + part.len() as u64 == offset => part.extend_from_slice(bytes),
            _ => self.parts.push((offset, bytes.to_vec())),
        }
    }

    /// How many bytes are stored.
    pub fn stored(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.len() as u64).sum()
    }

    /// Stored bytes from an offset on; fewer than `len`, or none, where there are no more.
    pub fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let (start, part) = self.parts.iter().rfind(|(start, _)| *start <= offset)?;
        let rest = part.get((offset - start) as usize..)?;
        Some(&rest[..rest.len().min(len)])
    }

    /// As [`Image::at`], to be changed.
    pub fn at_mut(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        let (start, part) = self.parts.iter_mut().rfind(|(start, _)| *start <= offset)?;
        let rest = part.get_mut((offset - *start) as usize..)?;
        let len = rest.len().min(len);
        Some(&mut rest[..len])
    }

    /// Writes the image over a file. What the image does not store becomes a hole.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn write(&self, file: &File) -> io::Result<()> {
        file.set_len(0)?;
        for (offset, bytes) in &self.parts {
            file.write_all_at(bytes, *offset)?;
        }
        file.set_len(self.len)
    }
}
