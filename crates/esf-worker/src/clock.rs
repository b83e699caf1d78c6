//! The one place of the worker where clocks and randomness are read (style rule 12); everything below
//! gets them as arguments.

use std::time::{SystemTime, UNIX_EPOCH};

use esf_core::Timestamp;
use esf_core::ops::{BootClock, Meta};
use esf_core::time::BootMillis;
use rustix::time::{ClockId, clock_gettime};

use crate::message::RequestMeta;

/// Wall-clock time.
#[expect(clippy::disallowed_methods, reason = "the worker's one reading of the wall clock")]
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The machine's boot clock.
pub(crate) fn boot() -> BootClock {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let time = clock_gettime(ClockId::Boottime);
    BootClock {
        boot_id: id.expect("every Linux has a boot id").trim().to_owned(),
        millis: BootMillis(time.tv_sec * 1000 + time.tv_nsec / 1_000_000),
    }
}

/// What comes with a mutation, read now.
pub(crate) fn meta(request: &RequestMeta) -> Meta {
    Meta {
        actor: request.actor.clone(),
        key: request.key.clone(),
        now: now(),
        boot: boot(),
        trace_id: request.trace_id.clone(),
    }
}

/// What comes with a mutation that the worker makes by itself, under a key that says what it is.
pub(crate) fn own_meta(key: String) -> Meta {
    meta(&RequestMeta { actor: "worker".to_owned(), key, trace_id: String::new() })
}

/// A text that was never drawn before.
pub(crate) fn draw() -> String {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .expect("the kernel has randomness after boot");
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
