//! Any bytes under a pack's name never give an object that does not match its id, and never panic.
//! Ids are looked for at every place of the file, where an index would have them.
#![no_main]

use esf_core::Digest;
use esf_core::manifest::{ObjectKind, Objects};
use esf_layerstack::object_store::ObjectStore;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let directory = std::env::temp_dir().join(format!("esf-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
    std::fs::write(directory.join(format!("{}.pack", "0".repeat(64))), data).expect("the pack is writable");
    let objects = ObjectStore::open(&directory).expect("the directory exists");
    for window in data.windows(32).take(1000) {
        let id = Digest::from_bytes(window.try_into().expect("32 bytes"));
        for kind in ObjectKind::ALL {
            if let Ok(bytes) = objects.get(kind, &id) {
                assert_eq!(kind.id_of(&bytes), id);
            }
        }
    }
    objects.verify_all(&mut |_| {}).expect("the pack is readable");
});
