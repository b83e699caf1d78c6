//! Files as streams: an open file and a position. Always ready, never buffered: what a write has taken is in
//! the file.

use bytes::Bytes;
use esf_layerstack::union::File;
use rustix::io::Errno;
use wasmtime_wasi_io::async_trait;
use wasmtime_wasi_io::poll::Pollable;
use wasmtime_wasi_io::streams::{InputStream, OutputStream, StreamError, StreamResult};

use super::code::code;
use super::host::READ;
use super::types::ErrorCode;

/// Bytes that one write may hand over.
const WRITE: usize = 1 << 20;

/// Reads a file from a position on.
pub(super) struct FileInput {
    file: File,
    position: u64,
}

impl FileInput {
    pub(super) fn new(file: File, position: u64) -> Self {
        Self { file, position }
    }
}

#[async_trait]
impl Pollable for FileInput {
    async fn ready(&mut self) {}
}

#[async_trait]
impl InputStream for FileInput {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size == 0 {
            return Ok(Bytes::new());
        }
        let mut bytes = vec![0; size.min(READ)];
        let read = self.file.read_at(&mut bytes, self.position).map_err(failed)?;
        if read == 0 {
            return Err(StreamError::Closed);
        }
        bytes.truncate(read);
        self.position += read as u64;
        Ok(bytes.into())
    }
}

/// Writes a file from a position on, or at its end.
pub(super) struct FileOutput {
    file: File,
    /// None appends.
    position: Option<u64>,
    closed: bool,
}

impl FileOutput {
    pub(super) fn new(file: File, position: Option<u64>) -> Self {
        Self { file, position, closed: false }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match &mut self.position {
            None => self.file.append(bytes),
            Some(position) => {
                let written = self.file.write_at(bytes, *position)?;
                *position = position.checked_add(written as u64).ok_or(Errno::FBIG)?;
                Ok(written)
            }
        }
    }
}

#[async_trait]
impl Pollable for FileOutput {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for FileOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.check_write()?;
        let mut left = &bytes[..];
        while !left.is_empty() {
            match self.put(left).and_then(|written| if written == 0 { Err(Errno::IO) } else { Ok(written) }) {
                Ok(written) => left = &left[written..],
                Err(errno) => {
                    self.closed = true;
                    return Err(failed(errno));
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.check_write().map(drop)
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        if self.closed { Err(StreamError::Closed) } else { Ok(WRITE) }
    }
}

/// An error that a guest can ask the code of.
pub(in super::super) fn failed(errno: Errno) -> StreamError {
    StreamError::LastOperationFailed(code(errno).into())
}

/// The code of an error made by [`failed`].
pub(super) fn error_code(error: &wasmtime::Error) -> Option<ErrorCode> {
    error.downcast_ref::<ErrorCode>().copied()
}
