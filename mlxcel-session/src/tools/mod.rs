//! Tool calling: how tools are offered to the model, and how calls are parsed.

mod attempt;
#[cfg(feature = "structured")]
mod element_grammar;
mod elements;
#[cfg(feature = "structured")]
mod grammar;
mod json;
#[cfg(feature = "structured")]
mod literal_grammar;
mod literals;
mod parser;
#[cfg(feature = "structured")]
mod thought;
mod tool;
mod toolbox;
mod values;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::chat::style::{Argument, Call, Literals, Style};
use crate::chat::{Message, ReasoningFormat, ToolCall};
use crate::options::Options;
use crate::reasoning::ReasoningSplitter;
use crate::tokenizer::Tokenizer;
pub use parser::{ToolParser, ToolPart};
pub use tool::Tool;
pub use toolbox::Toolbox;

/// The most bytes of a tool's name.
const LONGEST_NAME: usize = 64;

/// Which tools an answer may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool: the model does not see them.
    None,
    /// At least one call.
    Required,
    /// This tool.
    Named(String),
}

/// Tools that a model may call, in the call format of its family.
///
/// [`offer`](Self::offer) passes them to the chat template and, with the feature `structured`, constrains
/// calls to existing tools and arguments that match their schemas. [`read`](Self::read) returns the calls of
/// an answer, and [`parser`](Self::parser) finds them while it streams. [`Toolbox`] calls functions of the
/// application in a loop.
///
/// ```no_run
/// use mlxcel_session::{Message, Model, Options, Tool, Tools};
/// use serde_json::json;
///
/// let model = Model::open("models/qwen3-0.6b")?;
/// let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
/// let tools = Tools::new(model.tokenizer()?, [Tool::new("get_weather", "The weather of a city", parameters)])?;
/// let (mut messages, mut options) = (vec![Message::user("Do I need an umbrella in Oslo?")], Options::default());
/// tools.offer(&mut messages, &mut options)?;
/// let (message, calls) = tools.read(&model.chat(&messages, &options)?.complete()?.text);
/// messages.push(message);
/// for call in &calls {
///     println!("{}({})", call.name, call.arguments);
///     messages.push(Message::tool_result(call, "rain"));
/// }
/// println!("{}", model.chat(&messages, &options)?.complete()?.text);
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tools {
    style: &'static Style,
    definitions: Arc<[Value]>,
    names: Arc<[String]>,
    choice: ToolChoice,
    parallel: bool,
    tokenizer: Tokenizer,
    /// How many calls were found in answers.
    calls: Arc<AtomicU64>,
}

impl Tools {
    /// Tools: [`Tool`]s, or values in OpenAI's format. The call format is detected from the chat template.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a definition without a name of up to 64 letters, digits, `_`, `-` and
    /// `.`, for two tools of one name, and for parameters that are not a JSON schema of an object.
    pub fn new(tokenizer: &Tokenizer, tools: impl IntoIterator<Item = impl Into<Tool>>) -> Result<Self> {
        let definitions: Vec<Value> =
            tools.into_iter().map(|tool| tool.into().definition().clone()).collect();
        let (mut names, mut known) = (Vec::with_capacity(definitions.len()), HashSet::new());
        for definition in &definitions {
            let function = &definition["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_of_name) {
                return Err(invalid("a tool's name must consist of letters, digits, '_', '-' and '.'"));
            }
            if !known.insert(name) {
                return Err(invalid("two tools have the same name").with_context("tool", name));
            }
            let parameters = &function["parameters"];
            let is_schema = parameters.is_null() || parameters.is_object();
            if !is_schema || !matches!(parameters["type"].as_str(), None | Some("object")) {
                return Err(invalid("the parameters of a tool are not a JSON schema of an object")
                    .with_context("tool", name));
            }
            names.push(name.to_owned());
        }
        Ok(Self {
            style: Style::of(tokenizer.chat_template()),
            definitions: definitions.into(),
            names: names.into(),
            choice: ToolChoice::Auto,
            parallel: true,
            tokenizer: tokenizer.clone(),
            calls: Arc::default(),
        })
    }

    /// Sets which of them an answer may or must call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an unknown tool, or if a call is required and there are no tools.
    pub fn with_choice(mut self, choice: ToolChoice) -> Result<Self> {
        match &choice {
            ToolChoice::Named(name) if !self.names.contains(name) => {
                return Err(invalid("the chosen tool does not exist").with_context("tool", name));
            }
            ToolChoice::Required if self.names.is_empty() => {
                return Err(invalid("a call is required, but no tools are given"));
            }
            _ => {}
        }
        self.choice = choice;
        Ok(self)
    }

    mlxcel_core::setters! {
        /// Sets whether one answer may call several tools, if the family's format supports it.
        with_parallel(parallel: bool) => parallel = parallel;
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The family's call format: `gpt-oss`, `deepseek-v3`, `deepseek-v3.1`, `deepseek-v3.2`, `deepseek-v4`,
    /// `mistral`, `mistral-arguments`, `granite`, `gemma4`, `functiongemma`, `lfm2`, `olmo3`, `pythonic`,
    /// `kimi`, `command`, `nemotron`, `tool-calls`, `minicpm`, `longcat`, `minimax`, `minimax-m3`, `seed`,
    /// `qwen-coder`, `glm`, `hermes` (also Qwen 2.5 and 3), `functionary`, `functionary-v3.2`, `firefunction`,
    /// `llama3`, `llama4`, `gemma`, or `generic`.
    pub fn style(&self) -> &'static str {
        self.style.name
    }

