//! Renders a checkpoint's chat template as transformers does.

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use mlxcel_template::{Field, Origin, Origins, Rendered, Template, Variable};
use serde_json::Map;

use super::prepared::prepared;
use super::style::Style;
use super::{ChatOptions, Message, SpecialTokens};
use crate::files;

const APPLY: &str = "apply chat template";

/// How many bytes the templates of a checkpoint may have together.
const LONGEST_SOURCES: usize = 1 << 20;

/// Where a checkpoint keeps named templates beside the default one.
const FOLDER: &str = "additional_chat_templates";

/// The default template.
const DEFAULT: &str = "default";
/// The template for requests with `tools`, if the checkpoint has it.
const TOOL_USE: &str = "tool_use";

/// A checkpoint's chat template: a Jinja program that renders a conversation in the format the model was
/// trained on.
///
/// It has the variables and functions of transformers' `apply_chat_template`: `messages`, `tools` and
/// `documents` (none unless set in [`ChatOptions`]), `add_generation_prompt`, the special tokens (`bos_token`
/// and so on), `raise_exception`, `strftime_now`, `tojson`, loop controls, and Python's methods of strings,
/// lists and dictionaries. Templates are untrusted: the evaluator implements the dialect that published
/// templates use, has no access to files, network or environment, and limits source size, work, memory and
/// recursion.
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
    templates: Arc<Vec<Named>>,
    special_tokens: Vec<(&'static str, String)>,
    /// How calls are written by models with these templates.
    style: &'static Style,
}

/// One of a checkpoint's templates.
#[derive(Debug)]
struct Named {
    name: String,
    source: String,
    template: Template,
}

fn spell(templates: &[Named], text: &str) -> bool {
    templates.iter().any(|named| named.source.contains(text))
}

