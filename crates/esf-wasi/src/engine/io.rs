//! `wasi:io` for guests: wasmtime-wasi's, but for two things.
//!
//! A blocking call tries at once before it becomes a future, because a file is always ready and futures cost
//! more than the read. And a full table of resources is the end of a stream, not of the guest.

use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi_io::bindings::wasi::io::streams::{
    self, Host, HostInputStream, HostOutputStream, StreamError as Told,
};
use wasmtime_wasi_io::poll::DynPollable;
use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream, StreamError, StreamResult};

/// What the standard lets a guest hand over to one blocking write.
const BLOCKING_WRITE: u64 = 4096;

/// Tells the linker that `wasi:io`'s own interfaces work on the table alone.
pub(super) struct Table;

impl HasData for Table {
    type Data<'a> = &'a mut ResourceTable;
}

/// Tells the linker what our streams work on.
pub(super) struct Streams;

impl HasData for Streams {
    type Data<'a> = View<'a>;
}

/// The table, with our way of calling what is in it.
pub(super) struct View<'a>(pub(super) &'a mut ResourceTable);

impl Host for View<'_> {
    fn convert_stream_error(&mut self, error: StreamError) -> wasmtime::Result<Told> {
        match error {
            StreamError::Closed => Ok(Told::Closed),
            StreamError::LastOperationFailed(error) => {
                Ok(self.0.push(error).map_or(Told::Closed, Told::LastOperationFailed))
            }
            StreamError::Trap(error) => Err(error),
        }
    }
}

impl HostInputStream for View<'_> {
    fn read(&mut self, stream: Resource<DynInputStream>, length: u64) -> StreamResult<Vec<u8>> {
        HostInputStream::read(self.0, stream, length)
    }

    async fn blocking_read(
        &mut self,
        stream: Resource<DynInputStream>,
        length: u64,
    ) -> StreamResult<Vec<u8>> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let stream = self.0.get_mut(&stream)?;
        if length > 0 {
            let bytes = stream.read(length)?;
            if !bytes.is_empty() {
                return Ok(bytes.into());
            }
        }
        Ok(stream.blocking_read(length).await?.into())
    }

    fn skip(&mut self, stream: Resource<DynInputStream>, length: u64) -> StreamResult<u64> {
        HostInputStream::skip(self.0, stream, length)
    }

    async fn blocking_skip(&mut self, stream: Resource<DynInputStream>, length: u64) -> StreamResult<u64> {
        HostInputStream::blocking_skip(self.0, stream, length).await
    }

    fn subscribe(&mut self, stream: Resource<DynInputStream>) -> wasmtime::Result<Resource<DynPollable>> {
        HostInputStream::subscribe(self.0, stream)
    }

    async fn drop(&mut self, stream: Resource<DynInputStream>) -> wasmtime::Result<()> {
        HostInputStream::drop(self.0, stream).await
    }
}

impl HostOutputStream for View<'_> {
    fn check_write(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<u64> {
        HostOutputStream::check_write(self.0, stream)
    }

    fn write(&mut self, stream: Resource<DynOutputStream>, bytes: Vec<u8>) -> StreamResult<()> {
        HostOutputStream::write(self.0, stream, bytes)
    }

    async fn blocking_write_and_flush(
        &mut self,
        stream: Resource<DynOutputStream>,
        bytes: Vec<u8>,
    ) -> StreamResult<()> {
        if bytes.len() as u64 > BLOCKING_WRITE {
            return Err(StreamError::trap("expected at most 4096 bytes for a blocking write, found more"));
        }
        let stream = self.0.get_mut(&stream)?;
        if stream.check_write()? < bytes.len() {
            return stream.blocking_write_and_flush(bytes.into()).await;
        }
        stream.write(bytes.into())?;
        stream.flush()?;
        if stream.check_write()? == 0 {
            stream.write_ready().await?;
        }
        Ok(())
    }

    async fn blocking_write_zeroes_and_flush(
        &mut self,
        stream: Resource<DynOutputStream>,
        length: u64,
    ) -> StreamResult<()> {
        HostOutputStream::blocking_write_zeroes_and_flush(self.0, stream, length).await
    }

    fn subscribe(&mut self, stream: Resource<DynOutputStream>) -> wasmtime::Result<Resource<DynPollable>> {
        HostOutputStream::subscribe(self.0, stream)
    }

    fn write_zeroes(&mut self, stream: Resource<DynOutputStream>, length: u64) -> StreamResult<()> {
        HostOutputStream::write_zeroes(self.0, stream, length)
    }

    fn flush(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<()> {
        HostOutputStream::flush(self.0, stream)
    }

    async fn blocking_flush(&mut self, stream: Resource<DynOutputStream>) -> StreamResult<()> {
        HostOutputStream::blocking_flush(self.0, stream).await
    }

    fn splice(
        &mut self,
        to: Resource<DynOutputStream>,
        from: Resource<DynInputStream>,
        length: u64,
    ) -> StreamResult<u64> {
        HostOutputStream::splice(self.0, to, from, length)
    }

    async fn blocking_splice(
        &mut self,
        to: Resource<DynOutputStream>,
        from: Resource<DynInputStream>,
        length: u64,
    ) -> StreamResult<u64> {
        HostOutputStream::blocking_splice(self.0, to, from, length).await
    }

    async fn drop(&mut self, stream: Resource<DynOutputStream>) -> wasmtime::Result<()> {
        HostOutputStream::drop(self.0, stream).await
    }
}

/// The interface, for the linker.
pub(super) use streams::add_to_linker;
