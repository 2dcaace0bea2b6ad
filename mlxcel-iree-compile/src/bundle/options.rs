//! Options of writing bundles.

use mlxcel_core::{AdapterLimits, Error, ErrorKind, LoadOptions, ModelSource, Result};
use mlxcel_models::AdapterWeights;

use super::staging::OPERATION;

/// Options of [`write()`](super::write); start from [`BundleOptions::default`], or convert [`LoadOptions`]
/// with `BundleOptions::from`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BundleOptions {
    /// The options that models are later opened with: precision, capacity (defaults to the model's limit;
    /// each doubling beyond 1,024 needs more programs), and the number of sequences (defaults to 1;
    /// programs are compiled for each number of rows).
    ///
    /// With `adapters` the programs have that room; each opened model has all of it.
    ///
    /// `progress` reports compiled programs, then copied bytes; `cancel` stops writing and removes partial
    /// output. `threads`, `device` and `prepare` are rejected here, since they are set when the bundle
    /// is opened.
    pub load: LoadOptions,
    /// The compile targets, in the syntax of [`CompileTarget`](mlxcel_iree_target::CompileTarget), such as
    /// `llvm-cpu:x86-64-v3`, or [`STABLEHLO`](mlxcel_iree_target::manifest::STABLEHLO); defaults to this
    /// machine's processor.
    pub targets: Vec<String>,
    /// Whether to support results at every position
    /// ([`Answer::Likelihoods`](mlxcel_core::Answer::Likelihoods)), which needs half as many programs
    /// again. Defaults to false.
    pub every_position: bool,
    /// Whether to support verification ([`Positions::Drafts`](mlxcel_core::Positions::Drafts)), for
    /// speculative decoding, which needs four more programs per KV-length bucket for one sequence, or
    /// nine for four. Defaults to false.
    pub verification: bool,
    /// Whether to support hidden states ([`Answer::Hidden`](mlxcel_core::Answer::Hidden)), which doubles the
    /// programs without results at every position. Defaults to false.
    pub hidden_states: bool,
    /// The adapters to put into the bundle, by name: letters, digits, `.`, `_` and `-`. Applications load
    /// them from `adapters/NAME` of the bundle's folder. Without room in `load` there is as much as they
    /// need.
    pub adapters: Vec<(String, ModelSource)>,
    /// Whether the bundle contains the weights; defaults to true.
    pub weights: bool,
    /// Whether to also write the weights in the layout of the programs, so that opening only maps them.
    /// Applies if the bundle contains the weights and exactly one target needs another layout than the
    /// checkpoint's. Defaults to true.
    pub laid_out_weights: bool,
    /// Whether to replace an existing bundle; defaults to false, which is an error if there is one.
    pub replace: bool,
}

impl From<LoadOptions> for BundleOptions {
    /// A bundle to be opened with `load`, for this machine's processor.
    fn from(load: LoadOptions) -> Self {
        Self {
            load,
            targets: Vec::new(),
            every_position: false,
            verification: false,
            hidden_states: false,
            adapters: Vec::new(),
            weights: true,
            laid_out_weights: true,
            replace: false,
        }
    }
}

impl Default for BundleOptions {
    fn default() -> Self {
        Self::from(LoadOptions::default())
    }
}

impl BundleOptions {
    mlxcel_core::setters! {
        /// Sets the compile targets.
        with_targets(targets: impl IntoIterator<Item = impl Into<String>>) => targets = targets.into_iter().map(Into::into).collect();
        /// Sets whether to support results at every position.
        with_every_position(every_position: bool) => every_position = every_position;
        /// Sets whether to support verification of draft tokens.
        with_verification(verification: bool) => verification = verification;
        /// Sets whether to support hidden states.
        with_hidden_states(hidden_states: bool) => hidden_states = hidden_states;
        /// Sets whether the bundle contains the weights.
        with_weights(weights: bool) => weights = weights;
        /// Sets whether to also write the weights in the layout of the programs, which doubles their size on
        /// disk.
        with_laid_out_weights(laid_out_weights: bool) => laid_out_weights = laid_out_weights;
        /// Sets whether to replace an existing bundle.
        with_replace(replace: bool) => replace = replace;
    }

    /// Puts an adapter into the bundle.
    #[must_use]
    pub fn with_adapter(mut self, name: impl Into<String>, adapter: impl Into<ModelSource>) -> Self {
        self.adapters.push((name.into(), adapter.into()));
        self
    }

    /// The room for adapters: that of `load`, or as much as those in the bundle need.
    pub(super) fn room(&self) -> Result<Option<AdapterLimits>> {
        let invalid = |message: &'static str, field: &'static str| {
            Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", field)
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        for (index, (name, _)) in self.adapters.iter().enumerate() {
            let is_name = !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain);
            if !is_name || self.adapters.iter().take(index).any(|(other, _)| other == name) {
                let message = "adapters have different names of letters, digits, '.', '_' and '-'";
                return Err(invalid(message, "adapters").with_context("adapter", name.escape_debug()));
            }
        }
        let ranks = self.adapters.iter().map(|(_, source)| AdapterWeights::rank(source));
        let rank = ranks.collect::<Result<Vec<_>>>()?.into_iter().max();
        let room = self.load.adapters.or(rank.map(|rank| AdapterLimits::new(self.adapters.len(), rank)));
        let Some(AdapterLimits { slots, rank, .. }) = room else { return Ok(None) };
        let figures = [
            ("adapter_slots", slots, AdapterLimits::MAX_SLOTS),
            ("adapter_rank", rank, AdapterLimits::MAX_RANK),
        ];
        match figures.into_iter().find(|(_, figure, most)| !(1..=*most).contains(figure)) {
            Some((field, ..)) => Err(invalid("the room for adapters is out of range", field)),
            None => Ok(room),
        }
    }
}

/// Parses a comma-separated list of targets, as on a command line. Features of a target are also separated by
/// commas and begin with a sign: `llvm-cpu:x86-64-v3,+avx512f,cuda:sm_89` are two targets.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] for an empty entry, or a feature before the first target.
pub fn split_targets(list: &str) -> Result<Vec<String>> {
    let invalid = |message: &'static str| {
        Error::new(ErrorKind::InvalidInput, "read a list of targets", message)
            .with_context("targets", list.escape_debug())
    };
    let mut targets: Vec<String> = Vec::new();
    for part in list.split(',').map(str::trim) {
        match (part.starts_with(['+', '-']), targets.last_mut()) {
            _ if part.is_empty() => return Err(invalid("a target has no name")),
            (true, None) => return Err(invalid("a feature needs a target in front of it")),
            (true, Some(target)) => {
                target.push(',');
                target.push_str(part);
            }
            (false, _) => targets.push(part.to_owned()),
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_features_apply_to_their_own_target() {
        let list = |text: &str| split_targets(text).unwrap();
        assert_eq!(list("llvm-cpu:host"), ["llvm-cpu:host"]);
        assert_eq!(
            list("llvm-cpu:x86-64-v3,+avx512f,-fma, cuda:sm_89,stablehlo"),
            ["llvm-cpu:x86-64-v3,+avx512f,-fma", "cuda:sm_89", "stablehlo"]
        );
        for wrong in ["", ",", "a:b,", "+f", "+f,a:b"] {
            assert_eq!(split_targets(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
        }
    }
}
