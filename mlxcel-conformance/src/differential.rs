//! Differential testing of two engines on the same checkpoint.

use std::fmt;

use mlxcel_core::{
    Error, ErrorKind, Model, Result, Row, RowResult, SamplingPlan, SessionOptions, StepOutput, TokenId,
    TokenLogprob, Want,
};

use crate::outlook::{argmax, log_softmax, logits_error};
use crate::tolerance::{Bounds, Tolerance, largest};

/// The output of a model after a prompt, step by step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Trace {
    /// The logits after the prompt, if the engine claims them.
    pub prefill_logits: Option<Vec<f32>>,
    /// The generated steps.
    pub steps: Vec<TraceStep>,
}

/// One step of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TraceStep {
    /// The most likely token.
    pub token: TokenId,
    /// Its natural log probability.
    pub logprob: f32,
    /// Its margin over the second most likely token, in logits; `None` if the engine does not report it.
    pub margin: Option<f32>,
}

impl TraceStep {
    /// A step with the most likely token `token`.
    pub fn new(token: TokenId, logprob: f32, margin: Option<f32>) -> Self {
        Self { token, logprob, margin }
    }
}

impl Trace {
    /// A trace from another source: another library, or a recording.
    pub fn new(prefill_logits: Option<Vec<f32>>, steps: Vec<TraceStep>) -> Self {
        Self { prefill_logits, steps }
    }

    /// Traces `tokens` greedy tokens of `model` after `prompt`.
    ///
    /// # Errors
    ///
    /// Those of a session; [`ErrorKind::CapacityExceeded`] if prompt and tokens do not fit.
    pub fn of(model: &dyn Model, prompt: &[TokenId], tokens: usize) -> Result<Self> {
        Self::run(model, prompt, tokens, |_, own| own)
    }

    /// Traces `model` after `prompt` with `path` as the generated tokens (teacher forcing), so that steps
    /// after the first difference can be compared too.
    ///
    /// # Errors
    ///
    /// The errors of [`of`](Self::of).
    pub fn along(model: &dyn Model, prompt: &[TokenId], path: &[TokenId]) -> Result<Self> {
        Self::run(model, prompt, path.len(), |step, _| path[step])
    }

    /// The tokens.
    pub fn tokens(&self) -> Vec<TokenId> {
        self.steps.iter().map(|step| step.token).collect()
    }

    fn run(
        model: &dyn Model,
        prompt: &[TokenId],
        tokens: usize,
        feed: impl Fn(usize, TokenId) -> TokenId,
    ) -> Result<Self> {
        let mut session = model.open_session(&SessionOptions::default())?;
        let claimed = session.capabilities().clone();
        let sequence = session.open()?;
        let plan = SamplingPlan::greedy();
        let next = Want::token(&plan).with_top(claimed.top_logprobs.min(2));
        let mut trace = Self { prefill_logits: None, steps: Vec::with_capacity(tokens) };
        let mut pending = prompt.to_vec();
        let mut out = StepOutput::new();
        for number in 0..tokens {
            let want = if number == 0 && claimed.logits { Want::logits() } else { next };
            session.step(&[Row::new(sequence, &pending, want)], &Default::default(), &mut out)?;
            let step = match out.take().pop() {
                Some(Ok(result @ RowResult::Logits(_))) => {
                    let logits = result.into_logits()?;
                    let step = of_logits(&logits)?;
                    trace.prefill_logits = Some(logits);
                    step
                }
                Some(Ok(result @ RowResult::Tokens(_))) => {
                    let chosen = result.into_token()?;
                    let margin = match &chosen.top[..] {
                        [first, second] => Some(first.logprob - second.logprob),
                        _ => None,
                    };
                    TraceStep::new(chosen.token, chosen.logprob, margin)
                }
                Some(Err(error)) => return Err(error),
                _ => return Err(broken("the engine returned another kind of result than a row wanted")),
            };
            pending = vec![feed(number, step.token)];
            trace.steps.push(step);
        }
        session.close(sequence)?;
        Ok(trace)
    }
}

fn of_logits(logits: &[f32]) -> Result<TraceStep> {
    let best = argmax(logits, |_| true).ok_or_else(|| broken("the engine returned no logits"))?;
    let second = argmax(logits, |token| token != best);
    let margin = second.map(|second| logits[best as usize] - logits[second as usize]);
    Ok(TraceStep::new(best, log_softmax(logits, best), margin))
}

fn broken(message: &'static str) -> Error {
    Error::new(ErrorKind::Internal, "trace a model", message)
}

/// A step at which two engines chose different tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Divergence {
    /// The step, counted from 0.
    pub step: usize,
    /// The first engine's token.
    pub a: TokenLogprob,
    /// The second engine's token.
    pub b: TokenLogprob,
    /// The first engine's margin over its second most likely token; the second engine's if the first does
    /// not report it.
    pub margin: Option<f32>,
}

