//! Any bytes, read as an object of any kind, are refused or encode to themselves.
//! The first byte chooses the kind; a good header is put before the rest, so that the body is reached.
#![no_main]

use esf_core::manifest::{Object, ObjectKind};
use libfuzzer_sys::fuzz_target;

const KINDS: [(ObjectKind, u8); 6] = [
    (ObjectKind::Tree, b'T'),
    (ObjectKind::TreePage, b't'),
    (ObjectKind::Attrs, b'A'),
    (ObjectKind::AttrsPage, b'a'),
    (ObjectKind::Root, b'R'),
    (ObjectKind::AttrsRoot, b'Q'),
];

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let (kind, letter) = KINDS[usize::from(*first) % KINDS.len()];
    let with_header = [&[b'E', b'S', b'F', letter, 1], body].concat();
    for bytes in [body, &with_header] {
        if let Ok(object) = Object::decode(kind, bytes) {
            assert_eq!(object.encode(), bytes, "{object:?}");
        }
    }
});
