//! `wasi:filesystem` called as a guest would: rights, links, names, streams, and what lands in the upper.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::super::filesystem::types::{
    Datetime, DescriptorFlags, DescriptorType, ErrorCode, HostDescriptor, HostDirectoryEntryStream,
    NewTimestamp, OpenFlags, PathFlags,
};
use super::super::filesystem::{Context, Descriptor, Refusal, View, preopens};
use super::*;
use wasmtime::component::{Resource, ResourceTable};

type Handle = u32;

/// One guest's filesystem without a guest.
struct Files {
    context: Context,
    table: ResourceTable,
    /// The preopens' handles, in their order.
    given: Vec<Handle>,
}

/// A handle as it is lent to a call.
fn lent<T: 'static>(handle: Handle) -> Resource<T> {
    Resource::new_borrow(handle)
}

/// The code of a refusal.
fn code<T>(answer: Result<T, Refusal>) -> Result<T, ErrorCode> {
    answer.map_err(|refusal| match refusal {
        Refusal::Code(code) => code,
        Refusal::Trap(error) => panic!("a trap: {error:?}"),
    })
}

const READ: DescriptorFlags = DescriptorFlags::READ;
const WRITE: DescriptorFlags = DescriptorFlags::WRITE;
const FOLLOW: PathFlags = PathFlags::SYMLINK_FOLLOW;
const AT: NewTimestamp = NewTimestamp::Timestamp(Datetime { seconds: 1_000_000_000, nanoseconds: 5 });

impl Files {
    fn new(bench: &Bench) -> Self {
        let spec = bench.spec(null(), String::new());
        let context = Context { union: spec.union, preopens: spec.preopens };
        let mut files = Self { context, table: ResourceTable::new(), given: Vec::new() };
        let given = preopens::Host::get_directories(&mut files.view()).unwrap();
        files.given = given.iter().map(|(descriptor, _)| descriptor.rep()).collect();
        files
    }

    fn view(&mut self) -> View<'_> {
        View { context: &mut self.context, table: &mut self.table }
    }

    fn open(
        &mut self,
        at: Handle,
        path: &str,
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> Result<Handle, ErrorCode> {
        code(self.view().open_at(lent(at), FOLLOW, path.to_owned(), open, flags)).map(|opened| opened.rep())
    }

    fn read(&mut self, at: Handle, path: &str) -> Result<Vec<u8>, ErrorCode> {
        let file = self.open(at, path, OpenFlags::empty(), READ)?;
        code(self.view().read(lent(file), 1 << 20, 0)).map(|(bytes, _)| bytes)
    }

    fn names(&mut self, directory: Handle) -> Vec<String> {
        let listing = code(self.view().read_directory(lent(directory))).unwrap().rep();
        let mut names = Vec::new();
        while let Some(entry) = code(self.view().read_directory_entry(lent(listing))).unwrap() {
            names.push(entry.name);
        }
        names.sort();
        names
    }
}

fn tree(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "lower").unwrap();
    fs::write(root.join("g"), "outside").unwrap();
}