    /// Adds the tools to the chat template's variables, or to a system message if the template does not
    /// support tools. With the feature `structured`, also constrains calls to the tools' schemas.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if a call is required and the feature `structured` is off.
    /// [`ErrorKind::TooComplex`] for parameters that are too large or too deep for a grammar.
    /// [`ErrorKind::InvalidInput`] if calls are to be constrained and the options have a constraint of their
    /// own: an answer follows one. After an error, neither is changed.
    pub fn offer(&self, messages: &mut Vec<Message>, options: &mut Options) -> Result<()> {
        if self.choice == ToolChoice::None || self.definitions.is_empty() {
            return Ok(());
        }
        #[cfg(feature = "structured")]
        if let Some(grammar) = self.grammar()? {
            if options.constraint.is_some() {
                let reason = "the options have a constraint already, and tool calls need one of their own";
                return Err(invalid(reason).with_context("field", "constraint"));
            }
            options.constraint = Some(grammar);
        }
        #[cfg(not(feature = "structured"))]
        if self.choice != ToolChoice::Auto {
            let reason = "requiring a call needs the feature `structured`";
            return Err(Error::unsupported("offer tools", reason));
        }
        let reads_tools = self.tokenizer.chat_template().is_some_and(|template| template.spells("tools"));
        if self.style.shows_tools && reads_tools {
            options.chat = std::mem::take(&mut options.chat).with_tools(self.definitions.iter().cloned());
        } else {
            match messages.first_mut().filter(|first| first.role == "system") {
                Some(first) => first.content = format!("{}\n\n{}", first.content, self.instructions()),
                None => messages.insert(0, Message::system(self.instructions())),
            }
        }
        Ok(())
    }

    /// A parser that separates calls from text in an answer, and reasoning if the call format marks it too
    /// (gpt-oss). Reasoning between tags is text.
    pub fn parser(&self) -> ToolParser {
        self.parser_after(ReasoningSplitter::plain())
    }

    /// As [`parser`](Self::parser), and separates the reasoning that `splitter` finds. Pass the splitter of the
    /// answer's stream, such as [`RequestStream::splitter`](crate::RequestStream::splitter).
    ///
    /// An answer that must begin with a call has no reasoning between tags, even if the prompt opens the tag.
    pub fn parser_after(&self, splitter: ReasoningSplitter) -> ToolParser {
        let names = if self.choice == ToolChoice::None { Arc::default() } else { Arc::clone(&self.names) };
        let must_call = matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_));
        let splitter = match self.channels() {
            Some(format) if splitter.is_plain() => format.splitter(),
            None if must_call => ReasoningSplitter::plain(),
            _ => splitter,
        };
        ToolParser::new(self.style, names, Arc::clone(&self.definitions), splitter, Arc::clone(&self.calls))
    }

    /// The message that a whole answer becomes, and the calls in it. Append the message to the conversation,
    /// and behind it a [`Message::tool_result`] for each call.
    pub fn read(&self, answer: &str) -> (Message, Vec<ToolCall>) {
        let format = self.tokenizer.reasoning();
        self.read_by(answer, format.map_or_else(ReasoningSplitter::plain, ReasoningFormat::splitter))
    }

    /// As [`read`](Self::read), with the splitter of the answer's stream.
    fn read_by(&self, answer: &str, splitter: ReasoningSplitter) -> (Message, Vec<ToolCall>) {
        // A template that reads no reasoning finds it in the content.
        let splitter = if self.tokenizer.reads_reasoning() { splitter } else { ReasoningSplitter::plain() };
        let mut parser = self.parser_after(splitter);
        let mut parts = parser.push(answer);
        parts.extend(parser.finish());
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in parts {
            match part {
                ToolPart::Text(text) => content.push_str(&text),
                ToolPart::Reasoning(text) => reasoning.push_str(&text),
                ToolPart::Call(call) => calls.push(call),
            }
        }
        let message = if calls.is_empty() {
            Message::assistant(content.trim_start_matches('\n'))
        } else {
            Message { content: content.trim().to_owned(), ..Message::calls(&calls) }
        };
        (message.with_reasoning(&reasoning), calls)
    }

    /// The format of a family that writes calls under headers of their own.
    fn channels(&self) -> Option<&ReasoningFormat> {
        self.tokenizer.reasoning().filter(|format| format.has_channels())
    }

    /// The system message for models whose template does not support tools.
    fn instructions(&self) -> String {
        let arguments = json!({ "ARGUMENT": "VALUE" });
        let body = match self.style.call {
            Call::Object { name, arguments: field, after, .. } => {
                format!("{}{after}", json!({ name: "NAME", field: arguments }))
            }
            Call::Named { between, after, .. } => format!("NAME{between}{arguments}{after}"),
            Call::Channel { between, .. } => format!("NAME{between}{{\"ARGUMENT\": \"VALUE\"}}"),
            Call::Elements { between, mark, after, .. } => {
                format!("NAME{between}{mark}<ARGUMENT>VALUE{mark}</ARGUMENT>{after}")
            }
            Call::Keywords { open, assign, literals, after, .. } => {
                let quote = if let Literals::Marked(mark) = literals { mark } else { "\"" };
                format!("NAME{open}ARGUMENT{assign}{quote}VALUE{quote}{after}")
            }
            Call::Tagged { between, argument, after, .. } => {
                let Argument { open, named, middle, close, kinds, .. } = argument;
                let string = kinds.map_or("", |[string, _]| string);
                format!("NAME{between}{open}ARGUMENT{string}{named}{middle}VALUE{close}{after}")
            }
        };
        let Style { open, call, close, .. } = self.style;
        let example = format!("{open}{}{body}{close}", call.before());
        let tools = self.definitions.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        format!("You can call these tools:\n{tools}\n\nTo call one, answer only in this form:\n{example}")
    }
}

/// Whether names of tools may have it.
fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-.".contains(character)
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, "offer tools", reason)
}
