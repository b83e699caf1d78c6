//! `esf search watch`: the tree in the terminal, drawn again whenever it changed. Names are escaped by the table, so
//! none of them can drive the terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use esf_control::picture::Shown;
use esf_core::Problem;
use esf_core::search::SearchStatus;
use serde_json::json;

use super::{lines, tree};
use crate::args;
use crate::args::Format;
use crate::context::{Context, io_problem};
use crate::interrupt;
use crate::output::{Table, printable};

/// Rows where the terminal does not say how many it has.
const ROWS: usize = 40;
/// Lines above the tree.
const HEAD: usize = 4;
/// How long a signal may go unseen.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn watch(context: &Context, arguments: &args::SearchWatch) -> Result<u8, Problem> {
    let store = context.open()?;
    let search = super::found(&store, &arguments.search)?.search_id;
    let redraws = !arguments.once && io::stdout().is_terminal();
    if !arguments.once {
        interrupt::watch()?;
    }
    let mut drawn = None;
    loop {
        let current = store.graph().search(search).map_err(|error| error.problem())?;
        let state = (current.stats_rev, current.selected, current.void, current.status);
        if drawn != Some(state) {
            drawn = Some(state);
            let rows = arguments.rows.map_or_else(|| height().saturating_sub(HEAD), |rows| rows as usize);
            let shown = tree::shown(&store, search, rows.max(1))?;
            let best = lines::best_reward(&store, &shown.search)?;
            if matches!(context.format, Format::Json | Format::Jsonl) {
                let rows = shown.rows(rows.max(1));
                let value =
                    json!({ "search": shown.search, "best_value": best, "best": shown.best, "rows": rows });
                if !write(&format!("{value}\n"))? {
                    return Ok(0);
                }
            } else if !write(&drawing(&shown, best, rows.max(1), redraws, arguments.once))? {
                return Ok(0);
            }
        }
        if arguments.once || current.status == SearchStatus::Stopped && current.in_flight() == 0 {
            return Ok(0);
        }
        let mut left = Duration::from_millis(arguments.every.0);
        while !left.is_zero() {
            if interrupt::seen() {
                return Ok(0);
            }
            let nap = left.min(LOOK);
            std::thread::sleep(nap);
            left -= nap;
        }
    }
}

/// The tree, with what makes it take the place of the one before.
fn drawing(shown: &Shown, best: Option<f64>, rows: usize, redraws: bool, once: bool) -> String {
    // Home, then each line to its end, then the rest: nothing flickers.
    let (before, after) = if redraws { ("\u{1b}[H\u{1b}[2J", "") } else { ("", "\n") };
    format!("{before}{}{}", text(shown, best, rows), if once { "" } else { after })
}

/// Writes to standard output; false when nobody reads it any more.
fn write(text: &str) -> Result<bool, Problem> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Ok(()) => Ok(true),
        Err(error) => Err(io_problem("write", "standard output".as_ref(), &error)),
    }
}

fn text(shown: &Shown, best: Option<f64>, rows: usize) -> String {
    let mut table = Table::new(&["N", "Q", "P", "HELD", "STATUS", "TREE"]);
    for row in shown.rows(rows) {
        table.row([row.visits, row.value, row.prior, row.in_flight, row.status, row.name]);
    }
    let best = best.map_or_else(|| "none yet".to_owned(), lines::number);
    format!("{}\nbest value {best}\n{}", printable(&shown.headline()), table.render())
}

fn height() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    size.map_or(ROWS, |size| usize::from(size.ws_row)).max(HEAD + 1)
}
