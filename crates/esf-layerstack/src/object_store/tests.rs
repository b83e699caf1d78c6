//! Packs on a real file system: what is stored comes back, what is damaged never does.

use std::collections::HashSet;
use std::fs;

use esf_core::manifest::ObjectSink;

use super::*;

const KIND: ObjectKind = ObjectKind::Blob;

fn bytes(nth: u32) -> Vec<u8> {
    nth.to_le_bytes().repeat(1 + nth as usize % 50)
}

fn id(nth: u32) -> Digest {
    KIND.id_of(&bytes(nth))
}

fn store(objects: &ObjectStore, numbers: impl IntoIterator<Item = u32>) -> Vec<PackId> {
    let mut writer = objects.writer();
    for nth in numbers {
        writer.put(KIND, &id(nth), &bytes(nth)).unwrap();
    }
    writer.finish().unwrap()
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

fn open() -> (tempfile::TempDir, ObjectStore) {
    let directory = tempfile::tempdir().unwrap();
    let objects = ObjectStore::open(directory.path()).unwrap();
    (directory, objects)
}

#[test]
fn what_was_stored_comes_back_to_every_handle_and_only_once() {
    let (directory, objects) = open();
    let other = ObjectStore::open(directory.path()).unwrap();
    assert!(matches!(other.get(KIND, &id(1)), Err(ObjectError::Missing { .. })));
    // More than a resident index holds, so buckets are read from the file.
    assert_eq!(store(&objects, 0..5000).len(), 1);
    for handle in [&objects, &other, &ObjectStore::open(directory.path()).unwrap()] {
        for nth in (0..5000).step_by(7) {
            assert_eq!(handle.get(KIND, &id(nth)).unwrap(), bytes(nth));
            assert!(handle.contains(&id(nth)).unwrap());
        }
        assert!(!handle.contains(&id(5001)).unwrap());
        assert!(matches!(handle.get(ObjectKind::Tree, &id(7)), Err(ObjectError::Missing { .. })));
    }
    assert_eq!(store(&objects, 100..200), []);
    assert_eq!(files(directory.path()), 1);
    assert_eq!(objects.verify_all(&mut |_| {}).unwrap(), []);
}

#[test]
fn a_writer_reads_back_what_it_holds_and_leaves_nothing_when_dropped() {
    let (directory, objects) = open();
    let mut writer = objects.writer();
    writer.put(KIND, &id(3), &bytes(3)).unwrap();
    assert_eq!(writer.get(KIND, &id(3)).unwrap(), bytes(3));
    let staged = writer.stage().unwrap();
    assert_eq!(files(directory.path()), 1);
    assert!(!objects.contains(&id(3)).unwrap());
    drop(staged);
    assert_eq!(files(directory.path()), 0);

    let mut writer = objects.writer();
    let large = vec![7; 33 << 20];
    writer.put(KIND, &KIND.id_of(&large), &large).unwrap();
    assert_eq!(files(directory.path()), 1, "a full pack is written at once");
    assert_eq!(writer.get(KIND, &KIND.id_of(&large)).unwrap(), large);
    writer.put(KIND, &KIND.id_of(&large), &large).unwrap();
    assert_eq!(writer.finish().unwrap().len(), 1);
}

#[test]
fn no_flipped_bit_and_no_truncation_gives_wrong_bytes_or_goes_unseen() {
    let (directory, objects) = open();
    let pack = store(&objects, 1..4)[0];
    let path = directory.path().join(pack.file_name());
    let whole = fs::read(&path).unwrap();
    let damaged = (0..whole.len() * 8)
        .map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        })
        .chain((0..whole.len()).map(|length| whole[..length].to_vec()));
    for bytes_on_disk in damaged {
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes_on_disk).unwrap();
        let objects = ObjectStore::open(directory.path()).unwrap();
        for nth in 1..4 {
            match objects.get(KIND, &id(nth)) {
                Ok(found) => assert_eq!(found, bytes(nth)),
                Err(ObjectError::Damaged { .. } | ObjectError::Missing { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!objects.verify_all(&mut |_| {}).unwrap().is_empty());
        objects.consolidate().unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes_on_disk, "damaged packs are kept as they are");
    }
}