/// One prompt on two engines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// How many steps were compared.
    pub steps: usize,
    /// The largest magnitude among the first one's logits after the prompt, or else the second's; none if
    /// neither returns logits.
    pub largest_logit: Option<f32>,
    /// The largest difference of the logits after the prompt, relative to the largest magnitude; none if one
    /// of the two returns no logits. Infinite for vocabularies of different sizes.
    pub logits_error: Option<f32>,
    /// The largest difference of log probabilities, of the steps where both chose the same token.
    pub logprob_error: f32,
    /// The steps with different tokens.
    pub divergences: Vec<Divergence>,
    tolerance: Tolerance,
}

impl Comparison {
    /// Compares the traces of two engines after the same prompt, the second [along](Trace::along) the path of
    /// the first.
    pub fn new(a: &Trace, b: &Trace, tolerance: &Tolerance) -> Self {
        let steps = a.steps.len().min(b.steps.len());
        let shown = a.prefill_logits.as_ref().or(b.prefill_logits.as_ref());
        let mut comparison = Self {
            steps,
            largest_logit: shown.map(|logits| largest(logits)),
            logits_error: a
                .prefill_logits
                .as_ref()
                .zip(b.prefill_logits.as_ref())
                .map(|(expected, logits)| logits_error(logits, expected).unwrap_or(f32::INFINITY)),
            logprob_error: 0.0,
            divergences: Vec::new(),
            tolerance: *tolerance,
        };
        for (number, (a, b)) in a.steps.iter().zip(&b.steps).enumerate() {
            if a.token == b.token {
                let error = (a.logprob - b.logprob).abs();
                // NaN counts as the largest difference.
                let error = if error.is_nan() { f32::INFINITY } else { error };
                comparison.logprob_error = comparison.logprob_error.max(error);
            } else {
                comparison.divergences.push(Divergence {
                    step: number,
                    a: TokenLogprob { token: a.token, logprob: a.logprob },
                    b: TokenLogprob { token: b.token, logprob: b.logprob },
                    margin: a.margin.or(b.margin),
                });
            }
        }
        comparison
    }

    /// The first step at which the tokens differ.
    pub fn first_divergence(&self) -> Option<&Divergence> {
        self.divergences.first()
    }

    /// Whether everything is within the tolerance: tokens may differ only if the margin is below the
    /// tolerated one.
    pub fn passed(&self) -> bool {
        let Bounds { margin, logprob } = self.tolerance.bounds(self.largest_logit);
        let excused = |divergence: &Divergence| divergence.margin.is_some_and(|lead| lead < margin);
        self.logits_error.is_none_or(|error| error <= self.tolerance.logits)
            && self.logprob_error <= logprob
            && self.divergences.iter().all(excused)
    }
}

/// The comparisons of two engines, one per prompt; prints as a table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Differential {
    /// The name of the first engine, whose tokens both are fed.
    pub a: String,
    /// The name of the second.
    pub b: String,
    /// The tolerance.
    pub tolerance: Tolerance,
    /// One comparison per prompt.
    pub comparisons: Vec<Comparison>,
}

impl Differential {
    /// Comparisons of `a` with `b`, from elsewhere.
    pub fn new(
        a: impl Into<String>,
        b: impl Into<String>,
        tolerance: Tolerance,
        comparisons: Vec<Comparison>,
    ) -> Self {
        Self { a: a.into(), b: b.into(), tolerance, comparisons }
    }

    /// Whether every comparison is within the tolerance; false if nothing was compared.
    pub fn passed(&self) -> bool {
        let compared = self.comparisons.iter().any(|comparison| comparison.steps > 0);
        compared && self.comparisons.iter().all(Comparison::passed)
    }
}

impl fmt::Display for Differential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tolerance { margin, logprob, logits, .. } = self.tolerance;
        writeln!(
            f,
            "{} and {}, relative to the largest logit: logits within {logits:.0e}, log probabilities within \
             {logprob:.0e}, tokens equal where the lead is {margin:.0e} or more",
            self.a, self.b
        )?;
        writeln!(f, "prompt  tokens   largest    logits   logprob  differ  first difference")?;
        for (number, comparison) in self.comparisons.iter().enumerate() {
            let logits = comparison.logits_error.map_or("-".to_owned(), |error| format!("{error:.1e}"));
            let largest = comparison.largest_logit.map_or("-".to_owned(), |largest| format!("{largest:.1}"));
            write!(
                f,
                "{number:>6}  {:>6}  {largest:>8}  {logits:>8}  {:>8}  {:>6}  ",
                comparison.steps,
                format!("{:.1e}", comparison.logprob_error),
                comparison.divergences.len(),
            )?;
            match comparison.first_divergence() {
                None => f.write_str("none")?,
                Some(Divergence { step, a, b, margin }) => write!(
                    f,
                    "step {step}: {} ({:.4}), {} ({:.4}), lead {}",
                    a.token,
                    a.logprob,
                    b.token,
                    b.logprob,
                    margin.map_or("unknown".to_owned(), |margin| format!("{margin:.1e}"))
                )?,
            }
            writeln!(f, "{}", if comparison.passed() { "" } else { "  FAILED" })?;
        }
        f.write_str(if self.passed() { "they agree" } else { "they disagree" })
    }
}

