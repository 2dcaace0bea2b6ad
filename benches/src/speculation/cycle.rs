//! A repeating text, whatever the weights: masks confine it to a cycle of tokens.

use mlxcel_core::TokenMask;
use mlxcel_session::{Constraint, ConstraintSource, Model, Result, TokenId};

/// A text that repeats these tokens. Each is sampled, under a mask that allows only the next one.
#[derive(Clone, Debug)]
pub(super) struct Cycle(pub(super) Vec<TokenId>);

impl ConstraintSource for Cycle {
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        let vocabulary = model.info().vocabulary_size;
        Ok(Box::new(Place { tokens: self.0.clone(), vocabulary, place: 0 }))
    }
}

/// A text's position in its cycle.
struct Place {
    tokens: Vec<TokenId>,
    vocabulary: usize,
    place: usize,
}

impl Place {
    /// The token `ahead` places further on.
    fn token(&self, ahead: usize) -> TokenId {
        self.tokens[(self.place + ahead) % self.tokens.len()]
    }

    fn mask_ahead(&self, ahead: usize) -> TokenMask {
        TokenMask::allowing(self.vocabulary, [self.token(ahead)])
    }
}

impl Constraint for Place {
    fn mask(&mut self) -> Result<TokenMask> {
        Ok(self.mask_ahead(0))
    }

    fn accept(&mut self, _: TokenId) -> Result<()> {
        self.place += 1;
        Ok(())
    }

    fn masks_ahead(&mut self, guesses: &[TokenId]) -> Result<Vec<TokenMask>> {
        let right = guesses.iter().enumerate().take_while(|&(ahead, &guess)| self.token(ahead) == guess);
        Ok(right.map(|(ahead, _)| self.mask_ahead(ahead + 1)).collect())
    }

    fn is_complete(&mut self) -> bool {
        false
    }
}