/// The marker at the end of a message to continue, as in transformers: a template may trim the space at its
/// end.
const END_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatTemplate {
    /// Parses the template `source`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if it is not a valid template; the error's source gives the position.
    pub fn new(source: &str) -> Result<Self> {
        Self::with_named([(DEFAULT.to_owned(), source.to_owned())])
    }

    /// Parses several templates by name.
    fn with_named(sources: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let corrupt = |reason: &'static str| Error::new(ErrorKind::Corrupt, "read chat template", reason);
        let mut templates = Vec::new();
        let mut length = 0;
        for (name, source) in sources {
            length += source.len();
            if length > LONGEST_SOURCES {
                return Err(corrupt("the templates are too long")
                    .with_context("limit", LONGEST_SOURCES)
                    .with_source(format!("there are {length} bytes or more")));
            }
            let template = Template::parse(&source).map_err(|fault| {
                corrupt("the template is invalid or uses an unsupported feature").with_source(fault)
            })?;
            templates.push(Named { name, source, template });
        }
        let style = Style::find(|text| spell(&templates, text));
        Ok(Self { templates: Arc::new(templates), special_tokens: Vec::new(), style })
    }

    /// The template of a checkpoint: `chat_template.jinja` and those in `additional_chat_templates`, else
    /// `chat_template` of `config` (`tokenizer_config.json`), else of `chat_template.json`.
    pub(crate) fn of_checkpoint(
        source: &ModelSource,
        config: &Map<String, serde_json::Value>,
        special_tokens: &SpecialTokens,
    ) -> Result<Option<Self>> {
        let own_file = "chat_template.jinja";
        let own = files::read_text(source, own_file)?.map(|text| (DEFAULT.to_owned(), text));
        let own: Vec<_> = own.into_iter().chain(additional_templates(source)?).collect();
        let (file, templates) = if !own.is_empty() {
            (own_file, own)
        } else {
            let older: Map<String, serde_json::Value>;
            let (file, value) = match config.get("chat_template").filter(|value| !value.is_null()) {
                Some(value) => ("tokenizer_config.json", Some(value)),
                None => {
                    let file = "chat_template.json";
                    older = files::read_json(source, file)?.unwrap_or_default();
                    (file, older.get("chat_template"))
                }
            };
            let Some(value) = value else { return Ok(None) };
            let unreadable = "it is neither a template nor a list of named ones";
            let named = named_templates(value).ok_or_else(|| {
                files::corrupt(source, file, unreadable).with_context("field", "chat_template")
            })?;
            (file, named)
        };
        let mut template = Self::with_named(templates)
            .map_err(|error| error.with_context("path", files::locate(source, file)))?;
        template.special_tokens = special_tokens.iter().map(|(name, text)| (name, text.to_owned())).collect();
        Ok(Some(template))
    }

    /// The names of the templates: `default`, and others such as `tool_use` and `rag`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.iter().map(|named| named.name.as_str())
    }

    /// Whether the source of a template contains `text`, such as the name of a role or a variable that it
    /// reads.
    pub fn spells(&self, text: &str) -> bool {
        spell(&self.templates, text)
    }

    pub(crate) fn style(&self) -> &'static Style {
        self.style
    }

    /// Renders `messages` as a prompt with all special tokens, so encode it without adding more. A control
    /// token spelled out in a message cannot be told apart from the template's own in this text;
    /// [`Tokenizer::encode_chat`] keeps them apart.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the template raises an exception (its message is the error's source),
    /// for an invalid [`date`](ChatOptions::date), and if there is no last message to continue;
    /// [`ErrorKind::NotFound`] if the checkpoint has no template of that name, or only named ones and no
    /// default.
    ///
    /// [`Tokenizer::encode_chat`]: crate::Tokenizer::encode_chat
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        self.render_parts(messages, options).map(|rendered| rendered.text)
    }

    /// As [`render`](Self::render), with the origin of each part.
    pub(crate) fn render_parts(&self, messages: &[Message], options: &ChatOptions) -> Result<Rendered> {
        let template = self.choose(options)?;
        let mut messages = prepared(self, messages);
        let mut final_content = None;
        if options.continue_final_message {
            let last = messages.to_mut().last_mut();
            let last = last.ok_or_else(|| invalid("there is no last message to continue"))?;
            final_content = Some(last.content.clone());
            last.content.push_str(END_MARK);
        }
        let now = options.date.as_deref().map(date).transpose()?;
        let date_string = now.as_ref().map(|now| now.strftime("%d %b %Y").to_string());
        let mut variables: Vec<_> =
            self.special_tokens.iter().map(|(name, text)| (*name, Variable::Text(text))).collect();
        variables.extend([
            ("messages", Variable::Dicts(messages.iter().map(fields).collect())),
            // Always there, as in transformers: templates ask whether they are none.
            ("tools", Variable::None),
            ("documents", Variable::None),
            (
                "add_generation_prompt",
                Variable::Bool(options.add_generation_prompt && !options.continue_final_message),
            ),
        ]);
        variables.extend(date_string.as_deref().map(|date| ("date_string", Variable::Text(date))));
        variables
            .extend(options.variables.iter().map(|(name, value)| (name.as_str(), Variable::Json(value))));
        let mut rendered = template.render(&variables, now.as_ref()).map_err(|fault| {
            invalid("the model's chat template rejects these messages").with_source(fault)
        })?;
        if let Some(content) = final_content {
            end_inside(&mut rendered, &content)?;
        }
        if options.special_tokens_in_text {
            rendered.origins = Origins::uniform(rendered.text.len(), Origin::Template);
        }
        Ok(rendered)
    }

    /// The template that `options` ask for.
    fn choose(&self, options: &ChatOptions) -> Result<&Template> {
        let named = |name: &str| self.templates.iter().find(|named| named.name == name);
        let (wanted, found) = match &options.template_name {
            Some(name) => (name.as_str(), named(name)),
            None => {
                let wants_tools = options.variables.get("tools").is_some_and(|tools| !tools.is_null());
                let tool_use = if wants_tools { named(TOOL_USE) } else { None };
                (DEFAULT, tool_use.or_else(|| named(DEFAULT)))
            }
        };
        found.map(|named| &named.template).ok_or_else(|| {
            let names: Vec<_> = self.names().collect();
            Error::new(ErrorKind::NotFound, APPLY, "the checkpoint has no such template")
                .with_context("template", wanted)
                .with_context("templates", names.join(", "))
        })
    }
}

