//! Compares all engines that are compiled in with each other, and with transformers if Python has it, on a
//! checkpoint.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use clap::Args;
use mlxcel_conformance::{Comparison, Differential, Tolerance, Trace, TraceStep};
use mlxcel_session::mlxcel_core::Model;
use mlxcel_session::{LoadOptions, ModelSource, Precision, TokenId, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::engine::{EngineChoice, names, path};
use crate::model::{SourceArguments, refuse_encoder};
use crate::progress::Progress;
use crate::report::{Failure, json_line};

/// Compare engines on a checkpoint: logits after prompts, then greedy tokens and their log probabilities
///
/// Engines follow the text of the first, so every step is compared, and transformers is the reference if
/// Python has it. Exit status 1 means that some disagree, or that something else went wrong.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Run the compiled programs that lie in the checkpoint's folder, if it is a bundle. They are machine
    /// code: only for a folder whose writer you trust. Bundles that this machine wrote need it not
    #[arg(long, requires = "model")]
    trust_bundle: bool,
    /// A prompt; may be given more than once
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// A prompt as token ids separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt")]
    tokens: Option<Vec<TokenId>>,
    /// How many tokens to compare after each prompt
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..))]
    max_tokens: u16,
    /// An engine to compare; may be given more than once; defaults to every one that is compiled in
    #[arg(long, value_name = "NAME")]
    backend: Vec<String>,
    /// Numeric precision: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t = Precision::Exact)]
    precision: Precision,
    /// How many threads compute; defaults to the engine's choice
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Distribute the model over this many devices, with the engine pjrt
    #[arg(long, value_name = "N")]
    mesh: Option<usize>,
    /// The Python that has transformers and torch; by default `python3`, if it has them
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Print one JSON object: model_type, vocabulary, precision, prompts (their number), tokens (compared
    /// after each), reference, skipped (why transformers is not the reference, else null), and engines,
    /// each with engine, agrees and report
    #[arg(long)]
    json: bool,
}

/// The default prompts: prose, code, numbers, and a text longer than a prefill chunk.
const PROMPTS: [&str; 4] = [
    "Tell me a story about a fox named Pip.",
    "fn main() {\n    let total: u64 = (1..=10).",
    "1, 1, 2, 3, 5, 8, 13,",
    "Once upon a time there was a fox who lived under an old oak at the edge of the forest. Every morning the fox walked down \
     to the river, looked at the water for a while, and counted the fish that came by. The other animals wondered what the \
     counting was for, and one day a small hedgehog took heart and asked. The fox thought about it for a long time and then",
];

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::new();
    let source = arguments.source.locate(&progress.watch(LoadOptions::default()))?;
    refuse_encoder(&source)?;
    let engines = engines(arguments, &source, &progress)?;
    let first = &engines[0].1;
    let steps = usize::from(arguments.max_tokens);
    let prompts = prompts(arguments, &source, &**first, steps)?;
    let tolerance = Tolerance::of(arguments.precision);
    // The reference: transformers, which is independent of these engines, or else the first of them.
    let answer = transformers(arguments, &source, &prompts)?;
    let (reference, skipped) = match &answer {
        Answer::Traces(_) => ("transformers".to_owned(), None),
        Answer::NotAsked(why) => (engines[0].0.clone(), Some(why.clone())),
    };
    let info = first.info();
    let mut out = io::stdout().lock();
    if !arguments.json {
        let (vocabulary, precision) = (info.vocabulary_size, info.precision.as_str());
        let (model_type, prompts) = (&info.model_type, prompts.len());
        writeln!(
            out,
            "{model_type}, vocabulary {vocabulary}, precision {precision}, {prompts} prompts, {steps} tokens each"
        )?;
        if let Some(why) = &skipped {
            writeln!(out, "transformers was skipped: {why}")?;
        }
    }
    let (traces, followers) = match answer {
        Answer::Traces(traces) => (traces, &engines[..]),
        Answer::NotAsked(_) if engines.len() == 1 => {
            let alone = format!("there is no second engine to compare {reference} with");
            return Err(Failure::Usage(alone));
        }
        Answer::NotAsked(_) => {
            let traces = prompts.iter().map(|prompt| Trace::of(&**first, prompt, steps));
            (traces.collect::<Result<_, _>>()?, &engines[1..])
        }
    };
    let (mut engines_told, mut disagreeing) = (Vec::new(), Vec::new());
    for (name, model) in followers {
        let compared = prompts.iter().zip(&traces).map(|(prompt, trace)| {
            Ok(Comparison::new(trace, &Trace::along(&**model, prompt, &trace.tokens())?, &tolerance))
        });
        let compared = compared.collect::<Result<_, mlxcel_session::Error>>()?;
        let report = Differential::new(reference.clone(), name.clone(), tolerance, compared);
        progress.close();
        let (agrees, report) = (report.passed(), report.to_string());
        if !arguments.json {
            writeln!(out, "\n{report}")?;
        }
        disagreeing.extend((!agrees).then_some(name.as_str()));
        engines_told.push(json!({ "engine": name, "agrees": agrees, "report": report }));
    }
    if arguments.json {
        let output = json!({
            "model_type": info.model_type, "vocabulary": info.vocabulary_size, "precision": info.precision.as_str(),
            "prompts": prompts.len(), "tokens": steps, "reference": reference, "skipped": skipped,
            "engines": engines_told,
        });
        json_line(&mut out, &output)?;
    }
    out.flush()?;
    if disagreeing.is_empty() {
        return Ok(());
    }
    Err(Failure::Finding(format!("{} and {} disagree", disagreeing.join(", "), reference)))
}

