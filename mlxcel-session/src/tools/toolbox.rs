//! Tools with the functions that they stand for, and the loop that calls them.

#[cfg(feature = "schemars")]
use std::error::Error as _;
use std::fmt::{self, Display};

use mlxcel_core::{FinishReason, Result};
use serde_json::json;

use super::{Tool, ToolChoice, Tools};
use crate::chat::{Message, ToolCall};
use crate::engine::Engine;
use crate::model::Model;
use crate::options::Options;
use crate::reasoning::ReasoningSplitter;
use crate::stream::Completion;
use crate::tokenizer::Tokenizer;

/// How often a model may call tools before it has to answer.
const ROUNDS: usize = 8;

/// Returns the result of a call as text, or an error that the model is told.
type Function<'f> = Box<dyn FnMut(&ToolCall) -> Result<String, String> + 'f>;

/// Tools with the application's functions: answers messages, and calls the functions that the model asks for.
///
/// [`chat`](Self::chat) repeats three steps until an answer has no calls: it offers the tools, reads the
/// calls of the answer, and appends the answer with the result of each call to the messages. The error of a
/// function is a result as well: the model is told `{"error": …}` and may try again. Applications that stream
/// the answers write this loop themselves, with [`Tools::read`] and [`Message::tool_result`].
///
/// ```no_run
/// use mlxcel_session::{Message, Model, Options, Tool, ToolCall, Toolbox};
/// use serde_json::json;
///
/// let model = Model::open("models/qwen3-0.6b")?;
/// let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
/// let weather = Tool::new("get_weather", "The current weather of a city", parameters);
/// let mut toolbox = Toolbox::new().with_tool(weather, |call: &ToolCall| -> mlxcel_session::Result<String> {
///     let arguments: serde_json::Value = call.parse()?;
///     Ok(format!("It rains in {}.", arguments["city"]))
/// });
/// let mut messages = vec![Message::user("Do I need an umbrella in Oslo?")];
/// let answer = toolbox.chat(&model, &mut messages, &Options::default())?;
/// println!("{}", answer.text);
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
pub struct Toolbox<'f> {
    tools: Vec<Tool>,
    functions: Vec<Function<'f>>,
    choice: ToolChoice,
    parallel: bool,
    rounds: usize,
}

impl Default for Toolbox<'_> {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            functions: Vec::new(),
            choice: ToolChoice::Auto,
            parallel: true,
            rounds: ROUNDS,
        }
    }
}

impl<'f> Toolbox<'f> {
    /// A toolbox without tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool with its function, which returns the result as text.
    #[must_use]
    pub fn with_tool<E: Display>(
        mut self,
        tool: Tool,
        mut function: impl FnMut(&ToolCall) -> Result<String, E> + 'f,
    ) -> Self {
        self.tools.push(tool);
        self.functions.push(Box::new(move |call| function(call).map_err(|error| error.to_string())));
        self
    }

