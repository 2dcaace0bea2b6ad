//! The arguments of programs that say how tokens are chosen.

use clap::Args;
use mlxcel_session::{Dry, DynamicTemperature, Mirostat, Model, SamplingParams, TokenId, Xtc};

use crate::Failure;

/// How tokens are sampled; greedy by default. Filters (from --dynamic-temperature to --mirostat-eta)
/// take effect at a temperature above 0.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArguments {
    /// Start from the checkpoint's generation_config.json; the arguments below override it
    #[arg(long)]
    checkpoint_sampling: bool,
    /// Draw tokens at this temperature; 0 takes the most likely one (default)
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Let the temperature follow the entropy of the distribution, by up to R to either side
    #[arg(long, value_name = "R", visible_alias = "dynatemp-range")]
    dynamic_temperature: Option<f32>,
    /// How the entropy maps to the dynamic temperature; 1 is linear
    #[arg(
        long,
        value_name = "E",
        visible_alias = "dynatemp-exponent",
        requires = "dynamic_temperature",
        default_value_t = 1.0
    )]
    dynamic_temperature_exponent: f32,
    /// Draw from tokens whose logits are within N standard deviations of the largest
    #[arg(long, value_name = "N")]
    top_n_sigma: Option<f32>,
    /// Draw from the K most likely tokens
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Draw from the most likely tokens whose probabilities reach P
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Draw from tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Draw from the tokens whose surprise is nearest to the entropy and whose probabilities reach P
    #[arg(long, value_name = "P")]
    typical_p: Option<f32>,
    /// Exclude the top choices, but for the least likely of them, with probability P
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// The probability that makes a token a top choice
    #[arg(long, value_name = "P", requires = "xtc_probability", default_value_t = 0.1)]
    xtc_threshold: f32,
    /// Hold the surprise of drawn tokens near TAU bits (Mirostat 2)
    #[arg(long, value_name = "TAU")]
    mirostat_tau: Option<f32>,
    /// How fast Mirostat learns
    #[arg(long, value_name = "ETA", requires = "mirostat_tau", default_value_t = 0.1)]
    mirostat_eta: f32,
    /// Make tokens that are there already less likely, by this factor
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f32>,
    /// Take this off the logit of each token that was generated
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Take this off the logit of a token for every time it was generated
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// How many of the last tokens these three penalties look at; defaults to all
    #[arg(long, value_name = "N")]
    penalty_window: Option<u32>,
    /// Let no run of N tokens occur twice
    #[arg(long, value_name = "N")]
    no_repeat_ngram: Option<u32>,
    /// Penalize going on with a repetition, with this strength (DRY)
    #[arg(long, value_name = "M")]
    dry_multiplier: Option<f32>,
    /// How the DRY penalty grows with each repeated token
    #[arg(long, value_name = "B", requires = "dry_multiplier", default_value_t = 1.75)]
    dry_base: f32,
    /// The shortest repetition that DRY penalizes, in tokens
    #[arg(long, value_name = "N", requires = "dry_multiplier", default_value_t = 2)]
    dry_allowed_length: u32,
    /// How many of the last tokens DRY looks at; defaults to all
    #[arg(long, value_name = "N", requires = "dry_multiplier")]
    dry_window: Option<u32>,
    /// A text across which DRY looks for no repetition; may be given several times [default: line break, colon, quotation mark, asterisk]
    #[arg(long, value_name = "TEXT", requires = "dry_multiplier")]
    dry_breaker: Vec<String>,
    /// Add BIAS to the logit of the token ID; may be given several times; -inf forbids it
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Choose only among these tokens
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    allowed_tokens: Option<Vec<TokenId>>,
    /// Never choose these tokens
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    forbidden_tokens: Vec<TokenId>,
    /// What draws depend on: the same seed gives the same text; `random` takes another one each time
    #[arg(long, value_name = "SEED", value_parser = seed, default_value = "0")]
    seed: Seed,
}

/// What draws depend on.
#[derive(Clone, Copy)]
enum Seed {
    Fixed(u64),
    Random,
}

impl SamplingArguments {
    /// The parameters for `model`.
    ///
    /// # Errors
    ///
    /// A failure where breakers are asked of a model without tokenizer.
    pub fn params(&self, model: &Model) -> Result<SamplingParams, Failure> {
        let mut params = match self.checkpoint_sampling {
            true => model.default_sampling().clone(),
            false => SamplingParams::greedy(),
        };
        params.temperature = self.temperature.unwrap_or(params.temperature);
        params.dynamic_temperature = self
            .dynamic_temperature
            .map(|range| DynamicTemperature::new(range).with_exponent(self.dynamic_temperature_exponent));
        params.top_n_sigma = self.top_n_sigma;
        params.top_k = self.top_k.or(params.top_k);
        params.top_p = self.top_p.or(params.top_p);
        params.min_p = self.min_p.or(params.min_p);
        params.typical_p = self.typical_p.or(params.typical_p);
        params.xtc = self.xtc_probability.map(|probability| Xtc::new(probability, self.xtc_threshold));
        params.mirostat = self.mirostat_tau.map(|tau| Mirostat::new(tau, self.mirostat_eta));
        params.repetition_penalty = self.repetition_penalty.or(params.repetition_penalty);
        params.presence_penalty = self.presence_penalty;
        params.frequency_penalty = self.frequency_penalty;
        params.penalty_window = self.penalty_window;
        params.no_repeat_ngram = self.no_repeat_ngram.or(params.no_repeat_ngram);
        params.dry = self.dry_multiplier.map(|multiplier| self.dry(multiplier, model)).transpose()?;
        params.logit_bias.clone_from(&self.logit_bias);
        params.allowed_tokens.clone_from(&self.allowed_tokens);
        params.forbidden_tokens.clone_from(&self.forbidden_tokens);
        Ok(match self.seed {
            Seed::Fixed(seed) => params.with_seed(seed),
            Seed::Random => params.with_random_seed(),
        })
    }

    fn dry(&self, multiplier: f32, model: &Model) -> Result<Dry, Failure> {
        let mut breakers = Vec::new();
        match model.tokenizer() {
            Ok(tokenizer) if self.dry_breaker.is_empty() => {
                // llama.cpp's.
                breakers
                    .extend(["\n", ":", "\"", "*"].iter().flat_map(|text| tokenizer.tokens_containing(text)));
            }
            // Without a tokenizer there is no text to break at.
            Err(_) if self.dry_breaker.is_empty() => {}
            tokenizer => {
                let tokenizer = tokenizer?;
                breakers.extend(self.dry_breaker.iter().flat_map(|text| tokenizer.tokens_containing(text)));
            }
        }
        let mut dry = Dry::new(multiplier)
            .with_base(self.dry_base)
            .with_allowed_length(self.dry_allowed_length)
            .with_breakers(breakers);
        dry.window = self.dry_window;
        Ok(dry)
    }
}

fn bias(text: &str) -> Result<(TokenId, f32), String> {
    let (token, bias) = text.split_once('=').ok_or("it must be a token id, an equals sign and a number")?;
    let token = token.trim().parse().map_err(|_| "a token id must be an integer")?;
    Ok((token, bias.trim().parse().map_err(|_| "a bias must be a number")?))
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "random" => Ok(Seed::Random),
        text => text.parse().map(Seed::Fixed).map_err(|_| "a seed must be an integer or `random`".to_owned()),
    }
}
