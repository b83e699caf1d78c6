//! Loads an artefact from an open descriptor by mapping it, so that attempts share its pages and no path is
//! opened.
//!
//! The only unsafe code of this crate. Machine code cannot be checked, only trusted: what makes it sound is
//! that the file comes from the worker's cache, which held its digest against its bytes and whose directory
//! no guest can write.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
use wasmtime::component::Component;
use wasmtime::{Config, CustomCodeMemory, Engine};

/// A component and the mapping that its code lies in. Fields are dropped in this order.
pub(super) struct Loaded {
    component: Component,
    /// What the code is in: outlives every store that runs it, because each holds its `Loaded`.
    _memory: Mapping,
}

impl Loaded {
    /// The component. Whoever clones it, or instantiates it, keeps the `Loaded` for as long.
    pub(super) fn component(&self) -> &Component {
        &self.component
    }
}

/// Lets an engine load what [`load`] maps: the mapping is ours, so we make its code executable.
pub(super) fn configure(config: &mut Config) {
    config.with_custom_code_memory(Some(Arc::new(Pages)));
}

/// Maps an artefact that the worker's cache has verified.
///
/// # Errors
///
/// When it cannot be mapped, or another engine made it.
pub(super) fn load(engine: &Engine, file: &OwnedFd) -> wasmtime::Result<Loaded> {
    let memory = Mapping::new(file)?;
    // SAFETY: the bytes were made by `Engine::precompile_component` and are what they were then: the worker
    // verified their digest, the descriptor is read only, and the file's one name is in a directory of the
    // worker's user, who replaces such files and never writes them. The mapping is page aligned, and lives as
    // long as the component because `Loaded` owns both. The engine itself refuses what an engine of other
    // settings made.
    let component = unsafe { Component::deserialize_raw(engine, memory.bytes) }?;
    Ok(Loaded { component, _memory: memory })
}

/// A private, read-only mapping of a whole file.
struct Mapping {
    bytes: NonNull<[u8]>,
}

// SAFETY: the mapping belongs to no thread, and nothing is ever written through it.
unsafe impl Send for Mapping {}
// SAFETY: as above; reading it from several threads is reading.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd) -> io::Result<Self> {
        let length = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if length == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "expected an artefact, found an empty file",
            ));
        }
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { bytes: NonNull::slice_from_raw_parts(start, length) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the component that pointed into it was dropped before (see
        // `Loaded`).
        let unmapped = unsafe { munmap(self.bytes.as_ptr().cast(), self.bytes.len()) };
        debug_assert!(unmapped.is_ok(), "the mapping was made whole");
    }
}

/// Makes the code in a [`Mapping`] executable. It is never writable before or after.
struct Pages;

impl CustomCodeMemory for Pages {
    fn required_alignment(&self) -> usize {
        rustix::param::page_size()
    }

    fn publish_executable(&self, start: *const u8, length: usize) -> wasmtime::Result<()> {
        // SAFETY: the engine hands in the text section of a `Mapping`, page aligned, which `Loaded` keeps;
        // other protections of it are asked for by nobody.
        unsafe { mprotect(start.cast_mut().cast(), length, MprotectFlags::READ | MprotectFlags::EXEC) }?;
        Ok(())
    }

    fn unpublish_executable(&self, start: *const u8, length: usize) -> wasmtime::Result<()> {
        // SAFETY: as above; no code runs from it any more.
        unsafe { mprotect(start.cast_mut().cast(), length, MprotectFlags::READ) }?;
        Ok(())
    }
}
