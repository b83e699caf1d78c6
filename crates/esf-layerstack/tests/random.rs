//! Random and systematic changes: what an overlay makes of them, sealed over generations and squashed
//! at random, equals what the same operations make of a plain directory.

mod support;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use support::{Store, privileged, shell};

/// How each type of entry is made.
const MAKE: [(&str, &str); 6] = [
    ("absent", ":"),
    ("file", "echo file > $n"),
    ("empty", "mkdir $n"),
    ("full", "mkdir -p $n/in; echo x > $n/x; echo y > $n/in/y"),
    ("symlink", "ln -s target $n"),
    ("fifo", "mkfifo $n"),
];

#[test]
fn each_type_replaces_each_other() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let name = |from: &str, to: &str| format!("n={from}-{to}; ");
    let pairs: Vec<_> = MAKE.iter().flat_map(|from| MAKE.iter().map(move |to| (from, to))).collect();
    let make: String = pairs.iter().map(|(from, to)| format!("{}{}\n", name(from.0, to.0), from.1)).collect();
    let replace: String =
        pairs.iter().map(|(from, to)| format!("{}rm -rf $n; {}\n", name(from.0, to.0), to.1)).collect();
    let base = store.import_script(&make);
    let (replaced, _) = store.run(&base, &replace);
    assert_eq!(store.view(&replaced), replaced);
    // A grandchild that makes the old names again sees nothing old.
    let again: String =
        pairs.iter().map(|(from, to)| format!("{}rm -rf $n; mkdir $n\n", name(from.0, to.0))).collect();
    let (emptied, _) = store.run(&replaced, &again);
    assert_eq!(store.view(&emptied), emptied);
    let plain = tempfile::tempdir_in(store.dir.path()).expect("temporary directory");
    for (script, pin) in [(&make, &base), (&replace, &replaced), (&again, &emptied)] {
        shell(plain.path(), script);
        assert_eq!(store.import(plain.path()).root, pin.root);
    }
    for pin in [&replaced, &emptied] {
        let report = store.stack.squash(pin).expect("squash");
        assert_eq!(report.layers_after, 1);
        assert_eq!(store.view(pin), *pin);
        assert_eq!(store.stack.verify(pin, &()).expect("verify").damaged, [""; 0]);
    }
    store.check_accounts();
}

#[derive(Clone, Debug)]
enum Op {
    Write(String, u8),
    Remove(String),
    Mkdir(String),
    Symlink(String, String),
    Link(String, String),
    Rename(String, String),
    Chmod(String, u32),
    Truncate(String, u16),
    Xattr(String, u8),
}

fn path() -> impl Strategy<Value = String> {
    let component = prop::sample::select(vec!["a", "b", "c", "\u{e9}\n", ".wh.a"]);
    prop::collection::vec(component, 1..4).prop_map(|parts| parts.join("/"))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Write(p, n)),
        3 => path().prop_map(Op::Remove),
        3 => path().prop_map(Op::Mkdir),
        1 => (path(), path()).prop_map(|(p, t)| Op::Symlink(p, t)),
        1 => (path(), path()).prop_map(|(p, q)| Op::Link(p, q)),
        2 => (path(), path()).prop_map(|(p, q)| Op::Rename(p, q)),
        1 => (path(), 0..0o10000u32).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (path(), any::<u16>()).prop_map(|(p, n)| Op::Truncate(p, n)),
        1 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Xattr(p, n)),
    ]
}

/// A file that other names share: changing it in place would break the link in an overlay only.
fn is_linked(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir() && meta.nlink() > 1)
}

impl Op {
    fn apply(&self, top: &Path) -> io::Result<()> {
        let no_symlink = |path: &Path| match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_symlink() => Ok(()),
            Ok(_) => Err(io::ErrorKind::InvalidInput.into()),
            Err(error) => Err(error),
        };
        match self {
            Self::Write(path, byte) => {
                let path = top.join(path);
                if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
                    fs::remove_file(&path)?;
                }
                fs::write(&path, vec![*byte; usize::from(*byte) * 50])
            }
            Self::Remove(path) => {
                let path = top.join(path);
                if fs::symlink_metadata(&path)?.is_dir() {
                    fs::remove_dir_all(path)
                } else {
                    fs::remove_file(path)
                }
            }
            Self::Mkdir(path) => fs::create_dir(top.join(path)),
            Self::Symlink(path, target) => symlink(target, top.join(path)),
            Self::Link(from, to) => {
                no_symlink(&top.join(from))?;
                fs::hard_link(top.join(from), top.join(to))
            }
            Self::Rename(from, to) => fs::rename(top.join(from), top.join(to)),
            Self::Chmod(path, mode) => {
                no_symlink(&top.join(path))?;
                fs::set_permissions(top.join(path), fs::Permissions::from_mode(*mode))
            }
            Self::Truncate(path, size) => {
                no_symlink(&top.join(path))?;
                fs::File::options().write(true).open(top.join(path))?.set_len((*size).into())
            }
            Self::Xattr(path, byte) => {
                no_symlink(&top.join(path))?;
                let flags = rustix::fs::XattrFlags::empty();
                Ok(rustix::fs::lsetxattr(top.join(path), "user.test", &[*byte; 3], flags)?)
            }
        }
    }

    /// Whether an overlay may do otherwise than a directory, as documented.
    fn may_differ(&self, plain: &Path) -> bool {
        match self {
            Self::Chmod(path, _) | Self::Truncate(path, _) | Self::Xattr(path, _) => {
                is_linked(&plain.join(path))
            }
            // A lower directory cannot be renamed.
            Self::Rename(from, _) => plain.join(from).is_dir(),
            // A copy-up breaks the link to a lower file; only both new names are linked.
            Self::Link(from, _) => is_linked(&plain.join(from)),
            Self::Write(..) | Self::Remove(_) | Self::Mkdir(_) | Self::Symlink(..) => false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_overlay_sealed_and_squashed_is_a_plain_directory(
        generations in prop::collection::vec((prop::collection::vec(op(), 1..25), 0..4usize), 1..6),
    ) {
        if !privileged() {
            return Ok(());
        }
        let store = Store::new();
        let plain = tempfile::tempdir_in(store.dir.path()).expect("temporary directory");
        let mut pin = store.import(plain.path());
        for (ops, squash) in generations {
            (pin, _) = store.run_with(&pin, |merged| {
                for op in ops.iter().filter(|op| !op.may_differ(plain.path())) {
                    let (here, there) = (op.apply(merged), op.apply(plain.path()));
                    assert_eq!(here.is_ok(), there.is_ok(), "{op:?}: {here:?}, {there:?}");
                }
            });
            prop_assert_eq!(store.import(plain.path()).root, pin.root);
            prop_assert_eq!(store.view(&pin), pin);
            if squash > 1 {
                store.stack.squash_top(&pin, squash).expect("squash");
                prop_assert_eq!(store.view(&pin), pin);
                store.check_accounts();
            }
            prop_assert_eq!(store.stack.verify(&pin, &()).expect("verify").damaged, Vec::<String>::new());
        }
    }
}
