//! Rendering a checkpoint's chat template as transformers renders it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use minijinja::Environment;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use serde_json::Map;

use super::{ChatOptions, Message, json};
use crate::files;
use crate::tokenizer::SpecialTokens;

/// The steps that one prompt may take: far above any real template, and an end to one that loops.
const FUEL: u64 = 20_000_000;

/// The template that is used where no other is asked for.
const DEFAULT: &str = "default";
/// The template that is used where `tools` are given, if the checkpoint has it.
const TOOL_USE: &str = "tool_use";

/// A checkpoint's chat template: a Jinja program that writes a conversation as the model was trained to read it.
///
/// It sees what transformers' `apply_chat_template` shows it: `messages`, `tools` and `documents` (none unless given in
/// [`ChatOptions`]), `add_generation_prompt`, the special tokens (`bos_token` and so on), `raise_exception`, `strftime_now`,
/// `tojson`, loop controls, and Python's methods of strings, lists and dictionaries.
///
/// ```
/// use mlxcel_session::{ChatOptions, ChatTemplate, Message};
///
/// let template = ChatTemplate::new("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")?;
/// let prompt = template.render(&[Message::user("Hello")], &ChatOptions::default())?;
/// assert_eq!(prompt, "[user] Hello\n");
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Compiles the template `source`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] where it is not a valid template; the source of the error says where.
    pub fn new(source: &str) -> Result<Self> {
        Self::with_named([(DEFAULT.to_owned(), source.to_owned())])
    }

    /// Compiles several templates by name.
    fn with_named(sources: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut environment = environment();
        for (name, source) in sources {
            let source = without_generation_tags(&source).into_owned();
            environment.add_template_owned(name, source).map_err(|error| {
                Error::new(ErrorKind::Corrupt, "compile chat template", "it is not a valid Jinja template")
                    .with_source(error)
            })?;
        }
        Ok(Self { environment, special_tokens: Vec::new() })
    }

    /// The template of a checkpoint: `chat_template.jinja`, else `chat_template` of `config`
    /// (`tokenizer_config.json`), else of `chat_template.json`.
    pub(crate) fn of_checkpoint(
        source: &ModelSource,
        config: &Map<String, serde_json::Value>,
        special_tokens: &SpecialTokens,
    ) -> Result<Option<Self>> {
        let own_file = "chat_template.jinja";
        let older: Option<Map<String, serde_json::Value>>;
        let (file, templates) = if let Some(text) = files::read_text(source, own_file)? {
            (own_file, vec![(DEFAULT.to_owned(), text)])
        } else if let Some(value) = config.get("chat_template").filter(|value| !value.is_null()) {
            let file = "tokenizer_config.json";
            (file, named_templates(value).ok_or_else(|| unreadable(source, file))?)
        } else {
            let file = "chat_template.json";
            older = files::read_json(source, file)?;
            let Some(value) = older.as_ref().and_then(|json| json.get("chat_template")) else {
                return Ok(None);
            };
            (file, named_templates(value).ok_or_else(|| unreadable(source, file))?)
        };
        let mut template = Self::with_named(templates)
            .map_err(|error| error.with_context("path", files::locate(source, file)))?;
        template.special_tokens = special_tokens.iter().map(|(name, text)| (name, text.to_owned())).collect();
        Ok(Some(template))
    }

    /// Writes `messages` as a prompt. It holds every special token that the model wants, so it is encoded without adding
    /// more.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the template refuses the messages, with its own words as the source;
    /// [`ErrorKind::NotFound`] where the checkpoint has named templates and no default one.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let wants_tools = options.variables.get("tools").is_some_and(|tools| !tools.is_null());
        let tool_use = wants_tools.then(|| self.environment.get_template(TOOL_USE).ok()).flatten();
        let template = match tool_use {
            Some(template) => template,
            None => self.environment.get_template(DEFAULT).map_err(|error| {
                let names: Vec<_> = self.environment.templates().map(|(name, _)| name).collect();
                Error::new(
                    ErrorKind::NotFound,
                    "apply chat template",
                    "the checkpoint has no default template",
                )
                .with_context("templates", names.join(", "))
                .with_source(error)
            })?,
        };
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, text) in &self.special_tokens {
            variables.insert(name, Value::from(text.as_str()));
        }
        variables.insert("messages", Value::from(Serde(messages)));
        // Always there, as in transformers: templates ask whether they are none.
        variables.insert("tools", Value::from(()));
        variables.insert("documents", Value::from(()));
        variables.insert("add_generation_prompt", Value::from(options.add_generation_prompt));
        for (name, value) in &options.variables {
            variables.insert(name, Value::from(Serde(value)));
        }
        template.render(variables).map_err(|error| {
            Error::new(
                ErrorKind::InvalidInput,
                "apply chat template",
                "the model's template does not take these messages",
            )
            .with_source(error)
        })
    }
}

