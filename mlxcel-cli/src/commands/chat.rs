//! A conversation in the terminal, on one sequence: each turn computes only what is new.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use mlxcel_session::mlxcel_core::one_line;
use mlxcel_session::{
    AnswerPart, Conversation, ErrorKind, FinishReason, LoadOptions, Message, Model, Options,
    Result as SessionResult, SequenceOptions, TextStream, Usage, WhenFull,
};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::adapters::AdapterArgument;
use crate::input;
use crate::interrupt::Interrupt;
use crate::model::ModelArguments;
use crate::numbers::positive;
use crate::progress::Progress;
use crate::report::{Failure, note};
use crate::sampling::SamplingArguments;
use crate::speculate::SpeculateArgument;

/// Talk with a language model
///
/// The end of the input (Ctrl-D) ends the conversation; Ctrl-C stops an answer; /help lists the commands.
/// Tokens are sampled as the checkpoint's generation_config.json says; options override it.
/// Colors are used on a terminal, unless NO_COLOR is set.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    adapter: AdapterArgument,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// If the context is full, forget the oldest turns without asking
    #[arg(long)]
    forget: bool,
    /// Show the model's reasoning before its answer, if it marks it; on a terminal it is always shown
    #[arg(long)]
    show_reasoning: bool,
    /// The maximum number of tokens of an answer
    #[arg(short = 'n', long = "max-tokens", visible_alias = "n-predict", value_name = "N",
        default_value_t = 1024, value_parser = positive::<usize>)]
    max_tokens: usize,
    #[command(flatten)]
    speculate: SpeculateArgument,
    #[command(flatten)]
    sampling: SamplingArguments,
}

const HELP: &str = "\
/help            lists the commands
/history         shows what was said
/retry           answers the last line again, with another seed
/undo            takes the last line and its answer back
/forget          forgets the oldest line and its answer
/reset           forgets everything but the instructions
/system TEXT     sets the instructions
/fork            begins a branch, and goes on in it
/branch N        goes to branch N
/save FILE       saves what was said
/keep FILE       saves what was said and what was computed, for this model and engine
/load FILE       goes on with what was saved
/quit            ends the conversation, as the end of the input (Ctrl-D) does
//TEXT           says a text that begins with a stroke
Ctrl-C stops an answer; what it said so far stays in the conversation.";

pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let interrupt = Interrupt::listen();
    let progress = Progress::new();
    let load = arguments.adapter.make_room(LoadOptions::default())?;
    let load = progress.watch(arguments.speculate.load_options(load)?);
    let model = arguments.model.open_generating(load)?;
    progress.close();
    let sampling = arguments.sampling.params(&model, model.default_sampling().clone())?;
    let mut options =
        Options::new(arguments.max_tokens).with_sampling(sampling).with_skip_special_tokens(true);
    options.adapter = arguments.adapter.load(&model)?;
    options.speculation = arguments.speculate.speculation(&model)?;
    let mut chat = Chat {
        branches: vec![model.conversation()?],
        current: 0,
        model,
        options,
        sampling: arguments.sampling,
        when_full: if arguments.forget { WhenFull::ForgetOldest } else { WhenFull::Refuse },
        show_reasoning: arguments.show_reasoning || io::stdout().is_terminal(),
        unanswered: 0,
        progress,
        interrupt,
    };
    if let Some(system) = arguments.system {
        chat.conversation().push(Message::system(system));
    }
    let mut lines = Lines::new()?;
    if matches!(lines, Lines::Typed(_)) {
        note("/help lists the commands, Ctrl-D ends the conversation");
    }
    while let Some(line) = lines.next()? {
        match line.trim() {
            "" => {}
            "/quit" => break,
            text if text.starts_with('/') && !text.starts_with("//") => chat.command(text)?,
            text => chat.say(text.strip_prefix('/').filter(|_| text.starts_with("//")).unwrap_or(text))?,
        }
    }
    match chat.unanswered {
        0 => Ok(()),
        count => Err(Failure::Finding(format!("{count} of the lines got no answer"))),
    }
}

/// Where lines come from: a terminal, on which they are edited and earlier ones called back, or a pipe or
/// file.
enum Lines {
    Typed(Box<DefaultEditor>),
    Piped,
}

