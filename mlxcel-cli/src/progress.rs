//! Progress bars for what takes long, on a terminal only.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use mlxcel_quantize::WriteOptions;
use mlxcel_session::mlxcel_core::ProgressFn;
use mlxcel_session::{LoadOptions, LoadStage, Usage};

/// Shows compiling and loading on standard error where that is a terminal; clones share the bars.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    terminal: MultiProgress,
    /// What goes on, by what its bar looks like: an engine compiles and loads side by side.
    bars: Vec<(&'static str, ProgressBar)>,
    closed: bool,
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

    /// How a checkpoint is written, with a bar that looks like `template` if standard error is a terminal.
    pub(crate) fn write_options(
        &self,
        template: &'static str,
        restart: bool,
        threads: Option<usize>,
    ) -> WriteOptions {
        let mut options = WriteOptions::default().with_restart(restart);
        options.threads = threads;
        if std::io::stderr().is_terminal() {
            let this = self.clone();
            options = options.with_progress(move |done, total| this.show(Some(template), done, total));
        }
        options
    }

    /// Takes the bars away and shows no other: text follows.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.bars.drain(..).for_each(|(_, bar)| bar.finish_and_clear());
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
        let Some(template) = template.filter(|_| !state.closed) else { return };
        let shown = state.bars.iter().position(|(shown, _)| *shown == template);
        if done >= total {
            if let Some(shown) = shown {
                state.bars.remove(shown).1.finish_and_clear();
            }
            return;
        }
        let bar = match shown {
            Some(shown) => state.bars[shown].1.clone(),
            None => {
                let Some(new) = bar(template, &state.terminal) else { return };
                state.bars.push((template, new.clone()));
                new
            }
        };
        bar.set_length(total);
        bar.set_position(done);
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

fn bar(template: &str, terminal: &MultiProgress) -> Option<ProgressBar> {
    let style = ProgressStyle::with_template(template).ok()?;
    let bar = terminal.add(ProgressBar::no_length().with_style(style));
    bar.enable_steady_tick(Duration::from_millis(120));
    Some(bar)
}
