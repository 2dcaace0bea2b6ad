//! Generates text from a checkpoint folder, or from the bundled model.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use mlxcel_models::Checkpoint;
use mlxcel_session::{
    Adapter, DraftModel, Grammar, LoadOptions, Message, Model, ModelSource, Options, Prepare, SamplingParams,
    Speculation, TextStream, TokenId,
};
use serde::Serialize;

use crate::adapters::AdapterArgument;
use crate::engine::{ChosenEngine, path};
use crate::model::{ModelArguments, find};
use crate::numbers::whole;
use crate::progress::Progress;
use crate::report::{Failure, Likely, json_line};
use crate::sampling::GreedyArguments;
use crate::speculate::SpeculateArgument;
use crate::{bundled, input};

/// Generate text with a language model
///
/// The text goes to standard output as it is generated.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    adapter: AdapterArgument,
    /// The prompt, `-` reads it from standard input; rendered by the chat template if the checkpoint has one
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The file with the prompt; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "tokens"])]
    prompt_file: Option<PathBuf>,
    /// The prompt as token ids separated by commas, without further tokens
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id,
        conflicts_with_all = ["prompt", "system"])]
    tokens: Option<Vec<TokenId>>,
    /// System prompt, if the checkpoint has a chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the prompt as it stands, without chat template
    #[arg(long)]
    raw: bool,
    /// The maximum number of tokens to generate
    #[arg(short = 'n', long = "max-tokens", visible_alias = "n-predict", value_name = "N",
        default_value_t = 256, value_parser = whole::<usize>)]
    max_tokens: usize,
    /// Ignore stop tokens
    #[arg(long)]
    ignore_eos: bool,
    /// The programs that are compiled before the text begins, for engines that compile: on-demand (those of
    /// a short prompt and its text), generation (all that generation can need, up to --context),
    /// everything (scores and hidden states too)
    #[arg(long, value_name = "WHICH", default_value_t)]
    prepare: Prepare,
    /// Print a profile of each pass, kernel by kernel, on standard error when the text is done; with the
    /// engine pjrt, program by program, with the bytes that each moves between devices. Engines iree and
    /// pjrt only
    #[arg(long)]
    profile: bool,
    /// End the text before TEXT; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    #[command(flatten)]
    speculate: SpeculateArgument,
    /// Draft tokens with a smaller model of the same vocabulary if --speculate has no draft: its checkpoint
    /// folder or GGUF file, opened with the same engine
    #[arg(long, value_name = "DIR")]
    draft: Option<PathBuf>,
    #[command(flatten)]
    sampling: GreedyArguments,
    /// Write JSON of the schema in FILE
    #[arg(long, value_name = "FILE", group = "form", conflicts_with = "ignore_eos")]
    json_schema: Option<PathBuf>,
    /// Write a text that the regular expression TEXT matches as a whole
    #[arg(long, value_name = "TEXT", group = "form", conflicts_with = "ignore_eos")]
    regex: Option<String>,
    /// Write a text of the Lark grammar in FILE
    #[arg(long, value_name = "FILE", group = "form", conflicts_with = "ignore_eos")]
    grammar: Option<PathBuf>,
    /// Write one of several texts: this one, or another per further use of the option
    #[arg(long, value_name = "TEXT", group = "form", conflicts_with = "ignore_eos")]
    choice: Vec<String>,
    /// Report the N most likely tokens at each position, with --json
    #[arg(long, value_name = "N", requires = "json", default_value_t = 0)]
    top_logprobs: u16,
    /// Print one JSON object instead of the text
    ///
    /// backend, model_type, precision; prompt_tokens (their number); tokens (generated ids, without the one
    /// that ends the text) and logprobs (the natural log probability of each); text (null for a model
    /// without tokenizer); finish_reason (stop, stop_string, or length if -n or the context is reached);
    /// drafted and accepted (draft tokens, and how many were accepted); timings in seconds, none a part
    /// of another: load_s, compile_s, prefill_s, decode_s; memory_bytes, the bytes of weights and KV
    /// cache; sampling (the parameters that take effect) and seed; with --top-logprobs, top_logprobs:
    /// for each token of the text the most likely tokens, each with its logprob; with --profile,
    /// profile: programs, each with its
    /// phase, passes, seconds and dispatches.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    backend: &'a str,
    model_type: &'a str,
    precision: &'a str,
    prompt_tokens: usize,
    tokens: &'a [TokenId],
    logprobs: &'a [f32],
    text: Option<&'a str>,
    finish_reason: &'a str,
    drafted: usize,
    accepted: usize,
    timings: Timings,
    memory_bytes: u64,
    sampling: String,
    seed: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<Vec<Likely>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<serde_json::Value>,
}