/// What each call that changes something says, by the rights of the preopen: the first list is what a
/// writable one allows, and a read-only one refuses each with the code in the second place.
#[test]
fn nothing_changes_beneath_a_read_only_preopen() {
    type Change = fn(&mut Files, Handle) -> Result<(), ErrorCode>;
    let changes: &[(&str, ErrorCode, Change)] = &[
        ("create", ErrorCode::ReadOnly, |files, at| files.open(at, "new", OpenFlags::CREATE, READ).map(drop)),
        ("open to write", ErrorCode::ReadOnly, |files, at| {
            files.open(at, "f", OpenFlags::empty(), WRITE).map(drop)
        }),
        ("truncate", ErrorCode::ReadOnly, |files, at| {
            files.open(at, "f", OpenFlags::TRUNCATE, READ).map(drop)
        }),
        ("open to mutate", ErrorCode::ReadOnly, |files, at| {
            files.open(at, ".", OpenFlags::DIRECTORY, READ | DescriptorFlags::MUTATE_DIRECTORY).map(drop)
        }),
        ("set times by name", ErrorCode::ReadOnly, |files, at| {
            code(files.view().set_times_at(lent(at), FOLLOW, "f".to_owned(), AT, AT))
        }),
        ("set times of a file", ErrorCode::ReadOnly, |files, at| {
            let file = files.open(at, "f", OpenFlags::empty(), READ)?;
            code(files.view().set_times(lent(file), AT, AT))
        }),
        ("set times of the directory", ErrorCode::ReadOnly, |files, at| {
            code(files.view().set_times(lent(at), AT, AT))
        }),
        ("make a directory", ErrorCode::ReadOnly, |files, at| {
            code(files.view().create_directory_at(lent(at), "made".to_owned()))
        }),
        ("make a symbolic link", ErrorCode::ReadOnly, |files, at| {
            code(files.view().symlink_at(lent(at), "f".to_owned(), "soft".to_owned()))
        }),
        ("make a hard link", ErrorCode::NotPermitted, |files, at| {
            code(files.view().link_at(
                lent(at),
                PathFlags::empty(),
                "f".to_owned(),
                lent(at),
                "hard".to_owned(),
            ))
        }),
        ("rename", ErrorCode::NotPermitted, |files, at| {
            code(files.view().rename_at(lent(at), "f".to_owned(), lent(at), "moved".to_owned()))
        }),
        ("unlink", ErrorCode::ReadOnly, |files, at| {
            code(files.view().unlink_file_at(lent(at), "moved".to_owned()))
        }),
        ("remove a directory", ErrorCode::ReadOnly, |files, at| {
            code(files.view().remove_directory_at(lent(at), "made".to_owned()))
        }),
    ];
    let mut bench = Bench::with(tree);
    bench.preopens = vec![("d", "/ro", false), ("", "/rw", true)];
    let mut files = Files::new(&bench);
    let (read_only, root) = (files.given[0], files.given[1]);
    // A directory opened beneath a read-only one is as read only.
    let again = files.open(read_only, ".", OpenFlags::DIRECTORY, READ).unwrap();
    for (what, refusal, change) in changes {
        for at in [read_only, again] {
            assert_eq!(change(&mut files, at), Err(*refusal), "{what}");
        }
    }
    assert_eq!(fs::read_dir(bench.upper()).unwrap().count(), 0, "a refusal has no effect");
    let writable = files.open(root, "d", OpenFlags::DIRECTORY, READ).unwrap();
    for (what, _, change) in changes {
        assert_eq!(change(&mut files, writable), Ok(()), "{what}");
    }
    assert_eq!(files.read(read_only, "new").unwrap(), b"", "both see one tree");
}

/// Security: neither a link nor a move may carry a file from where it may not be written to where it may, or
/// back.
#[test]
fn nothing_crosses_between_preopens_of_different_rights() {
    let mut bench = Bench::with(tree);
    bench.preopens = vec![("d", "/ro", false), ("", "/rw", true)];
    let mut files = Files::new(&bench);
    let (read_only, writable) = (files.given[0], files.given[1]);
    for (from, path, to) in [(read_only, "f", writable), (writable, "g", read_only)] {
        let link =
            files.view().link_at(lent(from), PathFlags::empty(), path.to_owned(), lent(to), "x".to_owned());
        assert_eq!(code(link), Err(ErrorCode::NotPermitted));
        let rename = files.view().rename_at(lent(from), path.to_owned(), lent(to), "x".to_owned());
        assert_eq!(code(rename), Err(ErrorCode::NotPermitted));
    }
    assert_eq!(fs::read_dir(bench.upper()).unwrap().count(), 0);
}

#[test]
fn a_file_opened_to_read_is_not_written_through_that_descriptor() {
    let bench = Bench::with(tree);
    let mut files = Files::new(&bench);
    let root = files.given[0];
    for open in [OpenFlags::empty(), OpenFlags::CREATE] {
        let file = files.open(root, "d/f", open, READ).unwrap();
        assert_eq!(code(files.view().write(lent(file), b"x".to_vec(), 0)), Err(ErrorCode::BadDescriptor));
        assert_eq!(code(files.view().set_size(lent(file), 0)), Err(ErrorCode::BadDescriptor));
        assert_eq!(
            code(files.view().write_via_stream(lent(file), 0)).map(drop),
            Err(ErrorCode::BadDescriptor)
        );
        assert_eq!(code(files.view().append_via_stream(lent(file))).map(drop), Err(ErrorCode::BadDescriptor));
        assert_eq!(code(files.view().get_flags(lent(file))), Ok(READ));
    }
    // Truncated by the open, as its preopen allows; the descriptor itself still cannot write.
    let file = files.open(root, "d/f", OpenFlags::TRUNCATE, READ).unwrap();
    assert_eq!(code(files.view().write(lent(file), b"x".to_vec(), 0)), Err(ErrorCode::BadDescriptor));
    assert_eq!(files.read(root, "d/f").unwrap(), b"");
    let file = files.open(root, "d/f", OpenFlags::empty(), WRITE).unwrap();
    assert_eq!(code(files.view().read(lent(file), 1, 0)).map(drop), Err(ErrorCode::BadDescriptor));
    assert_eq!(code(files.view().read_via_stream(lent(file), 0)).map(drop), Err(ErrorCode::BadDescriptor));
    assert_eq!(code(files.view().get_flags(lent(file))), Ok(WRITE));
}

