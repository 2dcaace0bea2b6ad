//! The section `normalizer`.

use serde_json::Value;
use tokenizers::pattern::Pattern as Find;
use tokenizers::utils::SysRegex;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, Offsets};

use super::charsmap;
use super::steps::{
    MOST_GROWTH, Pattern, Steps, growth_of_replacement, parse, pattern, prefix, text, unknown,
};

const LIST: &str = "normalizers";

/// What is done to a text before it is split.
pub(super) struct Normalizers(Vec<Step>);

enum Step {
    Plain(NormalizerWrapper),
    /// A regular expression and the replacement of its matches.
    Replace(SysRegex, String),
}

/// Normalizers, and what they can do to the length of a text.
pub(super) struct Normalization {
    pub(super) normalizers: Option<Normalizers>,
    pub(super) growth: usize,
    pub(super) shrinks: bool,
}

impl Normalization {
    pub(super) fn read(section: Option<&Value>) -> Result<Self, String> {
        let mut shrinks = false;
        let steps = Steps::read(section, LIST, MOST_GROWTH, |kind, value| {
            shrinks |= !matches!(kind, "Prepend" | "ByteLevel" | "Replace");
            let growth = match kind {
                // The factors of Unicode's normal forms in UTF-8.
                "NFC" | "NFD" => 3,
                "NFKC" | "NFKD" => 11,
                "Bert" | "BertNormalizer" | "Strip" | "StripAccents" | "Lowercase" | "Nmt" => 3,
                "ByteLevel" => 2,
                "Prepend" => 1 + prefix(text(value, "prepend")?)?,
                "Precompiled" => {
                    let (normalizer, longest) = charsmap::read(text(value, "precompiled_charsmap")?)?;
                    return Ok((Step::Plain(NormalizerWrapper::Precompiled(normalizer)), longest));
                }
                "Replace" => {
                    let (pattern, content) = (pattern(value)?, text(value, "content")?);
                    let growth = growth_of_replacement(&pattern, content);
                    let Pattern::Expression(expression) = pattern else {
                        shrinks |= growth <= 1;
                        return Ok((Step::Plain(parse(value)?), growth));
                    };
                    shrinks = true;
                    let expression = SysRegex::new(expression).map_err(|error| error.to_string())?;
                    return Ok((Step::Replace(expression, content.to_owned()), growth));
                }
                _ => return Err(unknown(LIST, kind)),
            };
            Ok((Step::Plain(parse(value)?), growth))
        })?;
        let normalizers = if steps.steps.is_empty() { None } else { Some(Normalizers(steps.steps)) };
        Ok(Self { normalizers, growth: steps.growth, shrinks })
    }
}

impl Normalizer for Normalizers {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        for step in &self.0 {
            match step {
                // An empty text has nothing to replace, and some steps panic on it.
                _ if text.is_empty() => return Ok(()),
                Step::Plain(normalizer) => normalizer.normalize(text)?,
                Step::Replace(expression, content) => {
                    let mut matches = expression.find_matches(text.get())?;
                    // The crate panics at a match of nothing.
                    matches.retain(|((start, end), _)| start < end);
                    text.replace(Found(matches), content)?;
                }
            }
        }
        Ok(())
    }
}

/// Matches that were found.
struct Found(Vec<(Offsets, bool)>);

impl Find for Found {
    fn find_matches(&self, _: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        Ok(self.0.clone())
    }
}