impl Lines {
    fn new() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self::Piped);
        }
        Ok(Self::Typed(Box::new(DefaultEditor::new().map_err(unread)?)))
    }

    /// The next line; none after the last.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        let Self::Typed(editor) = self else { return input::line(io::stdin().lock(), input::STDIN) };
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line).map_err(unread)?;
                    return Ok(Some(line));
                }
                // There is no answer to stop: the line is dropped.
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    note("the line is not UTF-8 and was dropped");
                }
                Err(error) => return Err(unread(error)),
            }
        }
    }
}

fn unread(error: ReadlineError) -> Failure {
    Failure::Usage(format!("read a line from the terminal: {error}"))
}

struct Chat {
    model: Model,
    branches: Vec<Conversation>,
    current: usize,
    options: Options,
    sampling: SamplingArguments,
    when_full: WhenFull,
    show_reasoning: bool,
    unanswered: usize,
    progress: Progress,
    interrupt: Interrupt,
}

impl Chat {
    fn conversation(&mut self) -> &mut Conversation {
        &mut self.branches[self.current]
    }

    fn say(&mut self, line: &str) -> Result<(), Failure> {
        self.sampling.draw_seed(&mut self.options.sampling);
        let options = self.options.clone();
        self.answer(|conversation| conversation.say(line, &options))
    }

    /// Prints the answer of `ask`; if the context is full, says what can be done.
    fn answer(
        &mut self,
        ask: impl FnOnce(&mut Conversation) -> SessionResult<TextStream<'_>>,
    ) -> Result<(), Failure> {
        let conversation = &mut self.branches[self.current];
        conversation.set_when_full(self.when_full);
        let before = conversation.forgotten_turns();
        let printed = ask(&mut *conversation).map(|stream| {
            self.interrupt.stops(Some(stream.cancel_token()));
            let printed = print(stream, self.show_reasoning, &self.progress);
            self.interrupt.stops(None);
            printed
        });
        let (ended, usage) = match printed {
            Ok(printed) => printed?,
            Err(error) if error.kind() == ErrorKind::CapacityExceeded => {
                let has_turns = conversation.messages().iter().any(|message| message.role == "user");
                self.note_full(has_turns && self.when_full == WhenFull::Refuse);
                self.unanswered += 1;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let forgotten = conversation.forgotten_turns() - before;
        if forgotten > 0 {
            note(&format!("the context is full: {forgotten} turns were dropped"));
        }
        match ended {
            Some(FinishReason::Length) if usage.generated_tokens < self.options.max_tokens => {
                note("the context is full and the answer is truncated; /forget makes room");
            }
            Some(FinishReason::Length) => {
                let limit = self.options.max_tokens;
                note(&format!("the answer is truncated at {limit} tokens, the limit of --max-tokens"));
            }
            _ => {}
        }
        if ended == Some(FinishReason::Cancelled) {
            note("the answer was stopped");
        }
        self.progress.tell_speed(&usage);
        Ok(())
    }

    /// Says that a line does not fit into the context, and what can be done.
    fn note_full(&self, has_turns: bool) {
        let context = self.model.capabilities().context;
        if has_turns {
            note(&format!("the conversation does not fit into the context of {context} tokens"));
            note("/forget forgets the oldest turn, /undo the last one, /reset all of them");
        } else {
            note(&format!(
                "this line does not fit into the context of {context} tokens even alone; shorten it, or \
                 start with a larger --context"
            ));
        }
    }

    /// Goes on with the conversation in `file`; without its KV cache if that is of something else.
    fn load(&mut self, file: &str) -> SessionResult<&'static str> {
        let mut own = SequenceOptions::default();
        own.adapter.clone_from(&self.options.adapter);
        let (conversation, loaded) = match self.model.restore_conversation_with(file, &own) {
            Ok(restored) => (restored, "loaded"),
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
                let mut conversation = self.model.conversation()?;
                let messages = Conversation::read_messages(file)?;
                messages.into_iter().for_each(|message| conversation.push(message));
                (
                    conversation,
                    "loaded without the KV cache, which is of another model, engine, precision or adapter",
                )
            }
            Err(error) => return Err(error),
        };
        *self.conversation() = conversation;
        Ok(loaded)
    }