#[test]
fn files_are_read_written_and_changed() {
    let bench = Bench::with(tree);
    let mut files = Files::new(&bench);
    let root = files.given[0];
    let file = files.open(root, "d/f", OpenFlags::empty(), READ | WRITE).unwrap();
    assert_eq!(code(files.view().write(lent(file), b"UP".to_vec(), 0)), Ok(2));
    assert_eq!(code(files.view().read(lent(file), 3, 0)), Ok((b"UPw".to_vec(), false)));
    assert_eq!(code(files.view().read(lent(file), 3, 5)), Ok((Vec::new(), true)));
    assert_eq!(code(files.view().read(lent(file), u64::MAX, u64::MAX)), Ok((Vec::new(), true)));
    code(files.view().set_size(lent(file), 3)).unwrap();
    code(files.view().set_times(lent(file), NewTimestamp::NoChange, AT)).unwrap();
    let stat = code(files.view().stat(lent(file))).unwrap();
    assert_eq!((stat.size, stat.type_), (3, DescriptorType::RegularFile));
    assert_eq!(
        stat.data_modification_timestamp.map(|time| (time.seconds, time.nanoseconds)),
        Some((1_000_000_000, 5))
    );
    for handle in [file, root] {
        assert_eq!(code(files.view().sync(lent(handle))), Ok(()));
        assert_eq!(code(files.view().sync_data(lent(handle))), Ok(()));
    }
    let on_disk = fs::metadata(bench.upper().join("d/f")).unwrap();
    assert_eq!((on_disk.len(), on_disk.mtime(), on_disk.mtime_nsec()), (3, 1_000_000_000, 5));
    assert_eq!(fs::read(bench.upper().join("d/f")).unwrap(), b"UPw");
    let bad = NewTimestamp::Timestamp(Datetime { seconds: 0, nanoseconds: 1_000_000_000 });
    assert_eq!(code(files.view().set_times(lent(file), bad, AT)), Err(ErrorCode::Invalid));
    let far = NewTimestamp::Timestamp(Datetime { seconds: u64::MAX, nanoseconds: 0 });
    assert_eq!(code(files.view().set_times(lent(file), far, AT)), Err(ErrorCode::Overflow));
}

#[test]
fn what_is_a_directory_and_what_is_not_is_told_apart() {
    let bench = Bench::with(tree);
    let mut files = Files::new(&bench);
    let root = files.given[0];
    let file = files.open(root, "g", OpenFlags::empty(), READ).unwrap();
    assert_eq!(files.open(file, "x", OpenFlags::empty(), READ), Err(ErrorCode::NotDirectory));
    assert_eq!(files.open(root, "g", OpenFlags::DIRECTORY, READ), Err(ErrorCode::NotDirectory));
    assert_eq!(files.open(root, "g/", OpenFlags::empty(), READ), Err(ErrorCode::NotDirectory));
    assert_eq!(files.open(root, "d", OpenFlags::empty(), WRITE), Err(ErrorCode::IsDirectory));
    assert_eq!(
        files.open(root, "d", OpenFlags::DIRECTORY | OpenFlags::CREATE, READ),
        Err(ErrorCode::Invalid)
    );
    assert_eq!(code(files.view().read_directory(lent(file))).map(drop), Err(ErrorCode::NotDirectory));
    assert_eq!(code(files.view().read(lent(root), 1, 0)).map(drop), Err(ErrorCode::BadDescriptor));
    assert_eq!(code(files.view().read_via_stream(lent(root), 0)).map(drop), Err(ErrorCode::IsDirectory));
    assert_eq!(code(files.view().get_type(lent(root))), Ok(DescriptorType::Directory));
    assert_eq!(code(files.view().get_type(lent(file))), Ok(DescriptorType::RegularFile));
    assert_eq!(code(files.view().get_flags(lent(root))), Ok(READ | DescriptorFlags::MUTATE_DIRECTORY));
    assert_eq!(files.open(root, "g", OpenFlags::CREATE | OpenFlags::EXCLUSIVE, WRITE), Err(ErrorCode::Exist));
    assert_eq!(
        files.open(root, "g", OpenFlags::empty(), WRITE | DescriptorFlags::FILE_INTEGRITY_SYNC),
        Err(ErrorCode::Unsupported)
    );
}

