//! Starting, waiting, killing, reaping.

use esf_jail::ExitStatus;

use crate::support::*;

pub const TESTS: &[crate::Test] = &[("exec::codes", codes)];

fn codes() {
    let world = World::new();
    let jail = world.host_jail("a");
    let outcome = run(&jail, &sh("echo out; echo err >&2; exit 3"));
    assert_eq!(outcome.status, ExitStatus::Code(3));
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
}