    /// Adds a function of a struct `Args`, whose result is told to the model as JSON. Needs the feature
    /// `schemars`.
    ///
    /// ```
    /// use mlxcel_session::Toolbox;
    /// use mlxcel_session::schemars::{self, JsonSchema};
    ///
    /// #[derive(JsonSchema, serde::Deserialize)]
    /// struct Sum {
    ///     numbers: Vec<f64>,
    /// }
    ///
    /// let toolbox = Toolbox::new().with_function("sum", "Adds numbers", |sum: Sum| -> Result<f64, String> {
    ///     Ok(sum.numbers.iter().sum())
    /// });
    /// ```
    #[cfg(feature = "schemars")]
    #[must_use]
    pub fn with_function<Args, R, E>(
        self,
        name: impl Into<String>,
        description: impl Into<String>,
        mut function: impl FnMut(Args) -> Result<R, E> + 'f,
    ) -> Self
    where
        Args: schemars::JsonSchema + serde::de::DeserializeOwned,
        R: serde::Serialize,
        E: Display,
    {
        self.with_tool(Tool::of_type::<Args>(name, description), move |call| {
            let arguments = call
                .parse::<Args>()
                .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))?;
            let result = function(arguments).map_err(|error| error.to_string())?;
            serde_json::to_string(&result).map_err(|error| error.to_string())
        })
    }

    mlxcel_core::setters! {
        /// Sets which tools the first answer may or must call; later answers may call any.
        with_choice(choice: ToolChoice) => choice = choice;
        /// Sets whether one answer may call several tools, if the family's format supports it.
        with_parallel(parallel: bool) => parallel = parallel;
        /// Sets how many answers may call tools, by default 8. The next one cannot, and ends
        /// [`chat`](Self::chat).
        with_rounds(rounds: usize) => rounds = rounds;
    }

    /// Calls a tool's function; the message with its result, or with the error that the model is told.
    pub fn call(&mut self, call: &ToolCall) -> Message {
        let function = self.tools.iter().position(|tool| tool.name() == call.name);
        let result = match function.and_then(|index| self.functions.get_mut(index)) {
            Some(function) => function(call),
            None => Err("there is no such tool".to_owned()),
        };
        let text = result.unwrap_or_else(|error| json!({ "error": error }).to_string());
        Message::tool_result(call, text)
    }

    /// Answers `messages`, calling tools in between, and appends all answers and results to them. The
    /// completion is that of the last answer. An answer that did not end by itself (token or time limit,
    /// cancellation) is the last one, and its calls are not executed.
    ///
    /// # Errors
    ///
    /// The errors of [`Tools::new`], [`Tools::with_choice`], [`Tools::offer`], [`Model::stream`] and of the
    /// generation. `messages` then has the answers and results before it.
    pub fn chat(
        &mut self,
        model: &Model,
        messages: &mut Vec<Message>,
        options: &Options,
    ) -> Result<Completion> {
        self.chat_by(model.tokenizer()?, messages, options, |messages, options| {
            let stream = model.chat(messages, options)?;
            let splitter = stream.splitter()?;
            Ok((stream.complete()?, splitter))
        })
    }

    /// As [`chat`](Self::chat), as requests of an engine. Functions run on the caller's thread, while the
    /// engine computes for others.
    ///
    /// # Errors
    ///
    /// The errors of [`chat`](Self::chat) and of [`Engine::submit`].
    pub fn chat_on(
        &mut self,
        engine: &Engine,
        messages: &mut Vec<Message>,
        options: &Options,
    ) -> Result<Completion> {
        self.chat_by(engine.model().tokenizer()?, messages, options, |messages, options| {
            let stream = engine.chat(messages, options)?;
            let splitter = stream.splitter();
            Ok((stream.complete()?, splitter))
        })
    }

    fn chat_by(
        &mut self,
        tokenizer: &Tokenizer,
        messages: &mut Vec<Message>,
        options: &Options,
        answer: impl Fn(&[Message], &Options) -> Result<(Completion, ReasoningSplitter)>,
    ) -> Result<Completion> {
        let tools = Tools::new(tokenizer, self.tools.iter().cloned())?.with_parallel(self.parallel);
        let mut round = 0;
        loop {
            let choice = match round {
                _ if round >= self.rounds => ToolChoice::None,
                0 => self.choice.clone(),
                _ => ToolChoice::Auto,
            };
            round += 1;
            let tools = tools.clone().with_choice(choice)?;
            let (mut offered, mut options) = (messages.clone(), options.clone());
            tools.offer(&mut offered, &mut options)?;
            let (completion, splitter) = answer(&offered, &options)?;
            let (message, calls) = tools.read_by(&completion.text, splitter);
            messages.push(message);
            let ended = matches!(completion.finish_reason, FinishReason::Stop | FinishReason::StopString);
            if calls.is_empty() || !ended {
                return Ok(completion);
            }
            messages.extend(calls.iter().map(|call| self.call(call)));
        }
    }
}

impl fmt::Debug for Toolbox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toolbox")
            .field("tools", &self.tools)
            .field("choice", &self.choice)
            .field("rounds", &self.rounds)
            .finish_non_exhaustive()
    }
}