    /// Says that another attempt at an answer is the same.
    fn note_greedy(&self) {
        if self.options.sampling.temperature <= 0.0 {
            note("the choice is greedy, so that the answer is the same; start with --temperature above 0");
        }
    }

    /// Runs a command. Its errors are printed, and the conversation continues.
    fn command(&mut self, line: &str) -> Result<(), Failure> {
        let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim();
        let done = match (name, argument) {
            ("/help", "") => return show(HELP),
            ("/history", "") => return self.history(),
            ("/retry", "") if self.conversation().messages().iter().any(|message| message.role == "user") => {
                self.note_greedy();
                self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
                self.sampling.draw_seed(&mut self.options.sampling);
                let options = self.options.clone();
                return self.answer(|conversation| conversation.retry(&options));
            }
            ("/undo", "") => {
                self.conversation().undo().map(|message| format!("taken back: {}", message.content))
            }
            ("/forget", "") => {
                self.conversation().forget_oldest_turn().then(|| "the oldest turn was dropped".to_owned())
            }
            ("/retry", "") => None,
            ("/reset", "") => {
                let kept = instructions(self.conversation());
                self.conversation().truncate(kept);
                Some("everything is forgotten".to_owned())
            }
            ("/system", text) if !text.is_empty() => {
                let kept = instructions(self.conversation());
                let conversation = self.conversation();
                let said = conversation.messages()[kept..].to_vec();
                conversation.truncate(0);
                conversation.push(Message::system(text));
                said.into_iter().for_each(|message| conversation.push(message));
                Some("the instructions are set".to_owned())
            }
            ("/fork", "") => {
                let branch = self.conversation().fork()?;
                self.branches.push(branch);
                self.current = self.branches.len() - 1;
                Some(format!("this is branch {}; /branch {} goes back", self.current + 1, self.current))
            }
            ("/branch", number) if !number.is_empty() => {
                let wanted = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                let found = wanted.filter(|&wanted| wanted < self.branches.len());
                self.current = found.unwrap_or(self.current);
                Some(match found {
                    Some(_) => format!("this is branch {number}"),
                    None => format!("there are branches from 1 to {}", self.branches.len()),
                })
            }
            ("/save" | "/keep" | "/load", "") => Some(format!("{name} needs a FILE")),
            ("/system", "") => Some("/system needs a TEXT".to_owned()),
            ("/branch", "") => Some("/branch needs the number of a branch".to_owned()),
            ("/save", file) => Some(told(self.conversation().save(file).map(|()| "saved"))),
            ("/keep", file) => {
                let kept = self.conversation().save_with_cache(file);
                Some(told(kept.map(|()| "saved with its KV cache")))
            }
            ("/load", file) => Some(told(self.load(file))),
            _ => {
                note(&format!("unknown command '{name}'; /help lists the commands"));
                return Ok(());
            }
        };
        note(done.as_deref().unwrap_or("the conversation is empty"));
        Ok(())
    }

    fn history(&mut self) -> Result<(), Failure> {
        let messages = self.conversation().messages().iter();
        let lines = messages.map(|message| format!("{}: {}", message.role, message.content));
        show(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// How many messages stand above the first turn.
fn instructions(conversation: &mut Conversation) -> usize {
    conversation.messages().iter().take_while(|message| message.role == "system").count()
}

/// Prints an answer as it comes; returns why it ended, and its tokens and time.
fn print(
    stream: TextStream<'_>,
    show_reasoning: bool,
    progress: &Progress,
) -> Result<(Option<FinishReason>, Usage), Failure> {
    let (dim, plain) = if has_colors() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    let mut out = io::stdout().lock();
    let mut parts = stream.parts()?;
    for part in &mut parts {
        let text = match part? {
            AnswerPart::Answer(text) => text,
            AnswerPart::Reasoning(text) if show_reasoning => format!("{dim}{text}{plain}"),
            AnswerPart::Call { to, text } => format!("[{to}: {text}]"),
            _ => continue,
        };
        progress.close();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    writeln!(out)?;
    Ok((parts.stream().finish_reason(), parts.stream().usage()))
}

/// Whether text may be dimmed: on a terminal, unless `NO_COLOR` is set.
fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn show(text: &str) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(())
}

/// What came of an attempt, in words.
fn told(result: SessionResult<&str>) -> String {
    result.map_or_else(|error| one_line(&error), str::to_owned)
}