/// Security: whatever the links say, a path stays inside the preopen it starts from, trailing slashes
/// included.
#[test]
fn paths_stay_inside_their_preopen() {
    let mut bench = Bench::with(|root| {
        tree(root);
        for (target, name) in [
            ("..", "up"),
            ("../g", "file"),
            ("../..", "upper"),
            ("/", "absolute"),
            ("/g", "absolute-file"),
            ("loop", "loop"),
            ("gone", "dangling"),
            ("f", "fine"),
        ] {
            std::os::unix::fs::symlink(target, root.join("d").join(name)).unwrap();
        }
    });
    bench.preopens = vec![("d", "/", true)];
    let mut files = Files::new(&bench);
    let at = files.given[0];
    for path in [
        "../g",
        "/g",
        "up/g",
        "up/",
        "up/.",
        "up//g",
        "file",
        "file/",
        "upper/",
        "absolute/g",
        "absolute/",
        "absolute-file",
        "..",
        "../",
        "../.",
    ] {
        for open in [OpenFlags::empty(), OpenFlags::CREATE] {
            let refused = files.open(at, path, open, READ);
            assert!(
                matches!(
                    refused,
                    Err(ErrorCode::NotPermitted | ErrorCode::NotDirectory | ErrorCode::IsDirectory)
                ),
                "{path}: {refused:?}"
            );
        }
        assert!(code(files.view().stat_at(lent(at), FOLLOW, path.to_owned())).is_err(), "{path}");
    }
    assert_eq!(files.open(at, "loop", OpenFlags::empty(), READ), Err(ErrorCode::Loop));
    assert_eq!(files.open(at, "dangling", OpenFlags::empty(), READ), Err(ErrorCode::NoEntry));
    assert_eq!(files.read(at, "fine").unwrap(), b"lower");
    let closed =
        files.view().open_at(lent(at), PathFlags::empty(), "fine".to_owned(), OpenFlags::empty(), READ);
    assert_eq!(code(closed).map(drop), Err(ErrorCode::Loop));
    // Links are shown as they are in the root, absolute ones too; new ones must not be absolute.
    let shown = |files: &mut Files, name: &str| code(files.view().readlink_at(lent(at), name.to_owned()));
    assert_eq!(shown(&mut files, "absolute-file"), Ok("/g".to_owned()));
    assert_eq!(shown(&mut files, "f"), Err(ErrorCode::Invalid));
    let made = files.view().symlink_at(lent(at), "/etc/passwd".to_owned(), "made".to_owned());
    assert_eq!(code(made), Err(ErrorCode::NotPermitted));
    assert!(!bench.upper().join("g").exists(), "nothing was made outside");
}

#[test]
fn a_name_that_utf8_cannot_say_is_listed_by_a_stand_in_and_the_rest_works() {
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let bench = Bench::with(|root| {
        tree(root);
        fs::write(root.join(odd), "x").unwrap();
        std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(b"\xff"), root.join("link")).unwrap();
    });
    let mut files = Files::new(&bench);
    let root = files.given[0];
    assert_eq!(files.names(root), ["caf\u{fffd}", "d", "g", "link"]);
    let name = "caf\u{fffd}".to_owned();
    assert_eq!(files.open(root, &name, OpenFlags::empty(), READ), Err(ErrorCode::IllegalByteSequence));
    assert_eq!(
        code(files.view().stat_at(lent(root), FOLLOW, name.clone())).map(drop),
        Err(ErrorCode::IllegalByteSequence)
    );
    assert_eq!(
        code(files.view().unlink_file_at(lent(root), name.clone())),
        Err(ErrorCode::IllegalByteSequence)
    );
    assert_eq!(
        code(files.view().readlink_at(lent(root), "link".to_owned())),
        Err(ErrorCode::IllegalByteSequence)
    );
    assert_eq!(files.read(root, "g").unwrap(), b"outside");
    // Such a name can be made and is then what it says.
    files.open(root, &name, OpenFlags::CREATE, WRITE).unwrap();
    assert_eq!(files.read(root, &name).unwrap(), b"");
}