/// What `chat_template` says: one template, or a list of named ones.
fn named_templates(value: &serde_json::Value) -> Option<Vec<(String, String)>> {
    if let Some(text) = value.as_str() {
        return Some(vec![(DEFAULT.to_owned(), text.to_owned())]);
    }
    let field = |entry: &serde_json::Value, name| Some(entry.get(name)?.as_str()?.to_owned());
    value.as_array()?.iter().map(|entry| Some((field(entry, "name")?, field(entry, "template")?))).collect()
}

fn unreadable(source: &ModelSource, file: &str) -> Error {
    files::corrupt(source, file, "it is neither a template nor a list of named ones")
        .with_context("field", "chat_template")
}

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Only delimiters can make a syntax invalid, and they are left as they are.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match python_text(value) {
        Some(text) => out.write_str(text).map_err(minijinja::Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", json::tojson);
    // As in Python, where nothing can go through none: templates ask `tools is iterable`.
    environment.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// The text of a value that Python prints in another way than this Jinja does.
fn python_text(value: &Value) -> Option<&'static str> {
    match value.kind() {
        ValueKind::None => Some("None"),
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }),
        _ => None,
    }
}

/// `strftime_now(format)`: the local time, by the format letters of C and Python.
fn strftime_now(format: String) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(&format, &jiff::Zoned::now()).map_err(|error| {
        minijinja::Error::new(
            minijinja::ErrorKind::InvalidOperation,
            "strftime_now does not know this format",
        )
        .with_source(error)
    })
}

/// The template with `{% generation %}` blocks opened. They mark, for training, what the assistant said; this Jinja does not
/// know them, and a prompt does not depend on them.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inside, after)) = tag.split_once("%}") else { break };
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match word {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.to_owned(),
        };
        result.extend([before, "{%", &replacement, "%}"]);
        rest = after;
    }
    result.push_str(rest);
    Cow::Owned(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message], options: &ChatOptions) -> String {
        ChatTemplate::new(source).unwrap().render(messages, options).unwrap()
    }

    #[test]
    fn a_template_sees_what_transformers_shows_it() {
        let options = ChatOptions::default().with_variable("enable_thinking", false);
        let source = "{%- for message in messages[1:] %}
    {%- if loop.index0 > 5 %}{% break %}{% endif %}
    {{- message['role'].upper() + ':' + message.content.strip().split('x')[-1] }}
{%- endfor %}
{% if tools is none and tools is not iterable and not enable_thinking %}
ok {{ add_generation_prompt }} {{ tools }} {{ unknown }}{{ strftime_now('%Y')|length }}
{% endif %}
{%- set ns = namespace(found=false) %}{% generation %}{% set ns.found = true %}{%- endgeneration -%}
{{ ns.found }}";
        let messages = [Message::system("s"), Message::user(" axb "), Message::assistant("c")];
        assert_eq!(render(source, &messages, &options), "USER:bASSISTANT:cok True None 4\nTrue");
    }

    #[test]
    fn a_template_may_refuse_the_messages_in_its_own_words() {
        let template = ChatTemplate::new("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = template.render(&[Message::user("")], &ChatOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("roles must alternate"));
    }

    #[test]
    fn a_template_that_does_not_end_is_ended() {
        let source =
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(source).unwrap();
        let error = template.render(&[], &ChatOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_template_that_is_none_is_corrupt() {
        assert_eq!(ChatTemplate::new("{% if %}").unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn fields_of_messages_and_tools_keep_their_order() {
        let call = serde_json::json!([{"name": "add", "arguments": {"b": 1, "a": 2}}]);
        let message = Message::assistant("").with_field("tool_calls", call);
        assert_eq!(
            render("{{ messages[0].tool_calls|tojson }}", &[message], &ChatOptions::default()),
            r#"[{"name": "add", "arguments": {"b": 1, "a": 2}}]"#
        );
    }
}
