//! Finds the added tokens of a tokenizer in a text with trusted and untrusted parts.
//!
//! A control token spelled out in a message is text, not a control token. The search in the crate
//! `tokenizers` accepts either all special tokens of a text or none. This one considers where each part comes
//! from and is otherwise the same: it first searches the unnormalized text, then the normalized remainder for
//! other tokens, leftmost-longest.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use tokenizers::normalizer::Range as In;
use tokenizers::{AddedToken, NormalizedString, Token};

use std::collections::HashMap;
use std::ops::Range;

use mlxcel_core::TokenId;

use mlxcel_template::{Origin, Origins};

/// How often a word is cut, since what it is made of holds a control token, before it is given up.
const MOST_CUTS: usize = 16;

/// An added token.
pub(super) struct Known {
    pub(super) id: TokenId,
    pub(super) token: AddedToken,
    /// How it looks in a normalized text.
    pub(super) normal_form: String,
}

/// The added tokens, and where they may stand.
pub(super) struct AddedTokens {
    in_text: Finder,
    in_normalized: Finder,
    /// Those that may not stand in every part of a text, with how they are written.
    control: HashMap<TokenId, (Origin, [String; 2])>,
}

/// A part of a text: a token, or the text between two.
type Part = (Range<usize>, Option<TokenId>);

impl AddedTokens {
    /// Special tokens are taken from what the template wrote alone; those that it spells out (`is_marker`),
    /// such as `<think>`, from the model's answers as well; others from any text.
    pub(super) fn new(added: Vec<Known>, is_marker: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut control = HashMap::new();
        let (mut in_text, mut in_normalized) = (Vec::new(), Vec::new());
        for Known { id, token, normal_form } in added {
            let content = token.content.clone();
            let least = if token.special {
                Origin::Template
            } else if !content.trim().is_empty() && is_marker(&content) {
                Origin::Answer
            } else {
                Origin::Input
            };
            if least < Origin::Input {
                control.insert(id, (least, [content.clone(), normal_form.clone()]));
            }
            let (found, pattern) =
                if token.normalized { (&mut in_normalized, normal_form) } else { (&mut in_text, content) };
            if !pattern.is_empty() {
                found.push((pattern, Sought { id, token, least }));
            }
        }
        Ok(Self { in_text: Finder::new(in_text)?, in_normalized: Finder::new(in_normalized)?, control })
    }

    /// The tokens in a text as it stands, and what is between them.
    pub(super) fn split(
        &self,
        text: NormalizedString,
        origins: &Origins,
        normalized: bool,
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let finder = if normalized { &self.in_normalized } else { &self.in_text };
        let parts = finder.parts(text.get(), &Places { text: &text, origins });
        let slices = parts.into_iter().filter_map(|(range, id)| {
            let slice = text.slice(In::Normalized(range))?;
            let token = id.map(|id| vec![Token::new(id, String::new(), (0, slice.get().len()))]);
            Some((slice, token))
        });
        slices.collect()
    }

    /// Tokenizes a word, whose vocabulary may hold what control tokens are written as: it is cut within
    /// those.
    pub(super) fn tokenize(
        &self,
        word: &NormalizedString,
        origins: &Origins,
        model: impl Fn(&str) -> tokenizers::Result<Vec<Token>>,
    ) -> tokenizers::Result<Vec<Token>> {
        let (text, places) = (word.get(), Places { text: word, origins });
        let mut cuts = vec![0, text.len()];
        for _ in 0..MOST_CUTS {
            let mut tokens = Vec::new();
            let mut more = Vec::new();
            for bounds in cuts.windows(2) {
                let part = &text[bounds[0]..bounds[1]];
                for token in model(part)? {
                    more.extend(self.cut(&token, part, bounds[0], &places));
                    tokens.push(token);
                }
            }
            if more.is_empty() {
                return Ok(tokens);
            }
            cuts.extend(more);
            cuts.sort_unstable();
            cuts.dedup();
        }
        Err("a message contains a control token that cannot be encoded as text".into())
    }