/// Compares two engines that loaded the same checkpoint: for each prompt the logits after it, and tokens and
/// log probabilities of `tokens` greedy steps along the first engine's text.
///
/// ```
/// use mlxcel_conformance::{Tolerance, differential};
/// use mlxcel_core::reference::ReferenceBackend;
///
/// let (a, b) = (ReferenceBackend::new().model()?, ReferenceBackend::new().with_chunk(3).model()?);
/// let report = differential(&*a, &*b, &[vec![1, 2, 3, 4, 5]], 8, &Tolerance::NONE)?;
/// assert!(report.passed(), "{report}");
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] if the vocabularies differ in size, and the errors of [`Trace::of`].
pub fn differential(
    a: &dyn Model,
    b: &dyn Model,
    prompts: &[Vec<TokenId>],
    tokens: usize,
    tolerance: &Tolerance,
) -> Result<Differential> {
    let sizes = [a, b].map(|model| model.info().vocabulary_size);
    if sizes[0] != sizes[1] {
        let message = "the vocabularies differ in size";
        return Err(Error::new(ErrorKind::InvalidInput, "compare engines", message)
            .with_context("vocabulary_size", format_args!("{} and {}", sizes[0], sizes[1])));
    }
    let comparisons = prompts
        .iter()
        .map(|prompt| {
            let first = Trace::of(a, prompt, tokens)?;
            let second = Trace::along(b, prompt, &first.tokens())?;
            Ok(Comparison::new(&first, &second, tolerance))
        })
        .collect::<Result<_>>()?;
    Ok(Differential::new(&a.info().backend, &b.info().backend, *tolerance, comparisons))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_core::reference::ReferenceBackend;

    fn step(token: TokenId, margin: f32) -> TraceStep {
        TraceStep::new(token, -1.0, Some(margin))
    }

    #[test]
    fn the_first_difference_is_reported_unless_its_margin_is_within_rounding() {
        let a = Trace::new(None, vec![step(1, 3.0), step(2, 1e-5), step(3, 2.0)]);
        let b = Trace::new(None, vec![step(1, 3.0), step(9, 1e-5), step(3, 2.0)]);
        let comparison = Comparison::new(&a, &b, &Tolerance::new(1e-4, 1e-3, 1e-4));
        let first = comparison.first_divergence().unwrap();
        assert_eq!((first.step, first.a.token, first.b.token, first.margin), (1, 2, 9, Some(1e-5)));
        assert!(comparison.passed());
        assert!(!Comparison::new(&a, &b, &Tolerance::NONE).passed());
        let c = Trace::new(None, vec![step(1, 3.0), step(2, 1e-5), step(4, 2.0)]);
        assert!(!Comparison::new(&a, &c, &Tolerance::new(1e-4, 1e-3, 1e-4)).passed());
    }

    #[test]
    fn a_comparison_of_nothing_fails() {
        let tolerance = Tolerance::new(1e-4, 1e-3, 1e-4);
        let trace = |steps| Trace::new(None, steps);
        let nothing = Comparison::new(&trace(vec![]), &trace(vec![step(1, 3.0)]), &tolerance);
        let something = Comparison::new(&trace(vec![step(1, 3.0)]), &trace(vec![step(1, 3.0)]), &tolerance);
        let passed = |comparisons| Differential::new("a", "b", tolerance, comparisons).passed();
        assert!(!passed(vec![]) && !passed(vec![nothing.clone()]));
        assert!(passed(vec![nothing, something]));
    }

    #[test]
    fn log_probabilities_and_logits_beyond_the_tolerance_fail() {
        let tolerance = Tolerance::new(1e-4, 1e-3, 1e-4);
        let a = Trace::new(Some(vec![1.0, -2.0]), vec![step(0, 3.0)]);
        let mut b = a.clone();
        b.steps[0].logprob += 3e-3;
        assert!(!Comparison::new(&a, &b, &tolerance).passed());
        b.steps[0].logprob = f32::NAN;
        assert!(!Comparison::new(&a, &b, &tolerance).passed());
        let mut b = a.clone();
        b.prefill_logits = Some(vec![1.0, -2.001]);
        assert!(!Comparison::new(&a, &b, &tolerance).passed());
        b.prefill_logits = Some(vec![1.0]);
        assert_eq!(Comparison::new(&a, &b, &tolerance).logits_error, Some(f32::INFINITY));
    }

    #[test]
    fn other_weights_disagree_and_other_vocabularies_are_rejected() {
        let model = |backend: ReferenceBackend| backend.model().unwrap();
        let a = model(ReferenceBackend::new());
        let b = model(ReferenceBackend::new().with_weights_seed(1));
        let tolerance = Tolerance::new(1e-4, 1e-3, 1e-4);
        let report = differential(&*a, &*b, &[vec![1, 2], vec![3]], 4, &tolerance).unwrap();
        assert!(!report.passed());
        assert!(report.to_string().ends_with("they disagree"), "{report}");
        let c = model(ReferenceBackend::new().with_vocabulary(63));
        let error = differential(&*a, &*c, &[vec![1]], 1, &tolerance).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