#[test]
fn an_object_is_itself_whatever_led_to_it() {
    let bench = Bench::with(tree);
    let mut files = Files::new(&bench);
    let root = files.given[0];
    let [one, two] = ["d/f", "d/./f"].map(|path| files.open(root, path, OpenFlags::empty(), READ).unwrap());
    let other = files.open(root, "g", OpenFlags::empty(), READ).unwrap();
    assert!(files.view().is_same_object(lent(one), lent(two)).unwrap());
    assert!(!files.view().is_same_object(lent(one), lent(other)).unwrap());
    let hash = |files: &mut Files, handle| {
        let hash = code(files.view().metadata_hash(lent(handle))).unwrap();
        (hash.lower, hash.upper)
    };
    assert_eq!(hash(&mut files, one), hash(&mut files, two));
    assert_ne!(hash(&mut files, one), hash(&mut files, other));
    let by_name = code(files.view().metadata_hash_at(lent(root), FOLLOW, "d/f".to_owned())).unwrap();
    assert_eq!(hash(&mut files, one), (by_name.lower, by_name.upper));
    // A change of its bytes, and the copy-up that goes with it, does not make it another object.
    let write = files.open(root, "d/f", OpenFlags::empty(), WRITE).unwrap();
    code(files.view().write(lent(write), b"x".to_vec(), 0)).unwrap();
    assert_eq!(hash(&mut files, one), hash(&mut files, write));
}

#[test]
fn a_full_table_is_an_error_code_and_not_a_trap() {
    let bench = Bench::with(tree);
    let mut files = Files::new(&bench);
    let root = files.given[0];
    files.table.set_max_capacity(4);
    let opened: Vec<_> = (0..8).map(|_| files.open(root, "g", OpenFlags::empty(), READ)).collect();
    assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 3);
    assert_eq!(opened.last(), Some(&Err(ErrorCode::InsufficientMemory)));
    let file = *opened[0].as_ref().unwrap();
    assert_eq!(
        code(files.view().read_via_stream(lent(file), 0)).map(drop),
        Err(ErrorCode::InsufficientMemory)
    );
    assert_eq!(code(files.view().read_directory(lent(root))).map(drop), Err(ErrorCode::InsufficientMemory));
    HostDescriptor::drop(&mut files.view(), Resource::<Descriptor>::new_own(file)).unwrap();
    assert!(files.open(root, "g", OpenFlags::empty(), READ).is_ok(), "what is closed is free again");
}

#[test]
fn streams_read_append_and_write_at_a_position() {
    use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream, StreamError};
    let bench = Bench::with(tree);
    let mut files = Files::new(&bench);
    let root = files.given[0];
    let file = files.open(root, "d/f", OpenFlags::empty(), READ | WRITE).unwrap();
    let append = code(files.view().append_via_stream(lent(file))).unwrap().rep();
    let middle = code(files.view().write_via_stream(lent(file), 1)).unwrap().rep();
    let mut put = |handle: Handle, bytes: &'static [u8]| {
        let stream = files.table.get_mut(&lent::<DynOutputStream>(handle)).unwrap();
        assert!(stream.check_write().unwrap() >= bytes.len());
        stream.write(bytes.into()).unwrap();
        stream.flush().unwrap();
    };
    put(append, b"-end");
    put(middle, b"OW");
    put(append, b"!");
    put(middle, b"E");
    let read = code(files.view().read_via_stream(lent(file), 2)).unwrap().rep();
    let stream = files.table.get_mut(&lent::<DynInputStream>(read)).unwrap();
    assert_eq!(stream.read(4).unwrap(), &b"WEr-"[..]);
    assert_eq!(stream.read(0).unwrap(), &b""[..]);
    assert_eq!(stream.read(usize::MAX).unwrap(), &b"end!"[..]);
    assert!(matches!(stream.read(1), Err(StreamError::Closed)));
}