/// Seconds, none a part of another.
#[derive(Serialize)]
struct Timings {
    load_s: f64,
    compile_s: f64,
    prefill_s: f64,
    decode_s: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let prompt = prompt(arguments)?;
    let progress = Progress::new();
    // Files that arguments name are read before the model is loaded.
    let grammar = grammar(arguments)?;
    let draft = arguments.draft.as_deref().map(|draft| find("--draft", draft, &LoadOptions::default()));
    let draft = draft.transpose()?;
    let load = load_options(arguments, &progress)?;
    let open_draft = |engine: &ChosenEngine, model: &ModelSource| {
        draft.map(|draft| open_draft(arguments, draft, engine, model)).transpose()
    };
    let (engine, model, draft) = arguments.model.open_after(load, arguments.profile, open_draft)?;
    let sampling = arguments.sampling.params(&model)?;
    let speculation = speculation(arguments.speculate.speculation(&model)?, draft);
    let adapter = arguments.adapter.load(&model)?;
    let mut stream = start(&model, &prompt, &sampling, (speculation, adapter), grammar, arguments)?;
    if arguments.json {
        let text = collect(&mut stream)?;
        progress.close();
        let text = model.tokenizer().is_ok().then_some(text);
        print_json(&model, &stream, text.as_deref(), &sampling, &engine)
    } else {
        print_text(&model, &mut stream, &progress)?;
        progress.tell_speed(&stream.usage());
        engine.take_profile().map_or(Ok(()), |(table, _)| Ok(write!(io::stderr(), "{table}")?))
    }
}

enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

fn prompt(arguments: &Arguments) -> Result<Prompt, Failure> {
    if let Some(tokens) = &arguments.tokens {
        return Ok(Prompt::Tokens(tokens.clone()));
    }
    let file = arguments.prompt_file.as_deref();
    let text = match (arguments.prompt.as_deref().or(file.and_then(Path::to_str)), file) {
        (Some("-"), _) => input::text(io::stdin().lock()).map(without_end)?,
        (_, Some(file)) => input::file(file).map(without_end)?,
        (Some(text), None) => text.to_owned(),
        (None, None) if arguments.model.source.model.is_none() => bundled::PROMPT.to_owned(),
        (None, None) => {
            let message = "pass a prompt with --prompt TEXT, --prompt-file FILE or --tokens IDS";
            return Err(Failure::Usage(message.to_owned()));
        }
    };
    if text.is_empty() {
        return Err(Failure::Usage("the prompt is empty".to_owned()));
    }
    Ok(Prompt::Text(text))
}

/// Without the line breaks that end it.
fn without_end(mut text: String) -> String {
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    text
}

fn token_id(text: &str) -> Result<TokenId, String> {
    text.trim().parse().map_err(|_| "a token id must be an integer".to_owned())
}

fn load_options(arguments: &Arguments, progress: &Progress) -> Result<LoadOptions, Failure> {
    let load = LoadOptions::default().with_prepare(arguments.prepare);
    let load = arguments.speculate.load_options(load)?;
    Ok(progress.watch(arguments.adapter.make_room(load)?))
}

/// Opens the draft model for `model`.
fn open_draft(
    arguments: &Arguments,
    draft: ModelSource,
    engine: &ChosenEngine,
    model: &ModelSource,
) -> Result<DraftModel, Failure> {
    let refused = |what: &str| {
        let draft = arguments.draft.as_deref().unwrap_or(Path::new("")).display();
        Err(Failure::Usage(format!("--draft {draft}: {what}")))
    };
    let place = |source| path(source).and_then(|path| path.canonicalize().ok());
    if place(&draft).is_some_and(|own| place(model) == Some(own)) {
        return refused("this is the model itself, which drafts no faster; pass a smaller one");
    }
    let decoder = |source| Checkpoint::from_source(source).and_then(|checkpoint| checkpoint.decoder());
    let own = decoder(&draft);
    if own.as_ref().is_ok_and(|own| own.is_bidirectional()) {
        return refused("this model is an encoder, which drafts nothing; pass a model that generates");
    }
    // Of models that are no checkpoints, the drafter tells.
    if let (Ok(own), Ok(model)) = (own, decoder(model))
        && own.vocabulary_size != model.vocabulary_size
    {
        let (own, model) = (own.vocabulary_size, model.vocabulary_size);
        return refused(&format!(
            "its vocabulary has {own} tokens, and the model's {model}; pass a smaller model of the same family"
        ));
    }
    let mut load = LoadOptions::default().with_precision(arguments.model.precision);
    load.threads = arguments.model.threads;
    Ok(DraftModel::new(Model::load(&engine.backend, draft, &load)?))
}

