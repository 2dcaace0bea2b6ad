//! Drafting by a draft head of the model.

use std::fmt;
use std::sync::Arc;

use mlxcel_core::{
    Backend, Control, Error, ErrorKind, InferenceSession, InferenceSessionExt, LoadOptions, ModelPart,
    ModelSource, Result, Row, SamplingPlan, SequenceId, SessionOptions, StepOutput, TokenId, Want,
};

use mlxcel_hub as hub;

use super::{DraftContext, DraftSource, Drafter};

/// The most hidden states that wait to be read. Of more, the last half is kept, and the head reads that part of
/// the text.
const MOST_WAITING: usize = 4096;

/// The most tokens of a row of which all states are computed for the sake of the last.
const SHORT: usize = 16;

/// Drafts tokens with a draft head: a layer that reads the model's hidden states and has learned which tokens
/// come after the next. The model's checkpoint stores it (multi-token prediction, Gloeckle et al., 2024;
/// DeepSeek-V3, Qwen3.5, GLM-4.5), or another checkpoint that was trained for the model (EAGLE-3, Li et al.,
/// 2025). It drafts the most likely tokens.
///
/// The model has to be opened with [`OpenOptions::with_draft_head`](crate::OpenOptions::with_draft_head), and
/// [`Model::draft_head`](crate::Model::draft_head) returns its head:
///
/// ```no_run
/// use mlxcel_session::{Model, OpenOptions, Options, Speculation};
///
/// let model = Model::open_with("Qwen/Qwen3.5-0.8B", &OpenOptions::default().with_draft_head())?;
/// let speculation = Speculation::new(model.draft_head()?);
/// let options = Options::new(200).with_speculation(speculation);
/// println!("{}", model.generate("The sea", &options)?.complete()?.text);
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
///
/// [`OpenOptions::with_draft_head_from`](crate::OpenOptions::with_draft_head_from) takes the head of another checkpoint.
#[derive(Clone)]
pub struct DraftHead(Arc<dyn mlxcel_core::Model>);

impl DraftHead {
    /// Drafts with `head`, which was loaded as [`ModelPart::DraftHead`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for another model.
    pub fn new(head: Arc<dyn mlxcel_core::Model>) -> Result<Self> {
        let capabilities = head.capabilities();
        let (input, output) = (capabilities.input_states, capabilities.output_states);
        if input.is_some() && input == output && capabilities.rewind {
            return Ok(Self(head));
        }
        let message = "this model is no draft head; load it with `ModelPart::DraftHead`";
        Err(Error::new(ErrorKind::InvalidInput, "open draft head", message)
            .with_context("model_type", head.info().model_type.escape_debug()))
    }

