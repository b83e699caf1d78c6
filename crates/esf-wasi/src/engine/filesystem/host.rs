//! The functions of `wasi:filesystem`, each a few lines over the union's.

use esf_layerstack::union::{Dir, Kind, Node, Open, SetTime, Stat};
use rustix::fs::Timespec;
use wasmtime::component::Resource;
use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream};

use super::code::{Answer, Refusal};
use super::stream::{FileInput, FileOutput, error_code};
use super::types::{
    Advice, Datetime, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, ErrorCode, Filesize,
    MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use super::{Descriptor, Listing, View, preopens, types};

/// Bytes that one call reads at most; the guest asks again for more.
pub(super) const READ: usize = 1 << 20;

/// What stands in a listing for the parts of a name that UTF-8 cannot say.
const STAND_IN: char = char::REPLACEMENT_CHARACTER;

const NANOSECONDS: u32 = 1_000_000_000;

impl View<'_> {
    fn get(&self, descriptor: &Resource<Descriptor>) -> Answer<&Descriptor> {
        Ok(self.table.get(descriptor)?)
    }

    /// A file's stream is the host's own object; the table may be full.
    fn output(&mut self, stream: FileOutput) -> Answer<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(stream);
        Ok(self.table.push(stream)?)
    }
}

impl preopens::Host for View<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let mut given = Vec::new();
        for preopen in &self.context.preopens {
            let node = Node::Dir(preopen.directory.clone());
            let descriptor = Descriptor { node, read: true, write: false, writable: preopen.write };
            given.push((self.table.push(descriptor)?, preopen.at.clone()));
        }
        Ok(given)
    }
}

impl types::Host for View<'_> {
    fn convert_error_code(&mut self, refusal: Refusal) -> wasmtime::Result<ErrorCode> {
        match refusal {
            Refusal::Code(code) => Ok(code),
            Refusal::Trap(error) => Err(error),
        }
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<types::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(error_code(self.table.get(&error)?))
    }
}