/// Cuts `rendered` where the final message, which says `content`, ends.
fn end_inside(rendered: &mut Rendered, content: &str) -> Result<()> {
    let is_space = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let at = rendered.text.rfind(END_MARK.trim_end());
    let Some(at) = at.filter(|_| rendered.text.contains(content.trim_matches(is_space))) else {
        let reason =
            "the model's template does not render the last message verbatim, so it cannot be continued";
        return Err(invalid(reason));
    };
    let kept = if rendered.text[at..].starts_with(END_MARK) {
        at
    } else {
        // The template trims messages, and so the end of this one.
        rendered.text[..at].trim_end_matches(is_space).len()
    };
    rendered.text.truncate(kept);
    rendered.origins.truncate(kept);
    Ok(())
}

/// Roles that templates support. Some write them into a control token, such as `<|user|>`; other roles are
/// input like any.
const ROLES: [&str; 13] = [
    "system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "observation",
    "documents", "context", "available_tools", "environment",
];

/// The fields of a message, each with its origin.
fn fields(message: &Message) -> Vec<Field<'_>> {
    let role = if ROLES.contains(&message.role.as_str()) { Origin::Template } else { Origin::Input };
    let said =
        if matches!(message.role.as_str(), "assistant" | "model") { Origin::Answer } else { Origin::Input };
    let extra = message
        .extra
        .iter()
        .map(|(name, value)| Field::json(name, value, if value.is_string() { said } else { Origin::Input }));
    [Field::text("role", &message.role, role), Field::text("content", &message.content, said)]
        .into_iter()
        .chain(extra)
        .collect()
}

/// A date, and the time if it has one, at this place.
fn date(text: &str) -> Result<jiff::Zoned> {
    let parsed = text.parse::<jiff::civil::DateTime>();
    parsed.and_then(|date| date.to_zoned(jiff::tz::TimeZone::system())).map_err(|error| {
        invalid("the date is not of the form 2025-07-26 or 2025-07-26T10:15")
            .with_context("date", text)
            .with_source(error)
    })
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, APPLY, reason)
}

/// The templates that a checkpoint has in files beside the default one, by name.
fn additional_templates(source: &ModelSource) -> Result<Vec<(String, String)>> {
    let mut templates = Vec::new();
    for file in files::list(source, FOLDER)? {
        let Some(name) = file.strip_suffix(".jinja") else { continue };
        if let Some(text) = files::read_text(source, &format!("{FOLDER}/{file}"))? {
            templates.push((name.to_owned(), text));
        }
    }
    Ok(templates)
}

/// What `chat_template` says: one template, or a list of named ones.
fn named_templates(value: &serde_json::Value) -> Option<Vec<(String, String)>> {
    if let Some(text) = value.as_str() {
        return Some(vec![(DEFAULT.to_owned(), text.to_owned())]);
    }
    let field = |entry: &serde_json::Value, name| Some(entry.get(name)?.as_str()?.to_owned());
    value.as_array()?.iter().map(|entry| Some((field(entry, "name")?, field(entry, "template")?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message], options: &ChatOptions) -> String {
        ChatTemplate::new(source).unwrap().render(messages, options).unwrap()
    }

    #[test]
    fn templates_get_the_variables_of_transformers() {
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
    fn raise_exception_keeps_the_templates_message() {
        let template = ChatTemplate::new("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = template.render(&[Message::user("")], &ChatOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("roles must alternate"));
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
