//! One function for each command: opens what it needs, calls one operation of a library, shapes the
//! reply. The twelve operations first, what surrounds them after.

mod doctor;
pub(crate) mod environment;
mod evaluate;
mod exec;
pub(crate) mod find;
mod graph;
mod inspect;
mod integrate;
mod live;
mod merge;
pub(crate) mod show;
mod top;
mod trees;
mod upkeep;

use clap::CommandFactory;
use esf_core::{Class, Problem};
use serde_json::json;

use crate::args::{Cli, Command, DebugCommand, FilesCommand, GroupCommand, RootCommand};
use crate::context::Context;
use crate::output::{self, Reply, Table};

/// Runs the parsed command line; gives the exit code.
pub(crate) fn run(cli: Cli) -> Result<u8, Problem> {
    if let Command::Completion(arguments) = &cli.command {
        let mut script = Vec::new();
        clap_complete::generate(arguments.shell, &mut Cli::command(), "esf", &mut script);
        return written(output::write_out(&script)).map(|()| 0);
    }
    if let Command::Tethered(arguments) = &cli.command {
        return Err(crate::search::tethered(arguments));
    }
    let context = Context::new(&cli.global)?;
    let reply = match cli.command {
        Command::Group(GroupCommand::Create(arguments)) => graph::group_create(&context, &arguments),
        Command::Fork(arguments) => graph::fork(&context, &arguments),
        Command::Inspect(arguments) => inspect::inspect(&context, &arguments),
        Command::Prune(arguments) => graph::prune(&context, &arguments),
        Command::Activate(arguments) => live::activate(&context, &arguments),
        Command::Exec(arguments) => return exec::exec(&context, arguments),
        Command::Suspend(arguments) => live::suspend(&context, &arguments),
        Command::Retry(arguments) => live::retry(&context, &arguments),
        Command::Evaluate(arguments) => return evaluate::evaluate(&context, &arguments),
        Command::Merge(arguments) => merge::merge(&context, &arguments),
        Command::Promote(arguments) => integrate::promote(&context, &arguments),
        Command::Export(arguments) => integrate::export(&context, &arguments),

        Command::Run(arguments) => return exec::run(&context, arguments),
        Command::Ls(arguments) => graph::ls(&context, &arguments),
        Command::Ps(arguments) => live::ps(&context, &arguments),
        Command::Log(arguments) => graph::log(&context, &arguments),
        Command::Diff(arguments) => return trees::diff(&context, &arguments),
        Command::Cat(arguments) => return trees::cat(&context, &arguments),
        Command::Tree(arguments) => trees::tree(&context, &arguments),
        Command::Dump(arguments) => return trees::dump(&context, &arguments),
        Command::Tag(arguments) => graph::tag(&context, &arguments),
        Command::Root(RootCommand::Import(arguments)) => graph::root_import(&context, &arguments),
        Command::Root(RootCommand::Ls) => graph::root_ls(&context),
        Command::Verify(arguments) => trees::verify(&context, &arguments),
        Command::Logs(arguments) => return live::logs(&context, &arguments),
        Command::Cp(arguments) => return live::cp(&context, &arguments),
        Command::Files(FilesCommand::Ls(arguments)) => live::files_ls(&context, &arguments),
        Command::Kill(arguments) => live::kill(&context, &arguments),
        Command::Release(arguments) => live::release(&context, &arguments),
        Command::Cancel(arguments) => top::cancel(&context, &arguments),
        Command::Top(arguments) => return top::top(&context, &arguments),

        Command::Search(command) => return crate::search::search(&context, command),
        Command::Rollout(command) => return crate::rollout::rollout(&context, *command),

        Command::Task(command) => return crate::development::task(&context, command),
        Command::Review(command) => return crate::development::review(&context, &command),
        Command::Queue(command) => return crate::development::queue(&context, &command),

        Command::Df => upkeep::df(&context),
        Command::Du(arguments) => upkeep::du(&context, &arguments),
        Command::Why(arguments) => upkeep::why(&context, &arguments),
        Command::Gc(arguments) => upkeep::gc(&context, &arguments),
        Command::Squash(arguments) => upkeep::squash(&context, &arguments),
        Command::Recover => upkeep::recover(&context),
        Command::Fsck => upkeep::fsck(&context),
        Command::Doctor => return doctor::doctor(&context),
        Command::Bench(arguments) => crate::bench::bench(&context, &arguments),
        Command::Events(arguments) => return graph::events(&context, &arguments),
        Command::Quickstart(arguments) => return crate::quickstart::run(&context, &arguments),
        Command::Worker(arguments) => return upkeep::worker(&context, &arguments),
        Command::Debug(DebugCommand::Boundaries) => Ok(boundaries()),
        Command::Version => Ok(version()),
        Command::Later(words) => Err(later(&words)),
        Command::Completion(_) | Command::Tethered(_) => unreachable!("answered above, without a store"),
    }?;
    print(&context, &reply)
}

/// Prints a reply; exit code 0.
pub(crate) fn print(context: &Context, reply: &Reply) -> Result<u8, Problem> {
    written(output::print(context.format, context.quiet, reply)).map(|()| 0)
}

fn written(result: std::io::Result<()>) -> Result<(), Problem> {
    result.map_err(|error| Problem::new(Class::Failure, "stdout", format!("cannot write to stdout: {error}")))
}

fn version() -> Reply {
    let version = env!("CARGO_PKG_VERSION");
    Reply {
        value: json!({ "version": version, "store_format": esf_layerstack::FORMAT_VERSION }),
        table: Table::lines([format!("esf {version}")]),
        ids: vec![version.to_owned()],
    }
}

fn boundaries() -> Reply {
    let names: Vec<String> = esf_store::boundary::all().into_iter().map(str::to_owned).collect();
    Reply { value: json!({ "boundaries": names }), table: Table::lines(names.clone()), ids: names }
}

fn later(words: &[std::ffi::OsString]) -> Problem {
    let word = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let known = ["archive", "shell", "serve", "mcp"];
    if known.contains(&word.as_str()) {
        return output::not_supported(&format!("`esf {word}`"), "`esf --help` lists what is");
    }
    Problem::new(Class::Usage, "unknown_command", format!("there is no command `{word}`"))
        .expected("a command that `esf --help` lists")
}
