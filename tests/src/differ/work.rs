//! The work of a node or of a stream, and the buffers that it uses.

use super::program::Id;
use crate::tester::zero;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A buffer: `d0`… of device memory, `h0`… of pinned host memory, `l0`… the logs that host functions
/// write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Buf(pub u8);

impl Buf {
    pub const DEVICE: u8 = 6;
    pub const HOST: u8 = 2;
    pub const LOGS: u8 = 2;
    pub const COUNT: u8 = Self::DEVICE + Self::HOST + Self::LOGS;
    /// 32-bit words of a device or host buffer.
    pub const WORDS: u32 = 256;

    pub const fn log(i: u8) -> Self {
        Self(Self::DEVICE + Self::HOST + i)
    }

    pub fn is_device(self) -> bool {
        self.0 < Self::DEVICE
    }

    pub fn is_log(self) -> bool {
        self.0 >= Self::DEVICE + Self::HOST
    }
}

impl fmt::Display for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            i if i < Self::DEVICE => write!(f, "d{i}"),
            i if i < Self::DEVICE + Self::HOST => write!(f, "h{}", i - Self::DEVICE),
            i => write!(f, "l{}", i - Self::DEVICE - Self::HOST),
        }
    }
}

impl From<Buf> for String {
    fn from(buf: Buf) -> Self {
        buf.to_string()
    }
}

impl FromStr for Buf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        (0..Self::COUNT)
            .map(Self)
            .find(|buf| buf.to_string() == text)
            .ok_or_else(|| format!("no buffer is named {text}"))
    }
}

impl TryFrom<String> for Buf {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// How a kernel is launched. A field that is 0 means the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kernel {
    /// The module of the function. Module 0 is never unloaded.
    #[serde(skip_serializing_if = "zero")]
    pub m: Id,
    #[serde(skip_serializing_if = "zero")]
    pub grid: u32,
    #[serde(skip_serializing_if = "zero")]
    pub block: u32,
    /// Bytes of dynamic shared memory.
    #[serde(skip_serializing_if = "zero")]
    pub shared: u32,
    /// Blocks in a cluster.
    #[serde(skip_serializing_if = "zero")]
    pub cluster: u32,
    #[serde(skip_serializing_if = "zero")]
    pub cooperative: bool,
    #[serde(skip_serializing_if = "zero")]
    pub priority: i32,
    /// Parameters as one packed buffer, not one by one.
    #[serde(skip_serializing_if = "zero")]
    pub packed: bool,
    /// May start before the kernel in front of it has ended (captures only).
    #[serde(skip_serializing_if = "zero")]
    pub early: bool,
}