#[test]
fn many_small_packs_become_few_and_old_handles_follow() {
    let (directory, objects) = open();
    let old = ObjectStore::open(directory.path()).unwrap();
    for nth in 0..200 {
        store(&objects, [nth]);
    }
    // Each of these has only been seen by name.
    old.refresh().unwrap();
    assert!(files(directory.path()) > 150);
    assert!(objects.consolidate().unwrap() > 150);
    assert_eq!(files(directory.path()), 1);
    assert_eq!(objects.consolidate().unwrap(), 0);
    for nth in 0..200 {
        assert_eq!(old.get(KIND, &id(nth)).unwrap(), bytes(nth));
    }
    assert_eq!(objects.verify_all(&mut |_| {}).unwrap(), []);
}

#[test]
fn writers_readers_and_mergers_work_at_once() {
    let (directory, _) = open();
    let path = directory.path();
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            scope.spawn(move || {
                let objects = ObjectStore::open(path).unwrap();
                for nth in 0..150 {
                    store(&objects, [thread * 1000 + nth, 9000 + nth]);
                    objects.consolidate().unwrap();
                    assert_eq!(objects.get(KIND, &id(thread * 1000)).unwrap(), bytes(thread * 1000));
                }
            });
        }
    });
    let objects = ObjectStore::open(path).unwrap();
    for nth in (0..3).flat_map(|thread| thread * 1000..thread * 1000 + 150).chain(9000..9150) {
        assert_eq!(objects.get(KIND, &id(nth)).unwrap(), bytes(nth));
    }
    assert_eq!(objects.verify_all(&mut |_| {}).unwrap(), []);
}

#[test]
fn what_another_process_collected_is_stored_anew() {
    let (directory, worker) = open();
    assert_eq!(store(&worker, 0..10).len(), 1);
    let collector = ObjectStore::open(directory.path()).unwrap();
    collector.retain(&|_| false).unwrap();
    // The worker knew these; if it took them for stored, a seal would name objects that are nowhere.
    assert_eq!(store(&worker, 0..10).len(), 1);
    let fresh = ObjectStore::open(directory.path()).unwrap();
    assert!((0..10).all(|nth| fresh.get(KIND, &id(nth)).is_ok()));
}

#[test]
fn retain_keeps_what_lives_and_sweeps_what_died() {
    let (directory, objects) = open();
    store(&objects, 0..100);
    store(&objects, 200..300);
    fs::write(directory.path().join("tmp-1-1"), b"half a pack").unwrap();
    let live: HashSet<Digest> = (0..90).chain(200..210).map(id).collect();
    let lives = |id: &Digest| live.contains(id);
    let plan = objects.plan_retain(&lives).unwrap();
    assert_eq!(objects.retain(&lives).unwrap(), plan);
    assert_eq!(plan.packs, 1, "the first pack is hardly dead");
    assert_eq!(files(directory.path()), 2);
    let none = |_: &Digest| false;
    assert!(objects.contains(&id(95)).unwrap() && objects.contains(&id(205)).unwrap());
    assert!(!objects.contains(&id(210)).unwrap());
    objects.retain(&none).unwrap();
    assert_eq!((files(directory.path()), objects.disk_usage().unwrap()), (0, 0));
    assert!(matches!(objects.get(KIND, &id(1)), Err(ObjectError::Missing { .. })));
}

#[test]
fn nothing_durable_relies_on_what_is_relaxed() {
    let (directory, objects) = open();
    let put = |numbers: [u32; 2]| {
        let mut writer = objects.writer();
        numbers.iter().for_each(|nth| writer.put(KIND, &id(*nth), &bytes(*nth)).unwrap());
        writer.stage().unwrap()
    };
    let relaxed = put([1, 2]).publish(false).unwrap()[0];
    assert!(objects.contains(&id(1)).unwrap());
    let staged = put([1, 3]);
    staged.sync().unwrap();
    staged.publish(true).unwrap();
    // What a loss of power may do.
    let path = directory.path().join(relaxed.file_name());
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"").unwrap();
    let objects = ObjectStore::open(directory.path()).unwrap();
    assert_eq!(objects.get(KIND, &id(1)).unwrap(), bytes(1));
    assert!(matches!(objects.get(KIND, &id(2)), Err(ObjectError::Damaged { .. })));
    assert_eq!(objects.verify_all(&mut |_| {}).unwrap().len(), 1);
}

