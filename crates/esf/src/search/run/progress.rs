//! How a run tells where it is: on a terminal a line that is kept current, elsewhere a line now and then;
//! what is worth remembering on lines of its own above it. All on stderr.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use esf_core::search::Search;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::printable;

/// Between two lines where stderr is no terminal.
const EVERY: Duration = Duration::from_secs(10);

/// Where lines are told; shared by everything that has something to say.
pub(super) struct Tell {
    bar: Option<ProgressBar>,
    began: Instant,
    accepted_before: u64,
    reused: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl Tell {
    /// Begins to tell of a run that goes on from `accepted_before` rollouts.
    pub(super) fn new(accepted_before: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("a constant");
            bar.set_style(style);
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self {
            bar,
            began: Instant::now(),
            accepted_before,
            reused: AtomicU64::new(0),
            told: Mutex::new(None),
        }
    }

    /// A line of its own.
    pub(super) fn line(&self, text: &str) {
        let line = || eprintln!("esf: {}", printable(text));
        match &self.bar {
            Some(bar) => bar.suspend(line),
            None => line(),
        }
    }

    /// Counts a state that was known, and so was not evaluated.
    pub(super) fn reused(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    /// Where the search is now.
    pub(super) fn at(&self, search: &Search, best: Option<f64>, live: usize) {
        let text = || self.text(search, best, live);
        match &self.bar {
            Some(bar) => bar.set_message(text()),
            None => {
                let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                if told.is_none_or(|at| at.elapsed() >= EVERY) {
                    *told = Some(Instant::now());
                    eprintln!("esf: {}", text());
                }
            }
        }
    }

    /// The same as a last line.
    pub(super) fn end(&self, search: &Search, best: Option<f64>) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("esf: {}", self.text(search, best, 0));
    }

    fn text(&self, search: &Search, best: Option<f64>, live: usize) -> String {
        let budget = search.config.budget.rollouts.map_or(String::new(), |budget| format!("/{budget}"));
        let best = best.map_or_else(|| "none yet".to_owned(), |best| format!("{best:.3}"));
        let since = self.began.elapsed().as_secs_f64().max(0.001);
        let rate = (search.accepted.saturating_sub(self.accepted_before)) as f64 / since;
        let reused = match self.reused.load(Ordering::Relaxed) {
            0 => String::new(),
            reused => format!(", {reused} known and not evaluated again"),
        };
        let void = if search.void > 0 { format!(", {} void", search.void) } else { String::new() };
        let live = if live > 0 { format!(", {live} live") } else { String::new() };
        format!("{}{budget} rollouts{void}{reused}, best {best}{live}, {rate:.1}/s", search.accepted)
    }
}
