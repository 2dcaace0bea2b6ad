//! Rendering a checkpoint's chat template as transformers renders it.

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use serde_json::Map;

use super::jinja::{Template, Variable};
use super::{ChatOptions, Message};
use crate::files;
use crate::tokenizer::SpecialTokens;

/// How many bytes the templates of a checkpoint may have together.
const LONGEST_SOURCES: usize = 1 << 20;

/// The template that is used where no other is asked for.
const DEFAULT: &str = "default";
/// The template that is used where `tools` are given, if the checkpoint has it.
const TOOL_USE: &str = "tool_use";

/// A checkpoint's chat template: a Jinja program that writes a conversation as the model was trained to read it.
///
/// It sees what transformers' `apply_chat_template` shows it: `messages`, `tools` and `documents` (none unless given in
/// [`ChatOptions`]), `add_generation_prompt`, the special tokens (`bos_token` and so on), `raise_exception`, `strftime_now`,
/// `tojson`, loop controls, and Python's methods of strings, lists and dictionaries. Templates are untrusted: the evaluator knows the
/// dialect that published templates use, reaches nothing outside, and bounds source, work, memory and recursion.
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
    /// By name.
    templates: Arc<Vec<(String, Template)>>,
    special_tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Parses the template `source`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] where it is not a valid template; the source of the error says where.
    pub fn new(source: &str) -> Result<Self> {
        Self::with_named([(DEFAULT.to_owned(), source.to_owned())])
    }

    /// Parses several templates by name.
    fn with_named(sources: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut templates = Vec::new();
        let mut length = 0;
        for (name, source) in sources {
            length += source.len();
            if length > LONGEST_SOURCES {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "read chat template",
                    "the templates are too long",
                )
                .with_context("limit", LONGEST_SOURCES)
                .with_source(format!("there are {length} bytes or more")));
            }
            let template = Template::parse(&source).map_err(|fault| {
                Error::new(
                    ErrorKind::Corrupt,
                    "read chat template",
                    "it is not a template that is understood",
                )
                .with_source(fault)
            })?;
            templates.push((name, template));
        }
        Ok(Self { templates: Arc::new(templates), special_tokens: Vec::new() })
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
        let named =
            |name| self.templates.iter().find(|(known, _)| known == name).map(|(_, template)| template);
        let tool_use = if wants_tools { named(TOOL_USE) } else { None };
        let template = tool_use.or_else(|| named(DEFAULT)).ok_or_else(|| {
            let names: Vec<_> = self.templates.iter().map(|(name, _)| name.as_str()).collect();
            Error::new(ErrorKind::NotFound, "apply chat template", "the checkpoint has no default template")
                .with_context("templates", names.join(", "))
        })?;
        let mut variables: Vec<_> =
            self.special_tokens.iter().map(|(name, text)| (*name, Variable::Text(text))).collect();
        variables.extend([
            ("messages", Variable::Messages(messages)),
            // Always there, as in transformers: templates ask whether they are none.
            ("tools", Variable::None),
            ("documents", Variable::None),
            ("add_generation_prompt", Variable::Bool(options.add_generation_prompt)),
        ]);
        variables
            .extend(options.variables.iter().map(|(name, value)| (name.as_str(), Variable::Json(value))));
        template.render(&variables).map_err(|fault| {
            Error::new(
                ErrorKind::InvalidInput,
                "apply chat template",
                "the model's template does not take these messages",
            )
            .with_source(fault)
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
