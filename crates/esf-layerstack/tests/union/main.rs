//! The union against two oracles: a real overlay over the same carriers, and a plain directory. The
//! same operations give the same answers and the same tree, and the uppers seal to the same root.
//! Without root there is no overlay: then generations of unions alone meet the plain directory.
//! `PROPTEST_CASES` says how many trees are tried.

mod kernel;
mod ops;
#[path = "../support/mod.rs"]
mod support;
mod view;

use std::os::fd::OwnedFd;
use std::path::Path;

use esf_core::manifest::RootPin;
use esf_layerstack::union::{Layers, Union};
use esf_layerstack::{Form, Workspace};
use proptest::prelude::*;

use kernel::Kernel;
use ops::{Op, Target, base, ops, plain_ops};
use support::{Store, privileged};

/// How many trees each test tries.
fn cases(ordinary: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() }
}

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).expect("open a directory").into()
}

/// Whether the views of overlays are looked at as well.
fn root() -> bool {
    Form::of_this_process() == Form::Native
}

/// The union over a workspace.
fn union(workspace: &Workspace) -> Union {
    let layers = Layers {
        lowers: workspace.lowers.iter().map(|path| open(path)).collect(),
        upper: open(&workspace.upper),
        work: open(&workspace.work),
        form: workspace.form,
    };
    Union::new(layers, None).expect("a union")
}

/// A root's dump in which times of the test's own run read alike.
fn dump(store: &Store, pin: &RootPin) -> Vec<String> {
    let apart = |line: String| {
        let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let time = fields.len() - 2;
        let seconds = fields[time].split('.').next().and_then(|text| text.parse::<i64>().ok());
        if seconds.is_none_or(|seconds| seconds > 1_700_000_000) {
            fields[time] = "now".to_owned();
        }
        fields.join(" ")
    };
    store.dump(pin).into_iter().map(apart).collect()
}

/// Makes a root of several carriers.
fn layered(store: &Store, generations: &[Vec<Op>]) -> RootPin {
    let source = tempfile::tempdir_in(store.dir.path()).expect("temporary directory");
    let mut plain = Kernel::new(source.path(), false);
    let (first, rest) = generations.split_first().expect("there is a base");
    for op in first {
        let _made = plain.apply(op);
    }
    drop(plain);
    support::shell(source.path(), "find . -print0 | xargs -0 touch -h -d '2001-02-03 04:05:06.123456789'");
    let mut pin = store.import(source.path());
    for ops in rest {
        (pin, _) = store.run_with(&pin, |merged| {
            let mut overlay = Kernel::new(merged, true);
            for op in ops {
                let _made = overlay.apply(op);
            }
        });
    }
    pin
}

/// Seals what a union did.
fn seal(store: &Store, workspace: &Workspace, base: &RootPin) -> RootPin {
    let prepared = store.seal(workspace.attempt, base);
    let pin = *prepared.sealed().pin();
    store.stack.settle_seal(prepared, true).expect("settle");
    pin
}

/// Opens a workspace, has `ops` done to a union over it and to a plain directory, and seals.
fn generation(store: &Store, pin: &RootPin, plain: &Path, ops: &[Op]) -> RootPin {
    let workspace = store.stack.open_workspace(pin, store.attempt()).expect("open a workspace");
    let mut directory = Kernel::new(plain, false);
    let mut union = ops::Ours::new(union(&workspace));
    for op in ops {
        assert_eq!(directory.apply(op), union.apply(op), "{op:?}");
    }
    assert_eq!(view::of_kernel(plain), view::of_union(&union.union));
    union.check(&workspace);
    drop(union);
    seal(store, &workspace, pin)
}

