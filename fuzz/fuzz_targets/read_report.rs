//! A test report comes from the code under test: any bytes are counted or refused, never worse, and what is
//! counted adds up.

#![no_main]

use esf_control::report::{Format, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for format in [Format::Junit, Format::Tap] {
        if let Ok(counts) = read(format, bytes) {
            assert!(counts.run() > 0 && counts.missing <= counts.failed);
        }
    }
});