impl types::HostDescriptor for View<'_> {
    fn read_via_stream(
        &mut self,
        descriptor: Resource<Descriptor>,
        offset: Filesize,
    ) -> Answer<Resource<DynInputStream>> {
        let descriptor = self.get(&descriptor)?;
        let Node::File(file) = &descriptor.node else { return Err(ErrorCode::IsDirectory.into()) };
        if !descriptor.read {
            return Err(ErrorCode::BadDescriptor.into());
        }
        let stream: DynInputStream = Box::new(FileInput::new(file.clone(), offset));
        Ok(self.table.push(stream)?)
    }

    fn write_via_stream(
        &mut self,
        descriptor: Resource<Descriptor>,
        offset: Filesize,
    ) -> Answer<Resource<DynOutputStream>> {
        let file = self.get(&descriptor)?.written()?.clone();
        self.output(FileOutput::new(file, Some(offset)))
    }

    fn append_via_stream(&mut self, descriptor: Resource<Descriptor>) -> Answer<Resource<DynOutputStream>> {
        let file = self.get(&descriptor)?.written()?.clone();
        self.output(FileOutput::new(file, None))
    }

    fn advise(
        &mut self,
        descriptor: Resource<Descriptor>,
        _: Filesize,
        _: Filesize,
        _: Advice,
    ) -> Answer<()> {
        self.get(&descriptor)?.file()?;
        Ok(())
    }

    fn sync_data(&mut self, descriptor: Resource<Descriptor>) -> Answer<()> {
        sync(self.get(&descriptor)?, true)
    }

    fn sync(&mut self, descriptor: Resource<Descriptor>) -> Answer<()> {
        sync(self.get(&descriptor)?, false)
    }

    fn get_flags(&mut self, descriptor: Resource<Descriptor>) -> Answer<DescriptorFlags> {
        let descriptor = self.get(&descriptor)?;
        let read = if descriptor.read { DescriptorFlags::READ } else { DescriptorFlags::empty() };
        let changes = match &descriptor.node {
            Node::Dir(_) if descriptor.writable => DescriptorFlags::MUTATE_DIRECTORY,
            Node::File(_) if descriptor.write => DescriptorFlags::WRITE,
            Node::Dir(_) | Node::File(_) => DescriptorFlags::empty(),
        };
        Ok(read | changes)
    }

    fn get_type(&mut self, descriptor: Resource<Descriptor>) -> Answer<DescriptorType> {
        Ok(match &self.get(&descriptor)?.node {
            Node::Dir(_) => DescriptorType::Directory,
            Node::File(_) => DescriptorType::RegularFile,
        })
    }

    fn set_size(&mut self, descriptor: Resource<Descriptor>, size: Filesize) -> Answer<()> {
        Ok(self.get(&descriptor)?.written()?.set_size(size)?)
    }

    fn set_times(
        &mut self,
        descriptor: Resource<Descriptor>,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> Answer<()> {
        let (accessed, modified) = (time(accessed)?, time(modified)?);
        let descriptor = self.get(&descriptor)?;
        if !descriptor.writable {
            return Err(ErrorCode::ReadOnly.into());
        }
        Ok(self.context.union.set_times(&descriptor.node, accessed, modified)?)
    }

    fn read(
        &mut self,
        descriptor: Resource<Descriptor>,
        length: Filesize,
        offset: Filesize,
    ) -> Answer<(Vec<u8>, bool)> {
        let descriptor = self.get(&descriptor)?;
        let file = descriptor.file()?;
        if !descriptor.read {
            return Err(ErrorCode::BadDescriptor.into());
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(READ).min(READ)];
        let read = file.read_at(&mut bytes, offset)?;
        let end = read == 0 && !bytes.is_empty();
        bytes.truncate(read);
        Ok((bytes, end))
    }

    fn write(
        &mut self,
        descriptor: Resource<Descriptor>,
        bytes: Vec<u8>,
        offset: Filesize,
    ) -> Answer<Filesize> {
        Ok(self.get(&descriptor)?.written()?.write_at(&bytes, offset)? as Filesize)
    }

    fn read_directory(&mut self, descriptor: Resource<Descriptor>) -> Answer<Resource<Listing>> {
        let directory = self.get(&descriptor)?.directory()?;
        let entries = self.context.union.list(directory)?;
        Ok(self.table.push(Listing { entries, cursor: 0 })?)
    }

    fn create_directory_at(&mut self, descriptor: Resource<Descriptor>, path: String) -> Answer<()> {
        let directory = self.get(&descriptor)?.changeable()?;
        said(&path, self.context.union.create_directory(directory, path.as_bytes()))
    }

    fn stat(&mut self, descriptor: Resource<Descriptor>) -> Answer<DescriptorStat> {
        let descriptor = self.get(&descriptor)?;
        Ok(describe(&self.context.union.stat(&descriptor.node)?))
    }

    fn stat_at(
        &mut self,
        descriptor: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
    ) -> Answer<DescriptorStat> {
        let directory = self.get(&descriptor)?.directory()?;
        Ok(describe(&self.stat_path(directory, flags, &path)?))
    }

    fn set_times_at(
        &mut self,
        descriptor: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> Answer<()> {
        let (accessed, modified) = (time(accessed)?, time(modified)?);
        let directory = self.get(&descriptor)?.changeable()?;
        let union = &self.context.union;
        said(&path, union.set_times_at(directory, path.as_bytes(), follows(flags), accessed, modified))
    }

    fn link_at(
        &mut self,
        descriptor: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
        new: Resource<Descriptor>,
        new_path: String,
    ) -> Answer<()> {
        let (from, to) = self.both(&descriptor, &new)?;
        let union = &self.context.union;
        said(&path, union.link(from, path.as_bytes(), follows(flags), to, new_path.as_bytes()))
    }

    fn open_at(
        &mut self,
        descriptor: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
        open: OpenFlags,
        wanted: DescriptorFlags,
    ) -> Answer<Resource<Descriptor>> {
        let at = self.get(&descriptor)?;
        let directory = at.directory()?;
        let how = how(flags, open, wanted)?;
        if !at.writable && (how.write || how.create || wanted.contains(DescriptorFlags::MUTATE_DIRECTORY)) {
            return Err(ErrorCode::ReadOnly.into());
        }
        let node = said(&path, self.context.union.open(directory, path.as_bytes(), how))?;
        let write = wanted.contains(DescriptorFlags::WRITE);
        let opened = Descriptor { node, read: how.read, write, writable: at.writable };
        Ok(self.table.push(opened)?)
    }

    fn readlink_at(&mut self, descriptor: Resource<Descriptor>, path: String) -> Answer<String> {
        let directory = self.get(&descriptor)?.directory()?;
        let target = said(&path, self.context.union.read_link(directory, path.as_bytes()))?;
        String::from_utf8(target).map_err(|_| ErrorCode::IllegalByteSequence.into())
    }

    fn remove_directory_at(&mut self, descriptor: Resource<Descriptor>, path: String) -> Answer<()> {
        let directory = self.get(&descriptor)?.changeable()?;
        said(&path, self.context.union.remove_directory(directory, path.as_bytes()))
    }

    fn rename_at(
        &mut self,
        descriptor: Resource<Descriptor>,
        path: String,
        new: Resource<Descriptor>,
        new_path: String,
    ) -> Answer<()> {
        let (from, to) = self.both(&descriptor, &new)?;
        said(&path, self.context.union.rename(from, path.as_bytes(), to, new_path.as_bytes()))
    }

    fn symlink_at(&mut self, descriptor: Resource<Descriptor>, target: String, path: String) -> Answer<()> {
        let directory = self.get(&descriptor)?.changeable()?;
        if target.starts_with('/') {
            // The standard's own rule. Such links in a root are shown and led nowhere.
            return Err(ErrorCode::NotPermitted.into());
        }
        said(&path, self.context.union.symlink(target.as_bytes(), directory, path.as_bytes()))
    }

    fn unlink_file_at(&mut self, descriptor: Resource<Descriptor>, path: String) -> Answer<()> {
        let directory = self.get(&descriptor)?.changeable()?;
        said(&path, self.context.union.unlink(directory, path.as_bytes()))
    }

    fn is_same_object(
        &mut self,
        descriptor: Resource<Descriptor>,
        other: Resource<Descriptor>,
    ) -> wasmtime::Result<bool> {
        let (one, other) = (self.table.get(&descriptor)?, self.table.get(&other)?);
        let identity =
            |descriptor: &Descriptor| self.context.union.stat(&descriptor.node).map(|stat| stat.identity);
        Ok(matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other))
    }

    fn metadata_hash(&mut self, descriptor: Resource<Descriptor>) -> Answer<MetadataHashValue> {
        let descriptor = self.get(&descriptor)?;
        Ok(hash(&self.context.union.stat(&descriptor.node)?))
    }

    fn metadata_hash_at(
        &mut self,
        descriptor: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
    ) -> Answer<MetadataHashValue> {
        let directory = self.get(&descriptor)?.directory()?;
        Ok(hash(&self.stat_path(directory, flags, &path)?))
    }

    fn drop(&mut self, descriptor: Resource<Descriptor>) -> wasmtime::Result<()> {
        self.table.delete(descriptor)?;
        Ok(())
    }
}