/// What drafts: what `--speculate` says, then the model of `--draft`.
fn speculation(first: Option<Speculation>, draft: Option<DraftModel>) -> Option<Speculation> {
    match (first, draft) {
        (Some(first), Some(draft)) => Some(first.or(draft)),
        (None, Some(draft)) => Some(Speculation::new(draft)),
        (first, None) => first,
    }
}

fn start(
    model: &Model,
    prompt: &Prompt,
    sampling: &SamplingParams,
    (speculation, adapter): (Option<Speculation>, Option<Adapter>),
    grammar: Option<Grammar>,
    arguments: &Arguments,
) -> Result<TextStream<'static>, Failure> {
    let mut options = Options::new(arguments.max_tokens)
        .with_ignore_stop(arguments.ignore_eos)
        .with_sampling(sampling.clone())
        .with_top_logprobs(arguments.top_logprobs);
    options.stop_strings.clone_from(&arguments.stop);
    if let Some(grammar) = grammar {
        options = options.with_grammar(grammar);
    }
    (options.speculation, options.adapter) = (speculation, adapter);
    let text = match prompt {
        Prompt::Tokens(tokens) => return Ok(model.generate_tokens(tokens, &options)?),
        Prompt::Text(text) => text,
    };
    let has_template = model.tokenizer()?.chat_template().is_some();
    if arguments.raw || (!has_template && arguments.system.is_none()) {
        return Ok(model.generate(text, &options)?);
    }
    let mut messages: Vec<Message> = arguments.system.iter().map(Message::system).collect();
    messages.push(Message::user(text));
    Ok(model.chat(&messages, &options)?)
}

fn grammar(arguments: &Arguments) -> Result<Option<Grammar>, Failure> {
    Ok(if let Some(path) = &arguments.json_schema {
        let schema: serde_json::Value = serde_json::from_str(&input::file(path)?)
            .map_err(|error| Failure::Usage(format!("{} is not JSON: {error}", path.display())))?;
        Some(Grammar::json_schema(schema))
    } else if let Some(expression) = &arguments.regex {
        Some(Grammar::regex(expression))
    } else if let Some(path) = &arguments.grammar {
        Some(Grammar::lark(input::file(path)?))
    } else if arguments.choice.is_empty() {
        None
    } else {
        Some(Grammar::choices(&arguments.choice))
    })
}

/// Runs a generation to its end.
fn collect(stream: &mut TextStream<'_>) -> Result<String, Failure> {
    let mut text = String::new();
    for piece in stream {
        text.push_str(&piece?);
    }
    Ok(text)
}

/// Shows text as it comes, or token ids for a model that has no text.
fn print_text(model: &Model, stream: &mut TextStream<'_>, progress: &Progress) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if model.tokenizer().is_ok() {
        for piece in stream {
            let piece = piece?;
            progress.close();
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
    } else {
        while let Some(token) = stream.next_token() {
            let token = token?;
            progress.close();
            write!(out, "{} ", token.token)?;
            out.flush()?;
        }
    }
    writeln!(out)?;
    Ok(())
}

fn print_json(
    model: &Model,
    stream: &TextStream<'_>,
    text: Option<&str>,
    sampling: &SamplingParams,
    engine: &ChosenEngine,
) -> Result<(), Failure> {
    let info = model.info();
    let usage = stream.usage();
    let seconds = |duration: Duration| duration.as_secs_f64();
    let top = stream.top_logprobs().iter().filter(|top| !top.is_empty());
    let output = Output {
        backend: &info.backend,
        model_type: &info.model_type,
        precision: info.precision.as_str(),
        prompt_tokens: stream.prompt_tokens(),
        tokens: stream.tokens(),
        logprobs: stream.logprobs(),
        text,
        // A stream without an error ends with a reason.
        finish_reason: stream.finish_reason().map_or("", |reason| reason.as_str()),
        drafted: usage.drafted_tokens,
        accepted: usage.accepted_tokens,
        timings: Timings {
            load_s: seconds(info.load_time.saturating_sub(info.compile_time)),
            compile_s: seconds(info.compile_time + usage.compile),
            prefill_s: seconds(usage.prefill),
            decode_s: seconds(usage.decode),
        },
        memory_bytes: info.weight_bytes + stream.stats().kv_bytes,
        sampling: sampling.active_fields().to_string(),
        seed: sampling.seed,
        top_logprobs: top.map(|top| top.iter().map(Likely::from).collect()).collect(),
        profile: engine.take_profile().map(|(_, value)| value).transpose().map_err(io::Error::from)?,
    };
    let mut out = io::stdout().lock();
    json_line(&mut out, &output)?;
    Ok(out.flush()?)
}
