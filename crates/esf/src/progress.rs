//! Progress of long work on stderr: a bar on a terminal, a line now and then elsewhere, nothing for
//! work that is over in a moment.

use std::time::Duration;

use esf_layerstack::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over entries and bytes.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar that says `what` is going on.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template("{spinner} {prefix}: {human_pos} entries, {msg}, {elapsed}")
            .expect("the template is a constant");
        bar.set_style(style);
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        Self(bar)
    }
}

impl Progress for Bar {
    fn total(&self, entries: u64, _bytes: u64) {
        self.0.set_length(entries);
    }

    fn advance(&self, entries: u64, bytes: u64) {
        self.0.inc(entries);
        if bytes > 0 {
            self.0.set_message(esf_core::units::show_size(bytes));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