/// Acceptance P18 and its kind: what is removed, replaced by another type and made again.
#[test]
fn what_is_replaced_shows_nothing_old() {
    let (fill, remove, mkdir) = (
        |path: &str| Op::Fill(path.to_owned(), 7),
        |path: &str| Op::RemoveAll(path.to_owned()),
        |path: &str| Op::Mkdir(0, path.to_owned()),
    );
    let link = |path: &str| Op::Symlink("x".to_owned(), 0, path.to_owned());
    let rename = |from: &str, to: &str| Op::Rename(0, from.to_owned(), 0, to.to_owned());
    let scripts = [
        vec![remove("d"), mkdir("d"), fill("d/new")],
        vec![rename("d", "e")],
        vec![rename("d", "e"), mkdir("d"), rename("e", "d/e"), fill("e/b/c")],
        vec![remove("f"), mkdir("f"), fill("f/x")],
        vec![remove("d"), link("d")],
        vec![remove("d"), fill("d"), remove("d"), fill("d/b/c"), rename("d/b", "b")],
        vec![remove("d/b"), rename("d", "e"), rename("e", "d")],
        vec![remove("d/a"), remove("d/b"), rename("f", "d/a"), rename("g", "d/b")],
        vec![
            fill("d/x"),
            remove("d/a"),
            remove("d/b"),
            remove("d/x"),
            Op::Rmdir(0, "d".to_owned()),
            mkdir("d"),
        ],
        vec![mkdir("e"), remove("d"), rename("e", "d")],
        vec![mkdir("e"), fill("e/n"), remove("d/a"), remove("d/b"), rename("e", "d")],
    ];
    let old = [fill("d/a"), fill("d/b/c"), fill("f"), fill("g/h/i")];
    for script in &scripts {
        let store = Store::new();
        let plain = tempfile::tempdir_in(store.dir.path()).expect("temporary directory");
        let mut pin = store.import(plain.path());
        // The same again on what came of it, and then the old names made again.
        for ops in [
            &old[..],
            &script[..],
            &script[..],
            &[remove("d"), remove("f"), remove("g")],
            &old[..],
            &script[..],
        ] {
            pin = generation(&store, &pin, plain.path(), ops);
            assert_eq!(store.import(plain.path()).root, pin.root, "{script:?}");
            assert!(!root() || store.view(&pin) == pin, "{script:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Each generation's upper is the next one's lower, unsealed: cheap, so thousands can be tried.
    #[test]
    fn stacked_uppers_are_a_directory(
        generations in prop::collection::vec(prop::collection::vec(plain_ops(), 1..30), 1..6),
    ) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let make = |name: String| {
            std::fs::create_dir(dir.path().join(&name)).expect("mkdir");
            dir.path().join(name)
        };
        let (plain, mut lowers) = (make("plain".to_owned()), Vec::new());
        for (n, ops) in generations.iter().enumerate() {
            let (upper, work) = (make(format!("upper{n}")), make(format!("work{n}")));
            let layers = || Layers {
                lowers: lowers.iter().rev().map(|path: &std::path::PathBuf| open(path)).collect(),
                upper: open(&upper),
                work: open(&work),
                form: Form::of_this_process(),
            };
            let mut directory = Kernel::new(&plain, false);
            let mut union = ops::Ours::new(Union::new(layers(), None).expect("a union"));
            // A copy-up breaks links to a lower file, as documented.
            let last = n + 1 == generations.len();
            for op in ops.iter().filter(|op| last || !matches!(op, Op::Link(..))) {
                let (expected, found) = (directory.apply(op), union.apply(op));
                prop_assert_eq!(expected, found, "generation {}: {:?}", n, op);
            }
            prop_assert_eq!(directory.kept(), union.kept());
            let seen = view::of_kernel(&plain);
            prop_assert_eq!(&seen, &view::of_union(&union.union));
            drop(union);
            // Nothing of it was only in memory.
            let again = Union::new(layers(), None).expect("a union");
            prop_assert_eq!(&seen, &view::of_union(&again));
            lowers.push(upper);
        }
    }

    /// Works without root, in the form that this process can write.
    #[test]
    fn generations_of_unions_are_a_directory(
        generations in prop::collection::vec(prop::collection::vec(plain_ops(), 1..30), 1..6),
    ) {
        let store = Store::new();
        let plain = tempfile::tempdir_in(store.dir.path()).expect("temporary directory");
        let mut pin = store.import(plain.path());
        for ops in &generations {
            // A copy-up breaks links to a lower file, as documented.
            let ops: Vec<_> = ops.iter().filter(|op| !matches!(op, Op::Link(..))).cloned().collect();
            pin = generation(&store, &pin, plain.path(), &ops);
            prop_assert_eq!(store.import(plain.path()).root, pin.root);
        }
        prop_assert!(!root() || store.view(&pin) == pin);
    }

    #[test]
    fn a_union_is_an_overlay(
        generations in prop::collection::vec(base(true), 1..4),
        ops in prop::collection::vec(ops(), 1..40),
    ) {
        if !privileged() {
            return Ok(());
        }
        let store = Store::new();
        let base = layered(&store, &generations);
        let ours = store.stack.open_workspace(&base, store.attempt()).expect("open a workspace");
        let theirs = store.stack.open_workspace(&base, store.attempt()).expect("open a workspace");
        let mounted = support::mount(&theirs, &store.path("merged"));
        let mut overlay = Kernel::new(&mounted.path, true);
        let mut union = ops::Ours::new(union(&ours));
        for op in &ops {
            let (expected, found) = (overlay.apply(op), union.apply(op));
            prop_assert_eq!(expected, found, "{:?}", op);
        }
        prop_assert_eq!(overlay.kept(), union.kept());
        prop_assert_eq!(view::of_kernel(&mounted.path), view::of_union(&union.union));
        union.check(&ours);
        drop((union, overlay));
        drop(mounted);
        let (expected, found) = (seal(&store, &theirs, &base), seal(&store, &ours, &base));
        prop_assert_eq!(dump(&store, &expected), dump(&store, &found));
        prop_assert_eq!(expected.root, found.root);
    }

    #[test]
    fn a_union_is_a_directory(
        generations in prop::collection::vec(base(false), 1..4),
        ops in prop::collection::vec(plain_ops(), 1..60),
    ) {
        if !privileged() {
            return Ok(());
        }
        let store = Store::new();
        let base = layered(&store, &generations);
        let ours = store.stack.open_workspace(&base, store.attempt()).expect("open a workspace");
        let plain = tempfile::tempdir_in(store.dir.path()).expect("temporary directory");
        view::copy(&store, &base, plain.path());
        let mut directory = Kernel::new(plain.path(), false);
        let mut union = ops::Ours::new(union(&ours));
        for op in &ops {
            let (expected, found) = (directory.apply(op), union.apply(op));
            prop_assert_eq!(expected, found, "{:?}", op);
        }
        prop_assert_eq!(directory.kept(), union.kept());
        prop_assert_eq!(view::of_kernel(plain.path()), view::of_union(&union.union));
        union.check(&ours);
        drop((union, directory));
        let found = seal(&store, &ours, &base);
        prop_assert_eq!(store.import(plain.path()).root, found.root);
        // An overlay does not show that two fifos are one.
        prop_assert_eq!(store.view(&found).root, found.root);
    }
}
