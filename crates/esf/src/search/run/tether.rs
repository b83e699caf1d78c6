//! A program that does not outlive the driver that started it, even when that is killed: the kernel is asked for a
//! signal at the parent's death, and then this process becomes the program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use esf_core::{Class, Problem};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::args;

/// Becomes the program; comes back only when that cannot be.
pub(crate) fn tethered(arguments: &args::Tethered) -> Problem {
    let failed = |message: String| Problem::new(Class::Failure, "cannot_start", message);
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(format!("cannot be tied to the process that started it: {error}"));
    }
    // It may have died before that.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent != i32::try_from(arguments.parent).ok() {
        return failed("the process that started it is gone".to_owned());
    }
    let (program, rest) = arguments.command.split_first().expect("the parser asks for one");
    let error = Command::new(program).args(rest).exec();
    failed(format!("cannot start {}: {error}", program.to_string_lossy()))
}
