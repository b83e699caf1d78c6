//! `wasi:filesystem` over the attempt's union: what a guest sees of the root, and its rights there.
//!
//! A descriptor carries the right of the preopen it came from: what is opened beneath a read-only one stays
//! read only, and nothing can be linked or moved between two preopens unless both may be written. Paths are
//! resolved by the union, inside the directory they start from. Every function answers at once, on the
//! guest's own thread.

mod code;
mod host;
mod stream;

use std::sync::Arc;

use esf_layerstack::union::{self, Dir, File, Node, Union};
use wasmtime::component::{HasData, ResourceTable};

pub(super) use bindings::wasi::filesystem::{preopens, types};
use types::ErrorCode;

#[cfg(test)]
pub(super) use code::Refusal;
pub(super) use stream::failed;

/// What the standard's definitions become.
mod bindings {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "esf:wasi/filesystem",
        imports: { default: trappable },
        trappable_error_type: { "wasi:filesystem/types.error-code" => super::code::Refusal },
        require_store_data_send: true,
        with: {
            "wasi:io": wasmtime_wasi_io::bindings::wasi::io,
            "wasi:clocks": wasmtime_wasi::p2::bindings::clocks,
            "wasi:filesystem/types.descriptor": super::Descriptor,
            "wasi:filesystem/types.directory-entry-stream": super::Listing,
        },
    });
}

/// A directory that a guest is given at its start.
#[derive(Clone)]
pub(crate) struct Preopen {
    /// The directory.
    pub(crate) directory: Dir,
    /// What the guest calls it.
    pub(crate) at: String,
    /// Whether it and what is beneath may be changed.
    pub(crate) write: bool,
}

/// One guest's filesystem.
pub(super) struct Context {
    pub(super) union: Arc<Union>,
    pub(super) preopens: Vec<Preopen>,
}

/// The host's side of a call.
pub(super) struct View<'a> {
    pub(super) context: &'a mut Context,
    pub(super) table: &'a mut ResourceTable,
}

/// Tells the linker what a call works on.
pub(super) struct Filesystem;

impl HasData for Filesystem {
    type Data<'a> = View<'a>;
}

/// What a guest has opened, and its rights to it.
#[derive(Clone)]
#[expect(unreachable_pub, reason = "the generated module exports it by name")]
pub struct Descriptor {
    /// In the union.
    node: Node,
    /// Opened to be read.
    read: bool,
    /// Opened to be written: a file's bytes.
    write: bool,
    /// The right of the preopen it came from: whether it, and what is beneath it, may be changed.
    writable: bool,
}

impl Descriptor {
    fn directory(&self) -> Result<&Dir, ErrorCode> {
        match &self.node {
            Node::Dir(directory) => Ok(directory),
            Node::File(_) => Err(ErrorCode::NotDirectory),
        }
    }

    /// A directory whose names may be changed.
    fn changeable(&self) -> Result<&Dir, ErrorCode> {
        let directory = self.directory()?;
        if self.writable { Ok(directory) } else { Err(ErrorCode::ReadOnly) }
    }

    fn file(&self) -> Result<&File, ErrorCode> {
        match &self.node {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(ErrorCode::BadDescriptor),
        }
    }

    /// A file whose bytes may be changed through this descriptor.
    fn written(&self) -> Result<&File, ErrorCode> {
        let file = self.file()?;
        match (self.writable, self.write) {
            (true, true) => Ok(file),
            (true, false) => Err(ErrorCode::BadDescriptor),
            (false, _) => Err(ErrorCode::ReadOnly),
        }
    }
}

/// A listing as it was when it was asked for, and how far the guest has read.
#[expect(unreachable_pub, reason = "the generated module exports it by name")]
pub struct Listing {
    entries: Arc<union::Listing>,
    cursor: usize,
}