impl types::HostDirectoryEntryStream for View<'_> {
    fn read_directory_entry(&mut self, listing: Resource<Listing>) -> Answer<Option<DirectoryEntry>> {
        let listing = self.table.get_mut(&listing)?;
        let Some((name, kind, next)) = listing.entries.next(listing.cursor) else { return Ok(None) };
        let name = String::from_utf8_lossy(name).into_owned();
        listing.cursor = next;
        Ok(Some(DirectoryEntry { type_: kind_of(kind), name }))
    }

    fn drop(&mut self, listing: Resource<Listing>) -> wasmtime::Result<()> {
        self.table.delete(listing)?;
        Ok(())
    }
}

impl View<'_> {
    fn stat_path(&self, directory: &Dir, flags: PathFlags, path: &str) -> Answer<Stat> {
        said(path, self.context.union.stat_at(directory, path.as_bytes(), follows(flags)))
    }

    /// Two directories between which a name is made or moved. A link out of a read-only preopen would be a
    /// way to write what is in it, so both must be writable.
    fn both(&self, from: &Resource<Descriptor>, to: &Resource<Descriptor>) -> Answer<(&Dir, &Dir)> {
        let (from, to) = (self.get(from)?, self.get(to)?);
        let directories = (from.directory()?, to.directory()?);
        if from.writable && to.writable { Ok(directories) } else { Err(ErrorCode::NotPermitted.into()) }
    }
}

