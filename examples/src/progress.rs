//! Progress bars for what takes long, on a terminal only.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_core::ProgressFn;
use mlxcel_session::{LoadOptions, LoadProgress, LoadStage};

/// Shows compiling and loading on standard error where that is a terminal; clones share the bar.
#[derive(Clone, Default)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    bar: Option<(LoadStage, ProgressBar)>,
    closed: bool,
}

impl Progress {
    /// No bar yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets an engine report here.
    #[must_use]
    pub fn watch(&self, mut options: LoadOptions) -> LoadOptions {
        options.progress = self.reporter().or(options.progress);
        options
    }

    /// What shows progress here; nothing where nobody would see it.
    pub fn reporter(&self) -> Option<ProgressFn> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let this = self.clone();
        Some(Arc::new(move |progress| this.show(progress)))
    }

    /// Takes the bar away and shows no other: text follows.
    pub fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.clear();
    }

    fn show(&self, progress: LoadProgress) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed || progress.done >= progress.total {
            return state.clear();
        }
        if state.bar.as_ref().is_none_or(|(stage, _)| *stage != progress.stage) {
            state.clear();
            state.bar = bar(progress.stage).map(|bar| (progress.stage, bar));
        }
        if let Some((_, bar)) = &state.bar {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
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

/// The bar of a stage; none for a stage that this program does not know.
fn bar(stage: LoadStage) -> Option<ProgressBar> {
    let template = match stage {
        LoadStage::Compile => "{spinner} compiling {bar:30} {pos}/{len} programs {elapsed}",
        LoadStage::Weights => "{spinner} loading   {bar:30} {bytes}/{total_bytes}",
        _ => return None,
    };
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(template).ok()?);
    bar.enable_steady_tick(Duration::from_millis(120));
    Some(bar)
}
