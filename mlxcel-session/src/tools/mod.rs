//! Tool calling: how tools are offered to the model, and how calls are parsed.

mod attempt;
#[cfg(feature = "structured")]
mod grammar;
mod parser;
mod styles;

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::chat::ChatTemplate;
use crate::{Message, Options, Tokenizer};
pub use parser::{ToolCall, ToolParser, ToolPart};
use styles::{Call, Style};

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
/// [`offer`](Self::offer) passes them to the chat template and, with the feature `structured`, constrains calls to
/// existing tools and arguments that match their schemas. [`parser`](Self::parser) separates calls from text in the
/// answer.
///
/// ```no_run
/// use mlxcel_session::{Message, Model, Options, ToolPart, Tools};
/// use serde_json::json;
///
/// let model = Model::open("models/qwen3-0.6b")?;
/// let weather = json!({ "type": "function", "function": {
///     "name": "get_weather",
///     "parameters": { "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] }
/// }});
/// let tools = Tools::new(model.tokenizer()?, [weather])?;
/// let (mut messages, mut options) = (vec![Message::user("Do I need an umbrella in Oslo?")], Options::default());
/// tools.offer(&mut messages, &mut options)?;
/// let answer = model.chat(&messages, &options)?.complete()?;
/// let mut parser = tools.parser();
/// for part in parser.push(&answer.text).into_iter().chain(parser.finish()) {
///     match part {
///         ToolPart::Call(call) => println!("{}({})", call.name, call.arguments),
///         ToolPart::Text(text) => println!("{text}"),
///         _ => {}
///     }
/// }
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tools {
    style: &'static Style,
    definitions: Vec<Value>,
    names: Arc<[String]>,
    choice: ToolChoice,
    parallel: bool,
    tokenizer: Tokenizer,
}

impl Tools {
    /// Tools in OpenAI's format, `{"type": "function", "function": {"name", "description", "parameters"}}` each. The
    /// call format is detected from the chat template.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a definition without a name of up to 64 letters, digits, `_`, `-` and `.`, for
    /// two tools of one name, and for parameters that are not a JSON schema of an object.
    pub fn new(tokenizer: &Tokenizer, definitions: impl IntoIterator<Item = Value>) -> Result<Self> {
        let definitions: Vec<Value> = definitions.into_iter().collect();
        let mut names: Vec<String> = Vec::with_capacity(definitions.len());
        for definition in &definitions {
            let function = &definition["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_of_name) {
                return Err(invalid("a tool's name must consist of letters, digits, '_', '-' and '.'"));
            }
            if names.iter().any(|known| known == name) {
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
            style: style_of(tokenizer.chat_template()),
            definitions,
            names: names.into(),
            choice: ToolChoice::Auto,
            parallel: true,
            tokenizer: tokenizer.clone(),
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

    /// Sets whether one answer may call several tools, if the family's format supports it.
    #[must_use]
    pub fn with_parallel(mut self, parallel: bool) -> Self {
        self.parallel = parallel;
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The family's call format: `gpt-oss`, `deepseek-v3`, `deepseek-v3.1`, `mistral`, `mistral-arguments`, `granite`,
    /// `hermes` (also Qwen), `llama3`, `gemma`, or `generic`.
    pub fn style(&self) -> &'static str {
        self.style.name
    }

    /// Adds the tools to the chat template's variables, or to a system message if the template does not support tools.
    /// With the feature `structured`, also constrains calls to the tools' schemas.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if a call is required and the feature `structured` is off.
    pub fn offer(&self, messages: &mut Vec<Message>, options: &mut Options) -> Result<()> {
        if self.choice == ToolChoice::None || self.definitions.is_empty() {
            return Ok(());
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
        #[cfg(feature = "structured")]
        if let Some(grammar) = self.grammar()? {
            options.constraint = Some(Arc::new(grammar));
        }
        #[cfg(not(feature = "structured"))]
        if self.choice != ToolChoice::Auto {
            let reason = "requiring a call needs the feature `structured`";
            return Err(Error::unsupported("offer tools", reason));
        }
        Ok(())
    }

    /// A parser that separates calls from text in an answer.
    pub fn parser(&self) -> ToolParser {
        let format = self.tokenizer.reasoning().filter(|format| format.has_channels());
        let channels = format.filter(|_| matches!(self.style.call, Call::Channel { .. }));
        let names = if self.choice == ToolChoice::None { Arc::default() } else { Arc::clone(&self.names) };
        ToolParser::new(self.style, names, channels.map(|format| format.splitter()))
    }

    /// The system message for models whose template does not support tools.
    fn instructions(&self) -> String {
        let example = match self.style.call {
            Call::Object { before, name, arguments, after } => {
                let object = json!({ name: "NAME", arguments: { "ARGUMENT": "VALUE" } });
                format!("{}{before}{object}{after}{}", self.style.open, self.style.close)
            }
            Call::Named { before, between, after } => {
                let arguments = json!({ "ARGUMENT": "VALUE" });
                format!("{}{before}NAME{between}{arguments}{after}{}", self.style.open, self.style.close)
            }
            Call::Channel { before, between } => format!("{before}NAME{between}{{\"ARGUMENT\": \"VALUE\"}}"),
        };
        let tools = self.definitions.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        format!("You can call these tools:\n{tools}\n\nTo call one, answer only in this form:\n{example}")
    }
}

/// How calls are written by a model with this chat template.
fn style_of(template: Option<&ChatTemplate>) -> &'static Style {
    Style::find(|text| template.is_some_and(|template| template.spells(text)))
}

/// The texts that a model with this chat template marks calls with: shown where other special tokens are left out.
pub(crate) fn marks(template: Option<&ChatTemplate>) -> &'static [&'static str] {
    template.map_or(&[], |template| style_of(Some(template)).marks)
}

/// Whether names of tools may have it.
fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-.".contains(character)
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, "offer tools", reason)
}