    /// Where `part`, which begins at `start`, is cut so that `token` is not in it; none where it may be.
    fn cut(&self, token: &Token, part: &str, start: usize, places: &Places<'_>) -> Option<usize> {
        let (least, spellings) = self.control.get(&token.id)?;
        let (from, to) = token.offsets;
        let written = part.get(from..to)?;
        // An unknown word is a token, too, and is not written like that.
        let spelled = spellings.iter().any(|spelling| spelling.trim() == written.trim());
        if !spelled || places.worst(start + from..start + to) <= *least {
            return None;
        }
        let lead = written.len() - written.trim_start().len();
        let first = written[lead..].chars().next()?;
        Some(start + from + lead + first.len_utf8())
    }
}

/// Where the parts of a normalized text come from.
struct Places<'t> {
    text: &'t NormalizedString,
    origins: &'t Origins,
}

impl Places<'_> {
    /// The least trusted origin of a part; that of a part that cannot be found in the text as it was given is
    /// not trusted.
    fn worst(&self, range: Range<usize>) -> Origin {
        let shift = self.text.offsets_original().0;
        let Some(found) = self.text.convert_offsets(In::Normalized(range)) else { return Origin::Input };
        let parts = self.origins.parts(found.start + shift..found.end + shift);
        parts.map(|(_, origin)| origin).max().unwrap_or(Origin::Input)
    }
}

/// A search for tokens.
struct Finder {
    automaton: Option<AhoCorasick>,
    sought: Vec<Sought>,
}

struct Sought {
    id: TokenId,
    token: AddedToken,
    /// The least trusted origin of a text that it is taken from.
    least: Origin,
}

impl Finder {
    fn new(sought: Vec<(String, Sought)>) -> Result<Self, String> {
        let (patterns, sought): (Vec<_>, Vec<_>) = sought.into_iter().unzip();
        if sought.is_empty() {
            return Ok(Self { automaton: None, sought });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Both)
            // Its memory grows with the patterns alone.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(patterns)
            .map_err(|error| error.to_string())?;
        Ok(Self { automaton: Some(automaton), sought })
    }

    /// The tokens of `text`, and what is between them.
    fn parts(&self, text: &str, places: &Places<'_>) -> Vec<Part> {
        let mut parts = Vec::new();
        let (mut given, mut next) = (0, 0);
        while let Some((found, mut range)) = self.find(text, next, places) {
            next = range.end;
            if found.token.single_word && !is_word_alone(text, &range) {
                continue;
            }
            if found.token.lstrip {
                range.start = text[..range.start].trim_end().len().max(given);
            }
            if found.token.rstrip {
                range.end = text.len() - text[range.end..].trim_start().len();
                next = range.end;
            }
            if given < range.start {
                parts.push((given..range.start, None));
            }
            given = range.end;
            parts.push((range, Some(found.id)));
        }
        if given < text.len() {
            parts.push((given..text.len(), None));
        }
        parts
    }

    /// The next token that may stand where it is spelled.
    fn find(&self, text: &str, from: usize, places: &Places<'_>) -> Option<(&Sought, Range<usize>)> {
        let automaton = self.automaton.as_ref()?;
        let mut from = from;
        loop {
            let mut found = automaton.find(Input::new(text).range(from..))?;
            let start = found.start();
            loop {
                let (sought, range) = (&self.sought[found.pattern()], found.range());
                if sought.least == Origin::Input || places.worst(range.clone()) <= sought.least {
                    return Some((sought, range));
                }
                // A shorter one may lie within a part that is trusted.
                let shorter = Input::new(text).range(start..range.end - 1).anchored(Anchored::Yes);
                match automaton.find(shorter) {
                    Some(shorter) => found = shorter,
                    None => break,
                }
            }
            from = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
}

/// Whether no letter or digit is next to `range`.
fn is_word_alone(text: &str, range: &Range<usize>) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    !text[..range.start].ends_with(is_word) && !text[range.end..].starts_with(is_word)
}