/// An engine by name, with the model that it has loaded.
type Engine = (String, Arc<dyn Model>);

/// The engines to compare; at least one.
fn engines(arguments: &Arguments, source: &ModelSource, progress: &Progress) -> Result<Vec<Engine>, Failure> {
    let names = names(&arguments.backend);
    if names.is_empty() {
        return Err(Failure::Usage("no engine is compiled in".to_owned()));
    }
    let mut load = LoadOptions::default().with_precision(arguments.precision);
    load.threads = arguments.threads;
    let load = progress.watch(load);
    let mut engines = Vec::with_capacity(names.len());
    for name in names {
        let choice = EngineChoice {
            name: Some(&name),
            trust: path(source).filter(|_| arguments.trust_bundle),
            mesh: arguments.mesh.filter(|_| name == "pjrt"),
            ..EngineChoice::default()
        };
        let engine = choice.select()?;
        // An engine that was not requested and has no plugin is skipped.
        if arguments.backend.is_empty() && !engine.has_plugin() {
            continue;
        }
        engines.push((engine.backend.name().to_owned(), engine.backend.load(source, &load)?));
    }
    if engines.is_empty() {
        return Err(Failure::Usage("none of the compiled-in engines has its plugin here".to_owned()));
    }
    Ok(engines)
}

/// The prompts as tokens; texts are cut where they would leave no room for `steps`.
fn prompts(
    arguments: &Arguments,
    source: &ModelSource,
    model: &dyn Model,
    steps: usize,
) -> Result<Vec<Vec<TokenId>>, Failure> {
    let room = model.info().capacity.saturating_sub(steps);
    if room == 0 {
        return Err(Failure::Usage(format!("{steps} tokens leave no room for a prompt")));
    }
    if let Some(tokens) = &arguments.tokens {
        return Ok(vec![tokens.clone()]);
    }
    let Some(tokenizer) = Tokenizer::from_source(source)? else {
        if !arguments.prompt.is_empty() {
            return Err(Failure::Usage("this checkpoint has no tokenizer for the prompt".to_owned()));
        }
        // Arbitrary tokens of the vocabulary, in strides that have no factor in common with its size.
        let vocabulary = model.info().vocabulary_size as u64;
        let text = |length: u64, stride: u64| {
            let tokens = (1..=length).map(|i| (i * stride % vocabulary) as TokenId);
            tokens.take(room).collect::<Vec<_>>()
        };
        return Ok(vec![text(5, 7919), text(33, 104_729), text(100, 1_299_709)]);
    };
    let texts: Vec<&str> = match &arguments.prompt[..] {
        [] => PROMPTS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    texts
        .into_iter()
        .map(|text| {
            if text.is_empty() {
                return Err(Failure::Usage("a prompt is empty".to_owned()));
            }
            let mut tokens = tokenizer.encode(text, true)?;
            tokens.truncate(room);
            Ok(tokens)
        })
        .collect()
}

/// What transformers says, or why it was not asked.
enum Answer {
    Traces(Vec<Trace>),
    NotAsked(String),
}

/// What the script reads.
#[derive(Serialize)]
struct Question<'a> {
    model: &'a Path,
    prompts: &'a [Vec<TokenId>],
    tokens: u16,
}

