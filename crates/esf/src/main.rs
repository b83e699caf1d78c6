//! The one binary: parses the command line, opens what a command needs, runs it, prints the result.
//! Everything it knows beyond wiring belongs to the libraries.

mod args;
mod bench;
mod commands;
mod context;
mod development;
mod evaluation;
mod interrupt;
mod lock;
mod output;
mod progress;
mod quickstart;
mod rollout;
mod search;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // A process that was started as the jail's zygote never comes back from this.
    esf_jail::run_if_zygote();
    // Nor does one that was started to run or compile guests.
    esf_wasi::run_if_child();
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if matches!(&cli.command, args::Command::Worker(worker) if worker.command.is_none()) {
        // It outlives the command that started it, and whatever that one was handed.
        esf_jail::close_inherited();
    }
    start_logging(cli.global.verbose);
    let format = match &cli.command {
        // Its options are not this build's, so they were not looked into.
        args::Command::Later(words) if args::wants_json(words.iter().cloned()) => args::Format::Json,
        _ => cli.global.output,
    };
    raise_open_files();
    #[cfg(feature = "failpoints")]
    if let Err(reason) = esf_store::boundary::arm(&std::env::var("ESF_FAILPOINTS").unwrap_or_default()) {
        eprintln!("esf: ESF_FAILPOINTS: {reason}");
        return ExitCode::from(2);
    }
    match commands::run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            output::print_problem(format, &problem);
            ExitCode::from(output::exit_code(&problem))
        }
    }
}

/// Walking a deep tree holds a descriptor a level: takes as many as this process may have. Sandboxes
/// get limits of their own.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was, which does for all but very deep trees.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Tells that the command line could not be read, or prints the help that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && args::wants_json(std::env::args_os().skip(1)) {
        let problem = output::usage_problem(&error.to_string());
        output::print_problem(args::Format::Json, &problem);
        return ExitCode::from(output::exit_code(&problem));
    }
    error.exit()
}

fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("ESF_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
