//! What a bundle is written with.

use mlxcel_core::{Error, ErrorKind, LoadOptions, Result};

/// What [`write()`](super::write) is asked for; start from [`BundleOptions::default`], or from what the model is to be opened with
/// (`BundleOptions::from`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BundleOptions {
    /// What models are to be opened with from the bundle: the rounding of its programs, the most tokens that one sequence may hold (the
    /// model's own limit by default; each doubling beyond 1,024 takes programs of its own), how many sequences a session may
    /// hold at once (defaults to 1; programs are needed for each number of rows).
    ///
    /// Its `progress` is told how many programs are compiled, then how many bytes of the checkpoint are copied; its `cancel` stops writing
    /// at the next boundary, and nothing is left behind. Threads, device and what is prepared are for whoever opens the bundle to
    /// say, and refused here.
    pub load: LoadOptions,
    /// What to compile for: targets as [`CompileTarget`](mlxcel_iree_target::CompileTarget) reads them, such as `llvm-cpu:x86-64-v3`,
    /// or [`STABLEHLO`](mlxcel_iree_target::manifest::STABLEHLO); defaults to this machine's processor.
    pub targets: Vec<String>,
    /// Whether results at every position may be asked for ([`Want::EveryPosition`](mlxcel_core::Want::EveryPosition)): half as
    /// many programs more. Not by default.
    pub every_position: bool,
    /// Whether guesses may be verified ([`Want::Verify`](mlxcel_core::Want::Verify)), which is what speculative decoding needs: four
    /// programs more for each length and one sequence, nine for four. Not by default.
    pub verification: bool,
    /// Whether hidden states may be asked for ([`Want::Hidden`](mlxcel_core::Want::Hidden)): as many programs more as there are
    /// without results at every position. Not by default.
    pub hidden_states: bool,
    /// Whether the weights go into the bundle; they do by default.
    pub weights: bool,
    /// Whether the weights are also written as the programs take them, so that a model is opened by mapping them: by default, where the
    /// weights go into the bundle and one target alone wants them in another order of bytes than the checkpoint's.
    pub laid_out_weights: bool,
    /// Whether a bundle that is there already is replaced; it is an error by default.
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
    /// Sets what to compile for.
    #[must_use]
    pub fn with_targets(mut self, targets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.targets = targets.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whether results at every position may be asked for.
    #[must_use]
    pub fn with_every_position(mut self, every_position: bool) -> Self {
        self.every_position = every_position;
        self
    }

    /// Sets whether guesses may be verified.
    #[must_use]
    pub fn with_verification(mut self, verification: bool) -> Self {
        self.verification = verification;
        self
    }

    /// Sets whether hidden states may be asked for.
    #[must_use]
    pub fn with_hidden_states(mut self, hidden_states: bool) -> Self {
        self.hidden_states = hidden_states;
        self
    }

    /// Sets whether the weights go into the bundle.
    #[must_use]
    pub fn with_weights(mut self, weights: bool) -> Self {
        self.weights = weights;
        self
    }

    /// Sets whether the weights are also written as the programs take them, which takes their size once more.
    #[must_use]
    pub fn with_laid_out_weights(mut self, laid_out_weights: bool) -> Self {
        self.laid_out_weights = laid_out_weights;
        self
    }

    /// Sets whether a bundle that is there already is replaced.
    #[must_use]
    pub fn with_replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }
}

/// The targets of a list with commas between them, as a command line gives it. Features of a target stand behind commas too,
/// and begin with a sign: `llvm-cpu:x86-64-v3,+avx512f,cuda:sm_89` are two targets.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] for an empty entry, and for a feature in front of all targets.
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
    fn features_stay_with_their_target() {
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
