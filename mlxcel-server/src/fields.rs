//! Fields that chat and completions share: how far to generate, and how tokens are chosen.

use std::collections::BTreeMap;

use mlxcel_session::mlxcel_core::SamplingNumber;
use mlxcel_session::{Grammar, Options, TokenId};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::failure::ApiError;
use crate::kinds::{Field, Kind, Object};
use crate::limits::Limits;
use crate::served::ServedModel;

/// What a request says about its answer. Some fields are not OpenAI's; other servers have them by these
/// names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fields {
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    n: Option<u64>,
    pub(crate) stream: Option<bool>,
    stream_options: Option<Object<StreamOptions>>,
    stop: Option<OneOrMore>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<i64>,
    #[serde(flatten)]
    numbers: Numbers,
    ignore_eos: Option<bool>,
    response_format: Option<Value>,
    // What would change the answer, and is not there.
    functions: Option<Value>,
    best_of: Option<u64>,
    suffix: Option<String>,
}

/// The numbers of the sampling parameters that a request has, by their names.
#[derive(Clone, Debug, Default)]
struct Numbers(BTreeMap<&'static str, f64>);

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let mut numbers = BTreeMap::new();
        for number in SamplingNumber::ALL {
            let Some(value) = fields.get(number.name()).filter(|value| !value.is_null()) else { continue };
            let name = number.name();
            let value =
                if number.is_whole() { value.as_i64().map(|value| value as f64) } else { value.as_f64() };
            let value = value.ok_or_else(|| D::Error::custom(format!("{name} must be a number")))?;
            numbers.insert(name, value);
        }
        Ok(Self(numbers))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Fields {
    /// Their names and types.
    pub(crate) fn fields() -> impl Iterator<Item = Field> {
        const STREAM_OPTIONS: Kind = Kind::Object(&[Field::new("include_usage", Kind::Flag)]);
        const FIELDS: [Field; 11] = [
            Field::new("max_tokens", Kind::Count),
            Field::new("max_completion_tokens", Kind::Count),
            Field::new("n", Kind::Count),
            Field::new("stream", Kind::Flag),
            Field::new("stream_options", STREAM_OPTIONS),
            Field::new("stop", Kind::Either(&[Kind::Text, Kind::List(&Kind::Text)])),
            Field::new("logit_bias", Kind::Map(&Kind::Number)),
            Field::new("seed", Kind::Integer),
            Field::new("ignore_eos", Kind::Flag),
            Field::new("response_format", Kind::Any),
            Field::new("functions", Kind::Any),
        ];
        let numbers = SamplingNumber::ALL.iter().map(|number| {
            Field::new(number.name(), if number.is_whole() { Kind::Integer } else { Kind::Number })
        });
        FIELDS.into_iter().chain(numbers)
    }

    /// How many answers are wanted.
    fn choices(&self, most: u32) -> Result<u64, ApiError> {
        match self.n.unwrap_or(1) {
            n if (1..=u64::from(most)).contains(&n) => Ok(n),
            _ => Err(ApiError::invalid("n", format!("n must be from 1 to {most}"))),
        }
    }

    /// Whether no token at all is wanted.
    pub(crate) fn wants_none(&self) -> bool {
        self.max_completion_tokens.or(self.max_tokens) == Some(0)
    }

    /// Whether a stream is to end with what it took.
    pub(crate) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|Object(options)| options.include_usage).unwrap_or(false)
    }

    /// The options of each answer that is wanted.
    pub(crate) fn options(&self, app: &ServedModel, top: u16) -> Result<Vec<Options>, ApiError> {
        let first = self.first_options(app, top)?;
        let choices = (0..self.choices(app.limits().choices)?).map(|choice| {
            // What they share, such as a schema, is there once.
            let mut options = first.clone();
            let sampling = &mut options.sampling;
            match self.seed {
                // The answers of one request differ, and are the same for the next request with this seed.
                Some(seed) => sampling.seed = seed.cast_unsigned().wrapping_add(choice),
                None => *sampling = std::mem::take(sampling).with_random_seed(),
            }
            options
        });
        Ok(choices.collect())
    }

    /// The options of an answer, but for its seed.
    fn first_options(&self, app: &ServedModel, top: u16) -> Result<Options, ApiError> {
        let &Limits { stops, stop_bytes, biases, .. } = app.limits();
        self.refuse_what_is_not_there()?;
        let wanted = self.max_completion_tokens.or(self.max_tokens).unwrap_or(app.answer_tokens);
        let mut options = Options::new(wanted.min(app.answer_tokens))
            .with_time_limit(app.limits().time)
            .with_top_logprobs(top)
            .with_ignore_stop(self.ignore_eos.unwrap_or(false));
        options.skip_special_tokens = true;
        options.stop_strings = match &self.stop {
            None => Vec::new(),
            Some(OneOrMore::One(stop)) => vec![stop.clone()],
            Some(OneOrMore::More(stops)) => stops.clone(),
        };
        if options.stop_strings.len() > stops {
            return Err(ApiError::invalid("stop", format!("at most {stops} stop strings")));
        }
        if options.stop_strings.iter().map(String::len).sum::<usize>() > stop_bytes {
            return Err(ApiError::invalid("stop", format!("at most {stop_bytes} bytes of stop strings")));
        }
        if self.logit_bias.as_ref().is_some_and(|given| given.len() > biases) {
            return Err(ApiError::invalid("logit_bias", format!("at most {biases} tokens")));
        }
        options.sampling = app.sampling.clone();
        let sampling = &mut options.sampling;
        for number in SamplingNumber::ALL {
            if let Some(&value) = self.numbers.0.get(number.name()) {
                number.set(sampling, Some(value).filter(|&value| !number.is_off(value)))?;
            }
        }
        for (token, &bias) in self.logit_bias.iter().flatten() {
            let token: TokenId = token
                .parse()
                .map_err(|_| ApiError::invalid("logit_bias", "the keys of logit_bias must be token ids"))?;
            sampling.logit_bias.push((token, bias));
        }
        if let Some(grammar) = self.grammar()? {
            options = options.with_grammar(grammar);
        }
        Ok(options)
    }

    pub(crate) fn has_format(&self) -> bool {
        matches!(self.grammar(), Ok(Some(_)))
    }

    /// What the format of the answer is to be.
    fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let Some(format) = self.response_format.as_ref().filter(|format| !format.is_null()) else {
            return Ok(None);
        };
        match format["type"].as_str() {
            Some("text") => Ok(None),
            Some("json_object") => Ok(Some(Grammar::json_object())),
            Some("json_schema") if format["json_schema"]["schema"].is_object() => {
                Ok(Some(Grammar::json_schema(format["json_schema"]["schema"].clone())))
            }
            Some("json_schema") => Err(ApiError::invalid(
                "response_format",
                "json_schema must contain an object `schema` with the JSON schema",
            )),
            _ => Err(ApiError::invalid(
                "response_format",
                "the type of response_format must be text, json_object or json_schema",
            )),
        }
    }

    fn refuse_what_is_not_there(&self) -> Result<(), ApiError> {
        let given = |value: &Option<Value>| {
            value
                .as_ref()
                .is_some_and(|value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()))
        };
        for (param, given) in [
            ("functions", given(&self.functions)),
            ("best_of", self.best_of.is_some_and(|best_of| best_of != self.n.unwrap_or(1))),
            ("suffix", self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty())),
        ] {
            if given {
                return Err(ApiError::unsupported(param, param));
            }
        }
        Ok(())
    }
}
