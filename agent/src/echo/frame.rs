//! The message of the pod probe: a head with a length, and as many zeros. The answer repeats the
//! message, so it is never longer than the request.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, repeat, sink};

pub const HEAD: usize = 24;
/// Maximum number of zeros after a head.
pub(super) const MOST: u32 = 16 * 1024;
const MAGIC: [u8; 16] = *b"pathproof-echo/1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Distinguishes one message from another.
    pub(super) token: u32,
    /// Zeros that follow; at most [`MOST`].
    pub(super) length: u32,
}

impl Frame {
    pub(super) fn head(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..16].copy_from_slice(&MAGIC);
        head[16..20].copy_from_slice(&self.token.to_be_bytes());
        head[20..].copy_from_slice(&self.length.to_be_bytes());
        head
    }

    /// `None` if the head is not the pod probe's.
    pub(super) fn parse(head: &[u8; HEAD]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = head.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_be_bytes(bytes))
        };
        let frame = Self {
            token: number(16)?,
            length: number(20)?,
        };
        (head.starts_with(&MAGIC) && frame.length <= MOST).then_some(frame)
    }

    pub async fn write(self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.head()).await?;
        // `copy` flushes at the end.
        let zeros = &mut repeat(0).take(self.length.into());
        copy(zeros, to).await.map(drop)
    }

    /// Reads a whole frame. Anything that is not the pod probe's is an error.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head).await?;
        let frame = Self::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let length = u64::from(frame.length);
        match copy(&mut from.take(length), &mut sink()).await? {
            read if read == length => Ok(frame),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
