//! Progress bars for what takes long, on a terminal only.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_session::mlxcel_core::ProgressFn;
use mlxcel_session::{LoadOptions, LoadStage, Usage};

/// Shows compiling and loading on standard error where that is a terminal; clones share the bar.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The bar, and what it looks like.
    bar: Option<(&'static str, ProgressBar)>,
    closed: bool,
}

/// What is done to a checkpoint that is written.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Quantizing,
    Merging,
}

impl Progress {
    /// No bar yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Lets an engine report here.
    #[must_use]
    pub(crate) fn watch(&self, mut options: LoadOptions) -> LoadOptions {
        options.progress = self.reporter().or(options.progress);
        options
    }

    /// The progress display; none if standard error is not a terminal.
    pub(crate) fn reporter(&self) -> Option<ProgressFn> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let this = self.clone();
        Some(Arc::new(move |progress| this.show(template(progress.stage), progress.done, progress.total)))
    }

    /// Shows how many bytes of a checkpoint are written, in the bar of a [`Work`].
    pub(crate) fn show_written(&self, work: Work, done: u64, total: u64) {
        if std::io::stderr().is_terminal() {
            let template = match work {
                Work::Quantizing => "{spinner} quantizing {bar:30} {bytes}/{total_bytes} {elapsed}",
                Work::Merging => "{spinner} merging {bar:30} {bytes}/{total_bytes} {elapsed}",
            };
            self.show(Some(template), done, total);
        }
    }

    /// Takes the bar away and shows no other: text follows.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.clear();
    }

    /// Says how fast a text was generated, if standard error is a terminal.
    pub(crate) fn tell_speed(&self, usage: &Usage) {
        if let Some(rate) = usage.tokens_per_second().filter(|_| std::io::stderr().is_terminal()) {
            // If standard error cannot be written either, there is nowhere to report.
            let _ = writeln!(std::io::stderr(), "[{} tokens, {rate:.1} tok/s]", usage.generated_tokens);
        }
    }

    fn show(&self, template: Option<&'static str>, done: u64, total: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed || done >= total {
            return state.clear();
        }
        if state.bar.as_ref().map(|(shown, _)| *shown) != template {
            state.clear();
            state.bar = template.and_then(|template| Some((template, bar(template)?)));
        }
        if let Some((_, bar)) = &state.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl State {
    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// The style of a stage's progress bar; `None` for an unknown stage.
fn template(stage: LoadStage) -> Option<&'static str> {
    match stage {
        LoadStage::Compile => Some("{spinner} compiling {bar:30} {pos}/{len} programs {elapsed}"),
        LoadStage::Download => {
            Some("{spinner} fetching  {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        }
        LoadStage::Weights => Some("{spinner} loading   {bar:30} {bytes}/{total_bytes}"),
        _ => None,
    }
}

fn bar(template: &str) -> Option<ProgressBar> {
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(template).ok()?);
    bar.enable_steady_tick(Duration::from_millis(120));
    Some(bar)
}
