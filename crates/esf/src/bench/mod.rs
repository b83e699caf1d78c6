//! `esf bench`: each row against a floor measured in the same run, samples interleaved, medians
//! compared (performance budgets are ratios, because machines differ and are noisy). Works in a
//! store of its own beside the user's, which it removes.

mod control;
mod floor;
mod merge;
mod queue;
mod rollouts;
mod sandbox;
mod storage;
mod wasi;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use esf_core::{Class, Problem};
use esf_store::Store;
use serde_json::{Value, json};

use crate::args;
use crate::context::{Context, io_problem};
use crate::output::{Reply, Table};

/// One measured row.
struct Row {
    name: &'static str,
    /// The median, in `unit`.
    value: f64,
    unit: &'static str,
    /// The floor's median in the same unit, and what the floor is.
    floor: Option<(f64, &'static str)>,
    /// Largest ratio (or value, where there is no floor) that is accepted.
    must: Option<f64>,
    aim: Option<f64>,
    samples: usize,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.floor.map(|(floor, _)| self.value / floor)
    }

    fn met(&self) -> Option<bool> {
        Some(self.ratio().unwrap_or(self.value) <= self.must?)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "value": self.value, "unit": self.unit,
            "floor": self.floor.map(|(floor, _)| floor), "floor_is": self.floor.map(|(_, what)| what),
            "ratio": self.ratio(), "must": self.must, "aim": self.aim, "met": self.met(), "samples": self.samples,
        })
    }
}

/// What the rows share: a private store, and how many samples to take.
struct Lab<'a> {
    context: &'a Context,
    place: PathBuf,
    store: Store,
    samples: usize,
    filter: &'a [String],
    rows: Vec<Row>,
}

type Measured = Result<Duration, Problem>;

impl Lab<'_> {
    fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// Takes `samples` of both, in turn, after two of each that do not count.
    fn pair(
        &self,
        samples: usize,
        mut ours: impl FnMut() -> Measured,
        mut floor: impl FnMut() -> Measured,
    ) -> Result<(f64, f64), Problem> {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..samples + 2 {
            let (a, b) = (ours()?, floor()?);
            if round >= 2 {
                mine.push(a);
                theirs.push(b);
            }
        }
        Ok((median_us(mine), median_us(theirs)))
    }

    fn add(&mut self, row: Row) {
        let ratio = row.ratio().map_or(String::new(), |ratio| format!(", {ratio:.2} of the floor"));
        eprintln!("  {}: {:.1} {}{ratio}", row.name, row.value, row.unit);
        self.rows.push(row);
    }
}

fn median_us(mut samples: Vec<Duration>) -> f64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map_or(0.0, |middle| middle.as_secs_f64() * 1e6)
}

/// How long `work` takes.
fn timed<T>(work: impl FnOnce() -> Result<T, Problem>) -> Measured {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

fn failed(what: &str, error: impl std::fmt::Display) -> Problem {
    Problem::new(Class::Failure, "bench_failed", format!("{what}: {error}"))
}

/// Runs the benchmark.
pub(crate) fn bench(context: &Context, arguments: &args::Bench) -> Result<Reply, Problem> {
    let beside = context.dir().parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(beside).map_err(|error| io_problem("create", beside, &error))?;
    let place = tempfile::Builder::new()
        .prefix("esf-bench-")
        .tempdir_in(beside)
        .map_err(|error| io_problem("create a directory in", beside, &error))?;
    let dir = place.path().join("store");
    let store = Store::open_or_create(&dir).map_err(|error| error.problem())?;
    let mut lab = Lab {
        context,
        place: place.path().to_owned(),
        store,
        samples: arguments.samples as usize,
        filter: &arguments.filter,
        rows: Vec::new(),
    };
    eprintln!("measuring in {}", lab.place.display());
    // Those that leave much behind come last: what is deleted in the background slows what follows.
    sandbox::rows(&mut lab)?;
    wasi::rows(&mut lab)?;
    control::rows(&mut lab)?;
    if lab.wants("rollout_") {
        rollouts::rows(&mut lab)?;
    }
    storage::rows(&mut lab)?;
    queue::rows(&mut lab)?;
    let Lab { rows, store, .. } = lab;
    drop(store);
    Ok(reply(&rows))
}

fn reply(rows: &[Row]) -> Reply {
    let mut table =
        Table::new(&["ROW", "VALUE", "UNIT", "FLOOR", "RATIO", "MUST", "AIM", "MET", "SAMPLES", "FLOOR IS"]);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for row in rows {
        let met = match row.met() {
            None => "-",
            Some(true) => "yes",
            Some(false) => "NO",
        };
        table.row([
            row.name.to_owned(),
            format!("{:.1}", row.value),
            row.unit.to_owned(),
            row.floor.map_or("-".to_owned(), |(floor, _)| format!("{floor:.1}")),
            number(row.ratio()),
            number(row.must),
            number(row.aim),
            met.to_owned(),
            row.samples.to_string(),
            row.floor.map_or("-", |(_, what)| what).to_owned(),
        ]);
    }
    let values: Vec<Value> = rows.iter().map(Row::json).collect();
    let ids = rows.iter().map(|row| row.name.to_owned()).collect();
    Reply { value: json!({ "machine": machine(), "rows": values }), table, ids }
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    json!({
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "version": env!("CARGO_PKG_VERSION"),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}
