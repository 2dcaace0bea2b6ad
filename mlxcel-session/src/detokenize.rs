//! Incremental detokenization: token ids to text, whole characters at a time.

use mlxcel_core::{Result, TokenId};

use crate::tokenizer::Tokenizer;

/// How many tokens of a prompt are decoded along with what follows it: enough for the longest character.
const CONTEXT: usize = 8;

/// How many tokens may wait for the end of a character. Four complete any; a model that sends only broken
/// ones must not be decoded again from their beginning at every token.
const MOST_HELD: usize = 256;

/// Decodes tokens incrementally.
///
/// The text of a token depends on the tokens before it: a character may span several tokens, and many
/// tokenizers write a word's leading space only within a text. So each call decodes a window of the last
/// tokens and returns what is new in it. Text that may still change, a trailing U+FFFD, is held back. The
/// pieces concatenate to the text of all tokens.
///
/// ```no_run
/// use mlxcel_session::{Detokenizer, Tokenizer};
///
/// let tokenizer = Tokenizer::open("models/llama")?;
/// let mut detokenizer = Detokenizer::new(tokenizer, true);
/// for token in [791, 11, 220] {
///     if let Some(piece) = detokenizer.push(token)? {
///         print!("{piece}");
///     }
/// }
/// print!("{}", detokenizer.finish()?.unwrap_or_default());
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    /// The last tokens: some whose text was given, for context, then those whose text was not, or not all of
    /// it.
    window: Vec<TokenId>,
    /// How many tokens of the window are context.
    context: usize,
    /// How many bytes of the window's text were given.
    given: usize,
    /// How many of the last tokens left a character unfinished, one after the other.
    unfinished: usize,
}

impl Detokenizer {
    /// Starts a text. `skip_special_tokens` omits special tokens, except those that mark
    /// [reasoning](Tokenizer::reasoning).
    pub fn new(tokenizer: Tokenizer, skip_special_tokens: bool) -> Self {
        Self { tokenizer, skip_special_tokens, window: Vec::new(), context: 0, given: 0, unfinished: 0 }
    }

    /// Starts after the tokens of `prompt`, so that a space between the prompt and the first piece is kept.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`].
    pub fn after(tokenizer: Tokenizer, skip_special_tokens: bool, prompt: &[TokenId]) -> Result<Self> {
        let mut this = Self::new(tokenizer, skip_special_tokens);
        this.window.extend_from_slice(&prompt[prompt.len().saturating_sub(CONTEXT)..]);
        this.context = this.window.len();
        this.given = complete(&this.text()?).len();
        Ok(this)
    }

    /// Adds a token and returns the new text that can no longer change, if any.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`].
    pub fn push(&mut self, token: TokenId) -> Result<Option<String>> {
        self.window.push(token);
        let text = self.text()?;
        let whole = complete(&text);
        self.unfinished = if whole.len() == text.len() { 0 } else { self.unfinished + 1 };
        if self.unfinished == 0 || self.unfinished > MOST_HELD {
            self.unfinished = 0;
            return self.advance(&text);
        }
        let piece = whole.get(self.given..).filter(|piece| !piece.is_empty()).map(str::to_owned);
        self.given = self.given.max(whole.len());
        Ok(piece)
    }

    /// Ends the text and returns the withheld text because the last token left a character incomplete.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<Option<String>> {
        let text = self.text()?;
        self.advance(&text)
    }

    /// Gives the rest of `text`, which is final, and moves the window on.
    fn advance(&mut self, text: &str) -> Result<Option<String>> {
        let piece = text.get(self.given..).filter(|piece| !piece.is_empty()).map(str::to_owned);
        // Tokens without text are not context: a word after them would lose its space.
        if piece.is_some() || self.held() > MOST_HELD {
            self.window.drain(..self.context);
            self.context = self.window.len();
            self.given = self.text()?.len();
        }
        Ok(piece)
    }

    /// How many tokens' text was not given, or not all of it.
    fn held(&self) -> usize {
        self.window.len() - self.context
    }

    /// The tokenizer.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn text(&self) -> Result<String> {
        self.tokenizer.decode_marked(&self.window, self.skip_special_tokens)
    }
}

/// The part of `text` that no further token changes.
fn complete(text: &str) -> &str {
    text.trim_end_matches('\u{FFFD}')
}
