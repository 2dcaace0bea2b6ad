//! A compiled grammar that follows a text.

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use mlxcel_core::{Error, ErrorKind, Result, TokenId, TokenMask};

use crate::constraint::Constraint;

/// Follows one text.
pub(super) struct Follower {
    matcher: Matcher,
    vocabulary: usize,
    /// The mask for the first token, which was computed to see whether there is one.
    first: Option<TokenMask>,
}

impl Follower {
    /// At the beginning of a text of a model with this many tokens.
    pub(super) fn new(matcher: Matcher, vocabulary: usize) -> Result<Self> {
        let mut this = Self { matcher, vocabulary, first: None };
        let nothing = || super::invalid("no text of this vocabulary can match the grammar");
        let first = match this.mask() {
            Ok(first) if first.is_empty() => return Err(nothing()),
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(nothing()),
            first => first?,
        };
        this.first = Some(first);
        Ok(this)
    }

    /// One for another text, at its beginning too.
    pub(super) fn for_another(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), vocabulary: self.vocabulary, first: self.first.clone() }
    }
}

/// The state of a text. A failed matcher only keeps its error message.
fn failed(fault: &anyhow::Error) -> Error {
    let said = fault.to_string();
    let said = said.strip_suffix(" <non-verbose/>").unwrap_or(&said).to_owned();
    // What panicked says nothing of the text.
    if said.contains("panic") {
        let reason = "the grammar exceeds what can be followed; simplify it";
        return Error::new(ErrorKind::TooComplex, "constrain text", reason);
    }
    let exceeds = ["lexer error:", "parser error:", "Parser Error:"].iter().any(|of| said.starts_with(of));
    let (kind, reason) = if exceeds && !said.contains("doesn't satisfy the grammar") {
        (ErrorKind::TooComplex, "the grammar exceeds the limits of time or memory; simplify it")
    } else {
        (ErrorKind::InvalidInput, "the text does not follow the grammar")
    };
    Error::new(kind, "constrain text", reason).with_source(said)
}

impl Constraint for Follower {
    fn mask(&mut self) -> Result<TokenMask> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        match self.matcher.compute_mask_or_eos() {
            Ok(mask) => Ok(of_bits(&mask, self.vocabulary)),
            Err(fault) => Err(failed(&fault)),
        }
    }

    fn accept(&mut self, token: TokenId) -> Result<()> {
        self.first = None;
        self.matcher.consume_token(token).map_err(|fault| failed(&fault))
    }

    fn forced(&mut self) -> Result<Vec<TokenId>> {
        if self.matcher.is_stopped() {
            return Ok(Vec::new());
        }
        Ok(self.matcher.compute_ff_tokens())
    }

    fn masks_ahead(&mut self, draft_tokens: &[TokenId]) -> Result<Vec<TokenMask>> {
        // What fails there says nothing of the text.
        let mut ahead = self.matcher.deep_clone();
        let mut masks = Vec::with_capacity(draft_tokens.len());
        for &draft in draft_tokens {
            if ahead.consume_token(draft).is_err()
                || ahead.is_stopped()
                || !ahead.compute_ff_tokens().is_empty()
            {
                break;
            }
            let mask = ahead.compute_mask().ok().map(|mask| of_bits(&mask, self.vocabulary));
            let Some(mask) = mask.filter(|mask| !mask.is_empty()) else { break };
            masks.push(mask);
        }
        Ok(masks)
    }

    fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }
}

fn of_bits(mask: &SimpleVob, vocabulary: usize) -> TokenMask {
    let words = mask.as_slice().chunks(2).map(|pair| match *pair {
        [low, high] => u64::from(low) | u64::from(high) << 32,
        _ => pair.first().copied().map_or(0, u64::from),
    });
    TokenMask::from_words(vocabulary, words.collect())
}
