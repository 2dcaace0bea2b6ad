//! Texts that are computed for their hidden states or log probabilities, many in each step.

use mlxcel_core::{
    CancelToken, Capabilities, Control, Error, ErrorKind, Pooling, Result, Row, RowResult, SequenceId,
    SessionOptions, StepOutput, TokenId, Want,
};

use mlxcel_models::text_head::TextHead;

use crate::model::Model;

/// A text, or a part of one, in a sequence of its own.
#[derive(Clone, Debug)]
pub(crate) struct TextRow {
    /// Fed first, for nothing in return.
    pub(crate) before: Vec<TokenId>,
    /// Whose result is wanted; not empty.
    pub(crate) tokens: Vec<TokenId>,
    /// The types of the latter; empty if all are 0.
    pub(crate) types: Vec<u8>,
    pub(crate) answer: TextAnswer,
}

/// What is wanted of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TextAnswer {
    Hidden(Pooling),
    /// Of each token.
    EachHidden,
    /// After the last token.
    Logits,
    /// With this many of the most likely tokens.
    Likelihoods(u16),
}

impl TextAnswer {
    /// What a head is applied to.
    pub(crate) fn of(head: &TextHead) -> Self {
        head.pooling().map_or(Self::EachHidden, Self::Hidden)
    }
}

impl TextRow {
    /// The row of a text whose tokens are all asked about.
    pub(crate) fn new(tokens: Vec<TokenId>, answer: TextAnswer) -> Self {
        Self { before: Vec::new(), tokens, types: Vec::new(), answer }
    }

    /// The row of the tokens fed first.
    pub(crate) fn first(&self, sequence: SequenceId) -> Row<'_> {
        Row::extend(sequence, &self.before)
    }

    /// The row whose result is wanted.
    pub(crate) fn row(&self, sequence: SequenceId) -> Row<'_> {
        match self.answer {
            TextAnswer::Hidden(pooling) => {
                Row::hidden(sequence, &self.tokens, pooling).with_token_types(&self.types)
            }
            TextAnswer::EachHidden => Row::each_hidden(sequence, &self.tokens).with_token_types(&self.types),
            TextAnswer::Logits => Row::logits(sequence, &self.tokens),
            TextAnswer::Likelihoods(top) => Row::new(sequence, &self.tokens, Want::likelihoods(top)),
        }
    }

    /// How many tokens it has.
    pub(crate) fn len(&self) -> usize {
        self.before.len() + self.tokens.len()
    }
}

/// The order in which texts are computed, so that little of a pass is padding. Rows of a decoder are as long
/// as their pass: those of about the same length go together. Encoders compute texts one behind the other:
/// as many as there are sequences are of all lengths, so that short ones fill what long ones leave.
pub(crate) fn in_order(texts: &[TextRow], capabilities: &Capabilities) -> Vec<usize> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(texts[index].len()));
    if capabilities.generation {
        return order;
    }
    let groups = texts.len().div_ceil(capabilities.sequences.max(1));
    (0..groups).flat_map(|group| order.iter().skip(group).step_by(groups).copied()).collect()
}

/// The results of `texts`, in order, computed in a session of their own.
pub(crate) fn run(model: &Model, texts: &[TextRow], cancel: Option<&CancelToken>) -> Result<Vec<RowResult>> {
    let mut session = model.engine().open_session(&SessionOptions::default())?;
    let (together, rewinds) = (session.capabilities().sequences.max(1), session.capabilities().rewind);
    let mut results: Vec<Option<RowResult>> = texts.iter().map(|_| None).collect();
    let (mut sequences, mut out): (Vec<SequenceId>, _) = (Vec::new(), StepOutput::new());
    for group in in_order(texts, session.capabilities()).chunks(together) {
        if rewinds {
            // The memory of a sequence serves the next text.
            sequences.iter().try_for_each(|&sequence| session.rewind(sequence, 0))?;
        } else {
            sequences.drain(..).try_for_each(|sequence| session.close(sequence))?;
        }
        while sequences.len() < group.len() {
            sequences.push(session.open()?);
        }
        let rows = || group.iter().map(|&index| &texts[index]).zip(&sequences);
        let first = rows().filter(|(text, _)| !text.before.is_empty());
        let first: Vec<_> = first.map(|(text, &sequence)| text.first(sequence)).collect();
        if !first.is_empty() {
            session.step(&first, &control(cancel), &mut out)?;
            out.take().into_iter().try_for_each(|result| result.map(drop))?;
        }
        let rows: Vec<_> = rows().map(|(text, &sequence)| text.row(sequence)).collect();
        session.step(&rows, &control(cancel), &mut out)?;
        for (&index, result) in group.iter().zip(out.take()) {
            results[index] = Some(result?);
        }
    }
    complete(results)
}

/// What interrupts a step.
pub(crate) fn control(cancel: Option<&CancelToken>) -> Control<'_> {
    cancel.map(Control::cancelled_by).unwrap_or_default()
}

/// All results, of which none may be missing.
pub(crate) fn complete(results: Vec<Option<RowResult>>) -> Result<Vec<RowResult>> {
    results.into_iter().collect::<Option<_>>().ok_or_else(|| {
        Error::new(ErrorKind::Internal, "compute texts", "the engine did not return one result per row")
    })
}

/// The only one of the results of one text.
pub(crate) fn only<T>(mut results: Vec<T>) -> Result<T> {
    results.pop().ok_or_else(wrong_kind)
}

/// The error for a result that does not answer its row.
pub(crate) fn wrong_kind() -> Error {
    Error::new(ErrorKind::Internal, "compute texts", "the engine returned a result of the wrong kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_encoders_that_share_a_step_have_all_lengths() {
        let text = |length| TextRow::new(vec![0; length], TextAnswer::Logits);
        let texts: Vec<_> = [3, 9, 4, 8, 5].map(text).into();
        let decoder = Capabilities::new(2, 16);
        assert_eq!(in_order(&texts, &decoder), [1, 3, 4, 2, 0]);
        let encoder = decoder.with_generation(false);
        // Groups of two, and one: the lengths 9 and 4, 8 and 3, 5.
        assert_eq!(in_order(&texts, &encoder), [1, 2, 3, 0, 4]);
        assert!(in_order(&[], &encoder).is_empty());
    }
}
