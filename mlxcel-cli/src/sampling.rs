//! The arguments of programs that say how tokens are chosen.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use mlxcel_session::mlxcel_core::SamplingNumber;
use mlxcel_session::{Dry, Model, SamplingParams, TokenId};

use crate::numbers;
use crate::report::{Failure, note};

/// Names in llama.cpp and mlx-lm of arguments that have another name here.
const ALIASES: [(&str, &str); 4] = [
    ("temperature", "temp"),
    ("repetition_penalty", "repeat-penalty"),
    ("dynamic_temperature", "dynatemp-range"),
    ("dynamic_temperature_exponent", "dynatemp-exponent"),
];

/// The number that makes a choice random; without it, filters have no effect.
const TEMPERATURE: &str = "temperature";

/// The numbers among the parameters: an argument for each, in the order of [`SamplingNumber::ALL`].
struct Numbers(Vec<Option<f64>>);

impl Args for Numbers {
    fn augment_args(command: Command) -> Command {
        SamplingNumber::ALL.iter().fold(command, |command, number| command.arg(argument(number)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(number: &'static SamplingNumber) -> Arg {
    let mut help = number.about().replace('`', "");
    if number.name() == TEMPERATURE {
        help += " [default: 0, greedy; of chat and with --checkpoint-sampling the checkpoint's]";
    } else if let Some(default) = number.default() {
        help += &format!(" [default: {}]", default as f32);
    }
    // Commands live as long as the program.
    let name: &'static str = number.name().replace('_', "-").leak();
    let mut argument = Arg::new(number.name()).long(name).value_name("N").help(help);
    for (_, alias) in ALIASES.iter().filter(|(own, _)| *own == number.name()) {
        argument = argument.visible_alias(*alias);
    }
    argument = argument.value_parser(move |text: &str| numbers::sampling(number, text));
    match number.requires() {
        Some(required) => argument.requires(required.name()),
        None => argument,
    }
}

impl FromArgMatches for Numbers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |number: &SamplingNumber| matches.get_one::<f64>(number.name()).copied();
        Ok(Self(SamplingNumber::ALL.iter().map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// How tokens are sampled by subcommands that are greedy by default.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct GreedyArguments {
    /// Start from the checkpoint's generation_config.json; the arguments below override it
    #[arg(long)]
    checkpoint_sampling: bool,
    #[command(flatten)]
    sampling: SamplingArguments,
}

impl GreedyArguments {
    /// The parameters for `model`.
    ///
    /// # Errors
    ///
    /// Those of [`SamplingArguments::params`].
    pub(crate) fn params(&self, model: &Model) -> Result<SamplingParams, Failure> {
        let own = self.checkpoint_sampling.then(|| model.default_sampling().clone());
        self.sampling.params(model, own.unwrap_or_else(SamplingParams::greedy))
    }

    /// As [`SamplingArguments::draw_seed`].
    pub(crate) fn draw_seed(&self, params: &mut SamplingParams) {
        self.sampling.draw_seed(params);
    }
}

/// How tokens are sampled. Filters (from --top-n-sigma to --mirostat-eta) take effect at a temperature above
/// 0.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArguments {
    #[command(flatten)]
    numbers: Numbers,
    /// A text across which DRY looks for no repetition; may be given several times [default: line break,
    /// colon, quotation mark, asterisk]
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
    /// The seed of random draws: the same seed produces the same text; `random` draws a new one for each text
    #[arg(long, value_name = "SEED", value_parser = seed, default_value = "random")]
    seed: Seed,
}

/// What draws depend on.
#[derive(Clone, Copy)]
enum Seed {
    Fixed(u64),
    Random,
}

impl SamplingArguments {
    /// The parameters for `model`: `params` with what is given. Prints a note of filters that have no effect.
    ///
    /// # Errors
    ///
    /// A failure where breakers are asked of a model without tokenizer.
    pub(crate) fn params(
        &self,
        model: &Model,
        mut params: SamplingParams,
    ) -> Result<SamplingParams, Failure> {
        for (number, &value) in SamplingNumber::ALL.iter().zip(&self.numbers.0) {
            if value.is_some() {
                number.set(&mut params, value)?;
            }
        }
        self.note_ignored(&params);
        if let Some(dry) = &mut params.dry {
            self.add_breakers(dry, model)?;
        }
        params.logit_bias.clone_from(&self.logit_bias);
        params.allowed_tokens.clone_from(&self.allowed_tokens);
        params.forbidden_tokens.clone_from(&self.forbidden_tokens);
        if let Seed::Fixed(seed) = self.seed {
            params.seed = seed;
        }
        self.draw_seed(&mut params);
        Ok(params)
    }

    /// Gives the parameters of a further text another seed, unless a seed is given.
    pub(crate) fn draw_seed(&self, params: &mut SamplingParams) {
        if let Seed::Random = self.seed {
            *params = std::mem::take(params).with_random_seed();
        }
    }

    /// Says which of the given numbers have no effect on a greedy choice.
    fn note_ignored(&self, params: &SamplingParams) {
        let random = params.clone().with_temperature(1.0).active_fields();
        let active = params.active_fields();
        let is_ignored = |number: &SamplingNumber| {
            let mut fields = random.iter().filter(|&field| !active.contains(field));
            number.name() != TEMPERATURE && fields.any(|field| number.name().starts_with(field.as_str()))
        };
        let given = SamplingNumber::ALL.iter().zip(&self.numbers.0).filter(|(_, value)| value.is_some());
        let ignored = given.filter(|(number, _)| is_ignored(number));
        let ignored: Vec<_> =
            ignored.map(|(number, _)| format!("--{}", number.name().replace('_', "-"))).collect();
        if !ignored.is_empty() {
            let ignored = ignored.join(", ");
            note(&format!(
                "without a --temperature above 0 the choice is greedy, and {ignored} has no effect"
            ));
        }
    }

    fn add_breakers(&self, dry: &mut Dry, model: &Model) -> Result<(), Failure> {
        let breakers = &mut dry.breakers;
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
        Ok(())
    }
}

fn bias(text: &str) -> Result<(TokenId, f32), String> {
    let (token, bias) = text.split_once('=').ok_or("it must be a token id, an equals sign and a number")?;
    let token = token.trim().parse().map_err(|_| "a token id must be an integer")?;
    let bias = bias.trim().parse().ok().filter(|bias: &f32| !bias.is_nan());
    Ok((token, bias.ok_or("a bias must be a number")?))
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "random" => Ok(Seed::Random),
        text => text.parse().map(Seed::Fixed).map_err(|_| "a seed must be an integer or `random`".to_owned()),
    }
}