#[test]
fn an_object_beyond_the_bound_is_refused() {
    let (_directory, objects) = open();
    let large = vec![0; esf_core::manifest::MAX_OBJECT as usize + 1];
    let error = objects.writer().put(KIND, &KIND.id_of(&large), &large).unwrap_err();
    assert!(matches!(error, ObjectError::Io { .. }) && error.to_string().contains("256 MiB"), "{error}");
}

/// Crashes and failures at each boundary that packs pass. A boundary is armed to panic, which leaves
/// files as a killed process would but for what unwinding removes, or to fail as a bad disk would.
#[cfg(feature = "failpoints")]
mod boundaries {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const PACK_BOUNDARIES: [&str; 4] = ["pack-sync", "pack-rename", "pack-directory-sync", "pack-unlink"];

    /// Arms a boundary, works, disarms; answers whether the work came through.
    fn with(boundary: &str, action: &str, work: impl FnOnce() -> bool) -> bool {
        fail::cfg(boundary, action).unwrap();
        let came_through = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
        fail::remove(boundary);
        came_through
    }

    #[test]
    fn what_was_acknowledged_survives_every_boundary() {
        for boundary in PACK_BOUNDARIES {
            for action in ["panic", "return(5)", "return(28)"] {
                let (directory, objects) = open();
                (0..70).for_each(|nth| drop(store(&objects, [nth])));
                store(&objects, 100..110);
                let dead: Vec<Digest> = (100..105).map(id).collect();
                let finish = |nth: u32| {
                    let mut writer = objects.writer();
                    writer.put(KIND, &id(nth), &bytes(nth)).unwrap();
                    writer.finish().is_ok()
                };
                let stored = with(boundary, action, || finish(500));
                assert_eq!(stored, boundary == "pack-unlink", "{boundary} {action}");
                assert!(!with(boundary, action, || objects.consolidate().is_ok()), "{boundary} {action}");
                assert!(!with(boundary, action, || objects.retain(&|known| !dead.contains(known)).is_ok()));
                for handle in [objects.clone(), ObjectStore::open(directory.path()).unwrap()] {
                    for nth in (0..70).chain(105..110) {
                        assert_eq!(handle.get(KIND, &id(nth)).unwrap(), bytes(nth), "{boundary} {action}");
                    }
                    assert_eq!(handle.verify_all(&mut |_| {}).unwrap(), []);
                }
                assert!(finish(600));
                objects.consolidate().unwrap();
                objects.sweep_temporaries().unwrap();
                assert_eq!(objects.verify_all(&mut |_| {}).unwrap(), []);
                assert!(
                    fs::read_dir(directory.path())
                        .unwrap()
                        .all(|entry| { entry.unwrap().file_name().to_str().unwrap().ends_with(".pack") })
                );
            }
        }
    }

    #[test]
    fn leaving_out_what_another_has_just_stored_syncs_its_name() {
        let (_directory, objects) = open();
        store(&objects, [1]);
        let again = || objects.writer();
        fail::cfg("pack-directory-sync", "return(5)").unwrap();
        assert_eq!(again().finish().unwrap(), [], "nothing was put, so nothing is relied on");
        let mut writer = again();
        writer.put(KIND, &id(1), &bytes(1)).unwrap();
        let relied = writer.finish();
        fail::remove("pack-directory-sync");
        assert!(relied.is_err());
    }

    #[test]
    fn a_full_disk_is_told_as_such() {
        let (directory, objects) = open();
        let mut writer = objects.writer();
        writer.put(KIND, &id(1), &bytes(1)).unwrap();
        fail::cfg("pack-sync", "return(28)").unwrap();
        let error = writer.finish().unwrap_err();
        fail::remove("pack-sync");
        assert_eq!(error.problem().code, "storage_full");
        assert_eq!(files(directory.path()), 0);
    }
}