/// The union's answer. What is not found under a name with a stand-in cannot be said in UTF-8 at all.
fn said<T>(path: &str, answer: esf_layerstack::union::Result<T>) -> Answer<T> {
    match answer {
        Err(rustix::io::Errno::NOENT) if path.contains(STAND_IN) => {
            Err(ErrorCode::IllegalByteSequence.into())
        }
        answer => Ok(answer?),
    }
}

/// What is durable at the seal is the seal's affair; until then a guest's sync is the disk's.
fn sync(descriptor: &Descriptor, data_only: bool) -> Answer<()> {
    match &descriptor.node {
        Node::File(file) => Ok(file.sync(data_only)?),
        Node::Dir(_) => Ok(()),
    }
}

fn follows(flags: PathFlags) -> bool {
    flags.contains(PathFlags::SYMLINK_FOLLOW)
}

fn how(flags: PathFlags, open: OpenFlags, wanted: DescriptorFlags) -> Answer<Open> {
    let each_write = DescriptorFlags::FILE_INTEGRITY_SYNC
        | DescriptorFlags::DATA_INTEGRITY_SYNC
        | DescriptorFlags::REQUESTED_WRITE_SYNC;
    if wanted.intersects(each_write) {
        return Err(ErrorCode::Unsupported.into());
    }
    let (create, truncate) = (open.contains(OpenFlags::CREATE), open.contains(OpenFlags::TRUNCATE));
    let write = wanted.contains(DescriptorFlags::WRITE);
    Ok(Open {
        read: wanted.contains(DescriptorFlags::READ) || !write,
        write: write || truncate,
        create,
        exclusive: open.contains(OpenFlags::EXCLUSIVE),
        truncate,
        directory: open.contains(OpenFlags::DIRECTORY),
        follow: follows(flags),
    })
}

fn describe(stat: &Stat) -> DescriptorStat {
    DescriptorStat {
        type_: kind_of(stat.kind),
        link_count: stat.links,
        size: stat.size,
        data_access_timestamp: datetime(stat.atime),
        data_modification_timestamp: datetime(stat.mtime),
        status_change_timestamp: datetime(stat.ctime),
    }
}

fn kind_of(kind: Kind) -> DescriptorType {
    match kind {
        Kind::Directory => DescriptorType::Directory,
        Kind::File => DescriptorType::RegularFile,
        Kind::Symlink => DescriptorType::SymbolicLink,
        Kind::Fifo => DescriptorType::Fifo,
        Kind::Socket => DescriptorType::Socket,
        Kind::Device => DescriptorType::CharacterDevice,
    }
}

/// Nothing for a time before 1970, which the standard cannot say.
fn datetime(time: Timespec) -> Option<Datetime> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(Datetime { seconds, nanoseconds: u32::try_from(time.tv_nsec).ok()? })
}

fn time(time: NewTimestamp) -> Answer<SetTime> {
    Ok(match time {
        NewTimestamp::NoChange => SetTime::Keep,
        NewTimestamp::Now => SetTime::Now,
        NewTimestamp::Timestamp(at) if at.nanoseconds >= NANOSECONDS => return Err(ErrorCode::Invalid.into()),
        NewTimestamp::Timestamp(at) => SetTime::At(Timespec {
            tv_sec: i64::try_from(at.seconds).map_err(|_| ErrorCode::Overflow)?,
            tv_nsec: at.nanoseconds.into(),
        }),
    })
}

/// Which object it is, and nothing of its contents: the preview 1 adapter makes an inode number of it. Mixed
/// so that no number of this machine is shown.
fn hash(stat: &Stat) -> MetadataHashValue {
    let (device, inode) = stat.identity;
    MetadataHashValue { lower: mix(inode ^ mix(device)), upper: mix(device.wrapping_add(mix(inode))) }
}

/// A fixed permutation of 64 bits in which each bit of the input changes half of the output.
fn mix(mut value: u64) -> u64 {
    for _ in 0..2 {
        value ^= value >> 32;
        value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    value ^ value >> 29
}
