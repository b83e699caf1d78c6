//! The union against two oracles: a real overlay over the same carriers, and a plain directory. The
//! same operations give the same answers and the same tree, and the uppers seal to the same root.
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

/// The union over a workspace.
fn union(workspace: &Workspace) -> Union {
    let layers = Layers {
        lowers: workspace.lowers.iter().map(|path| open(path)).collect(),
        upper: open(&workspace.upper),
        work: open(&workspace.work),
        form: Form::Native,
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

proptest! {
    #![proptest_config(cases(24))]

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
        prop_assert_eq!(store.view(&found), found);
    }
}