/// The work of a node or of a stream. Sizes `n` and places `at` count words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Work {
    /// Writes `v` to `n` words.
    Fill {
        b: Buf,
        v: u32,
        n: u32,
        #[serde(default, skip_serializing_if = "zero")]
        at: u32,
        #[serde(default, skip_serializing_if = "zero")]
        k: Kernel,
    },
    /// `d[i] = s[i] * f`.
    Scale {
        d: Buf,
        s: Buf,
        f: u32,
        n: u32,
        #[serde(default, skip_serializing_if = "zero")]
        k: Kernel,
    },
    /// Adds to the first 8 bytes of `m` how many words of `b` are not `v`.
    Verify {
        b: Buf,
        v: u32,
        n: u32,
        m: Buf,
        #[serde(default, skip_serializing_if = "zero")]
        k: Kernel,
    },
    /// Takes `us` microseconds, then writes 1 to the first word of `b`.
    Spin {
        us: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        b: Option<Buf>,
        #[serde(default, skip_serializing_if = "zero")]
        k: Kernel,
    },
    /// Writes how many blocks its cluster has.
    Cluster {
        b: Buf,
        #[serde(default, skip_serializing_if = "zero")]
        k: Kernel,
    },
    Copy {
        d: Buf,
        s: Buf,
        n: u32,
        #[serde(default, skip_serializing_if = "zero")]
        d_at: u32,
        #[serde(default, skip_serializing_if = "zero")]
        s_at: u32,
    },
    /// `h` rows of `w` bytes.
    Copy2 {
        d: Buf,
        s: Buf,
        w: u32,
        h: u32,
        d_pitch: u32,
        s_pitch: u32,
    },
    /// `n` elements of `size` bytes.
    Set {
        b: Buf,
        v: u32,
        n: u32,
        size: u32,
        #[serde(default, skip_serializing_if = "zero")]
        at: u32,
    },
    /// `h` rows of `w` elements.
    Set2 {
        b: Buf,
        v: u32,
        size: u32,
        w: u32,
        h: u32,
        pitch: u32,
    },
    /// Allocates `n` words in the stream's order, sets them to `v`, copies them to `b` and frees them. A capture makes
    /// four nodes of this.
    Temporary {
        b: Buf,
        v: u32,
        n: u32,
    },
    /// A host function writes `v` to the log.
    Host {
        log: Buf,
        v: u32,
    },
    Empty,
    Record {
        ev: u8,
    },
    Wait {
        ev: u8,
    },
    /// A copy of that graph as it is now.
    Child {
        g: Id,
    },
}

impl Work {
    /// The number that `cuGraphNodeGetType` answers.
    pub fn kind(&self) -> u32 {
        match self {
            Self::Fill { .. } | Self::Scale { .. } | Self::Verify { .. } | Self::Spin { .. } | Self::Cluster { .. } => {
                0
            }
            Self::Copy { .. } | Self::Copy2 { .. } => 1,
            Self::Set { .. } | Self::Set2 { .. } => 2,
            Self::Host { .. } => 3,
            Self::Child { .. } => 4,
            Self::Empty => 5,
            Self::Wait { .. } => 6,
            Self::Record { .. } => 7,
            Self::Temporary { .. } => 10,
        }
    }

    pub fn kernel(&self) -> Option<&Kernel> {
        match self {
            Self::Fill { k, .. }
            | Self::Scale { k, .. }
            | Self::Verify { k, .. }
            | Self::Spin { k, .. }
            | Self::Cluster { k, .. } => Some(k),
            _ => None,
        }
    }

    pub fn kernel_mut(&mut self) -> Option<&mut Kernel> {
        match self {
            Self::Fill { k, .. }
            | Self::Scale { k, .. }
            | Self::Verify { k, .. }
            | Self::Spin { k, .. }
            | Self::Cluster { k, .. } => Some(k),
            _ => None,
        }
    }

    /// The buffers that it names, for replacing them.
    pub fn bufs_mut(&mut self) -> Vec<&mut Buf> {
        match self {
            Self::Fill { b, .. }
            | Self::Cluster { b, .. }
            | Self::Set { b, .. }
            | Self::Set2 { b, .. }
            | Self::Temporary { b, .. } => vec![b],
            Self::Scale { d, s, .. } | Self::Copy { d, s, .. } | Self::Copy2 { d, s, .. } => vec![d, s],
            Self::Verify { b, m, .. } => vec![b, m],
            Self::Spin { b, .. } => b.iter_mut().collect(),
            Self::Host { log, .. } => vec![log],
            Self::Empty | Self::Record { .. } | Self::Wait { .. } | Self::Child { .. } => Vec::new(),
        }
    }

    /// Its number that may have any value.
    pub fn value_mut(&mut self) -> Option<&mut u32> {
        match self {
            Self::Fill { v, .. }
            | Self::Verify { v, .. }
            | Self::Set { v, .. }
            | Self::Set2 { v, .. }
            | Self::Host { v, .. } => Some(v),
            Self::Scale { f, .. } => Some(f),
            Self::Spin { us, .. } => Some(us),
            _ => None,
        }
    }
}