/// What the script prints for each prompt.
#[derive(Deserialize)]
struct Said {
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    margins: Vec<f32>,
    prefill_logits: Vec<f32>,
}

/// Computes greedy tokens in float32. Exits with 3 where transformers or torch is missing.
///
/// Python looks for modules in the working directory first, which may be untrusted: that is taken off its
/// path.
const SCRIPT: &str = r#"
import sys
sys.path = [folder for folder in sys.path if folder]
import json, os
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
question = json.load(sys.stdin)
try:
    model = AutoModelForCausalLM.from_pretrained(question["model"], dtype=torch.float32)
except TypeError:
    model = AutoModelForCausalLM.from_pretrained(question["model"], torch_dtype=torch.float32)
model.eval()
answers = []
with torch.no_grad():
    for prompt in question["prompts"]:
        answer = {"tokens": [], "logprobs": [], "margins": []}
        pending, cache = torch.tensor([prompt]), None
        for step in range(question["tokens"]):
            output = model(input_ids=pending, past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits[0, -1].float()
            if step == 0:
                answer["prefill_logits"] = logits.tolist()
            best = torch.topk(logits, 2)
            token = int(best.indices[0])
            answer["tokens"].append(token)
            answer["logprobs"].append(float(torch.log_softmax(logits.double(), 0)[token]))
            answer["margins"].append(float(best.values[0] - best.values[1]))
            pending = torch.tensor([[token]])
        answers.append(answer)
json.dump(answers, sys.stdout)
"#;

/// The Python in the first folder of PATH that has one; relative folders, such as the working directory, may
/// be untrusted.
fn python() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join("python3")).find(|program| program.is_file())
}

fn transformers(
    arguments: &Arguments,
    source: &ModelSource,
    prompts: &[Vec<TokenId>],
) -> Result<Answer, Failure> {
    let Some(folder) = path(source) else {
        return Ok(Answer::NotAsked("the bundled model is not a folder".to_owned()));
    };
    // If named explicitly, Python must run; if merely found, it may fail.
    let refusal = |why: String| match &arguments.python {
        Some(_) => Err(Failure::Finding(format!("ask transformers: {why}"))),
        None => Ok(Answer::NotAsked(why)),
    };
    let Some(program) = arguments.python.clone().or_else(python) else {
        return refusal("there is no python3 in the folders of PATH".to_owned());
    };
    let mut command = Command::new(&program);
    command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return refusal(format!("{} was not started: {error}", program.display())),
    };
    let question = Question { model: folder, prompts, tokens: arguments.max_tokens };
    let question = serde_json::to_vec(&question).map_err(io::Error::from)?;
    if let Some(mut input) = child.stdin.take() {
        // A child that has nothing to say does not read; its exit status says why.
        let _ = input.write_all(&question);
    }
    let output = match child.wait_with_output() {
        Ok(output) => output,
        Err(error) => return refusal(format!("{} returned no result: {error}", program.display())),
    };
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.trim().lines().last().unwrap_or("it said nothing").to_owned();
        return refusal(last);
    }
    match serde_json::from_slice::<Vec<Said>>(&output.stdout) {
        Ok(said) if said.len() == prompts.len() => {
            Ok(Answer::Traces(said.into_iter().map(Said::trace).collect()))
        }
        Ok(_) => refusal("it returned results for other prompts".to_owned()),
        Err(error) => refusal(format!("its result could not be parsed: {error}")),
    }
}

impl Said {
    fn trace(self) -> Trace {
        let steps = self.tokens.iter().zip(&self.logprobs).zip(&self.margins);
        let steps = steps.map(|((&token, &logprob), &margin)| TraceStep::new(token, logprob, Some(margin)));
        Trace::new(Some(self.prefill_logits), steps.collect())
    }
}