    /// Loads the draft head of a model with the engine and the options of the model, from the model's
    /// checkpoint or [another](LoadOptions::draft_head).
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`]: [`ErrorKind::NotFound`] if the checkpoint has no draft head,
    /// [`ErrorKind::Unsupported`] if those of its family, or of the engine, are not supported,
    /// [`ErrorKind::InvalidInput`] if the head was trained for another model.
    pub fn load(backend: &dyn Backend, source: &ModelSource, options: &LoadOptions) -> Result<Self> {
        Self::new(backend.load(source, &Self::options(options))?)
    }

    /// These options of a model with the place of the head's checkpoint, which may be a name.
    pub(crate) fn located(model: &LoadOptions) -> Result<LoadOptions> {
        let head = model.draft_head.clone().map(|head| hub::locate(head, model)).transpose()?;
        let mut options = model.clone();
        options.draft_head = head;
        Ok(options)
    }

    /// How the head of a model with these options is loaded. Each generation has a session of its own.
    pub(crate) fn options(model: &LoadOptions) -> LoadOptions {
        let mut options = model.clone().with_part(ModelPart::DraftHead).with_sequences(1);
        options.adapters = None;
        options
    }
}

impl fmt::Debug for DraftHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DraftHead").field(self.0.info()).finish()
    }
}

impl DraftSource for DraftHead {
    fn drafter(&self, context: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        let (vocabulary, width) = (self.0.info().vocabulary_size, self.0.capabilities().input_states);
        if context.output_states.is_none() {
            let message = "a draft head reads the model's hidden states; open the model with `OpenOptions::with_draft_head`";
            return Err(Error::unsupported("speculate", message).with_context("capability", "output_states"));
        }
        if vocabulary != context.vocabulary_size || width != context.output_states {
            let message = "the draft head belongs to another model";
            return Err(Error::new(ErrorKind::InvalidInput, "speculate", message)
                .with_context("head_vocabulary", vocabulary)
                .with_context("vocabulary", context.vocabulary_size));
        }
        let plan = SamplingPlan::greedy();
        let mut session = self.0.open_session(&SessionOptions::default())?;
        let sequence = session.open()?;
        let (width, waiting) = (width.unwrap_or_default(), Vec::new());
        Ok(Box::new(Head { session, sequence, plan, width, first: 0, held: 0, waiting }))
    }
}

/// A draft head at a text. Its row for a position is the state at that position with the token after it.
struct Head {
    session: Box<dyn InferenceSession>,
    sequence: SequenceId,
    plan: SamplingPlan,
    /// The elements of a state.
    width: usize,
    /// The position of the first row that its sequence holds.
    first: usize,
    /// How many rows it holds.
    held: usize,
    /// The states of the positions after those, `[positions, width]`.
    waiting: Vec<f32>,
}

impl Head {
    /// The position of the first state that waits.
    fn next(&self) -> usize {
        self.first + self.held
    }

    /// Leaves out what lies before `position`.
    fn begin_at(&mut self, position: usize) {
        let left_out = position.saturating_sub(self.next());
        self.waiting.drain(..(left_out * self.width).min(self.waiting.len()));
        (self.first, self.held) = (position, 0);
    }

    /// Feeds `tokens` with their `states`, and returns the token that follows the last with the state there.
    fn feed(&mut self, tokens: &[TokenId], states: &[f32]) -> Result<(TokenId, Vec<f32>)> {
        let (control, mut out) = (Control::default(), StepOutput::new());
        // Nobody reads the states of what is fed ahead.
        let ahead = if tokens.len() > SHORT { tokens.len() - 1 } else { 0 };
        let (tokens_ahead, tokens) = tokens.split_at(ahead);
        let (states_ahead, states) = states.split_at(ahead * self.width);
        if ahead > 0 {
            let row = Row::extend(self.sequence, tokens_ahead).with_states(states_ahead);
            self.session.run_row(row, &control)?;
        }
        let want = Want::token(&self.plan).with_states();
        let row = Row::new(self.sequence, tokens, want).with_states(states);
        self.session.step(&[row], &control, &mut out)?;
        let states = out.take_states(0).unwrap_or_default();
        let token = out.take_only("draft")?.into_token()?;
        let last = states.len().checked_sub(self.width).map(|start| states[start..].to_vec());
        let missing = || Error::new(ErrorKind::Internal, "draft", "the engine did not return hidden states");
        Ok((token.token, last.ok_or_else(missing)?))
    }
}

impl Drafter for Head {
    fn reads_states(&self) -> bool {
        true
    }

    fn add_states(&mut self, first: usize, states: &[f32]) {
        let positions = states.len() / self.width.max(1);
        let (next, end) = (self.next(), self.next() + self.waiting.len() / self.width.max(1));
        if first > end {
            // What lies between was computed for another generation.
            self.waiting.clear();
            self.begin_at(first);
        }
        // What was fed is of accepted tokens; what waits may be of draft tokens that were rejected.
        let kept = first.saturating_sub(self.next());
        let known = next.saturating_sub(first).min(positions);
        self.waiting.truncate(kept * self.width);
        self.waiting.extend_from_slice(&states[known * self.width..]);
        let waiting = self.waiting.len() / self.width.max(1);
        if waiting > MOST_WAITING {
            self.begin_at(self.next() + waiting - MOST_WAITING / 2);
        }
    }

    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        // The last token was not fed to the model yet, so the state before it is the last one.
        let end = tokens.len().saturating_sub(1);
        let count = end.saturating_sub(self.next());
        if most == 0 || count == 0 || count * self.width > self.waiting.len() {
            return Ok(Vec::new());
        }
        let capacity = self.session.capabilities().context;
        let most = most.min(capacity.saturating_sub(self.held + count - 1));
        if most == 0 {
            return Ok(Vec::new());
        }
        let held = self.session.state(self.sequence)?.position;
        if held > self.held {
            self.session.rewind(self.sequence, self.held)?;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let first = self.next() + 1;
        let (token, mut state) = self.feed(&tokens[first..first + count], &waiting[..count * self.width])?;
        waiting.drain(..count * self.width);
        self.waiting = waiting;
        self.held += count;
        let mut drafts = vec![token];
        while drafts.len() < most {
            let last = drafts[drafts.len() - 1];
            let (token, next) = self.feed(&[last], &state)?;
            drafts.push(token);
            state = next;
        }
        Ok(drafts)
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::reference::ReferenceBackend;

    use super::*;

    /// A head of states with one element, which is the position.
    fn head() -> Head {
        let model = ReferenceBackend::new().model().unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let sequence = session.open().unwrap();
        let plan = SamplingPlan::greedy();
        Head { session, sequence, plan, width: 1, first: 0, held: 0, waiting: Vec::new() }
    }

    fn add(head: &mut Head, positions: std::ops::Range<usize>) {
        let states: Vec<f32> = positions.clone().map(|position| position as f32).collect();
        head.add_states(positions.start, &states);
    }

    /// The positions that wait, each with its own state.
    fn waiting(head: &Head) -> std::ops::Range<usize> {
        let next = head.next();
        let own = |(index, state): (usize, &f32)| *state == (next + index) as f32;
        assert!(head.waiting.iter().enumerate().all(own), "{:?} from {next} on", head.waiting);
        next..next + head.waiting.len()
    }

    #[test]
    fn states_wait_in_order_whatever_is_rejected_computed_again_or_missing() {
        let mut head = head();
        add(&mut head, 0..10);
        add(&mut head, 7..12);
        assert_eq!(waiting(&head), 0..12, "three draft tokens were rejected");
        head.waiting.drain(..8);
        head.held = 8;
        add(&mut head, 0..11);
        assert_eq!(waiting(&head), 8..11, "the text was computed again, and eight of its tokens were read");
        add(&mut head, 20..25);
        assert_eq!((waiting(&head), head.held), (20..25, 0), "what lies between is not known");
        add(&mut head, 12..22);
        assert_eq!(waiting(&head), 20..22);
    }

    #[test]
    fn few_states_wait_and_are_seldom_moved() {
        let mut head = head();
        let mut moved = 0;
        for position in 0..20_000 {
            let first = head.first;
            add(&mut head, position..position + 1);
            moved += usize::from(head.first > first);
            assert!(head.waiting.len() <= MOST_WAITING);
        }
        assert_eq!(waiting(&head).end, 20_000);
        assert!(moved < 10, "{moved} times");
    }
}
