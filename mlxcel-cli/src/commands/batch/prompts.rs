//! The file of prompts: a text or a JSON object on each line.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use mlxcel_session::{AsPrompt, Message, Prompt};
use serde_json::{Map, Value};

use crate::input;
use crate::report::Failure;

pub(super) enum Line {
    Prompt(String),
    Messages(Vec<Message>),
}

impl Line {
    /// A line whose first character is an opening brace is an object; any other is a text.
    fn parse(text: String) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Ok(Self::Prompt(text));
        }
        let mut object: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| format!("this is not a JSON object: {error}"))?;
        let (prompt, messages) = (object.remove("prompt"), object.remove("messages"));
        if let Some(key) = object.keys().next() {
            return Err(format!("unknown key {key:?}; a line has `prompt` or `messages`"));
        }
        match (prompt, messages) {
            (Some(Value::String(prompt)), None) => Ok(Self::Prompt(prompt)),
            (Some(_), None) => Err("`prompt` must be a text".to_owned()),
            (None, Some(messages)) => match serde_json::from_value(messages) {
                Ok(messages) => Ok(Self::Messages(messages)),
                Err(error) => Err(format!("`messages` is not a conversation: {error}")),
            },
            (None, None) => Err("the object needs `prompt` or `messages`".to_owned()),
            (Some(_), Some(_)) => Err("use either `prompt` or `messages`".to_owned()),
        }
    }
}

impl AsPrompt for Line {
    fn as_prompt(&self) -> Prompt<'_> {
        match self {
            Self::Prompt(prompt) => prompt.into(),
            Self::Messages(messages) => messages.into(),
        }
    }
}

/// The prompts in the file at `path`, `-` for standard input; blank lines are left out.
///
/// # Errors
///
/// A failure that names file and line.
pub(super) fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let (mut lines, name): (Box<dyn BufRead>, _) = if path.as_os_str() == "-" {
        (Box::new(io::stdin().lock()), "standard input".to_owned())
    } else {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Failure::Usage(format!("read {name}: {error}")))?;
        (Box::new(BufReader::new(file)), name)
    };
    let mut prompts = Vec::new();
    let mut number = 1;
    while let Some(text) = input::line(&mut lines, &format!("{name}:{number}"))? {
        // Editors on Windows write it at the beginning of files.
        let text = if number == 1 { text.trim_start_matches('\u{feff}').to_owned() } else { text };
        if !text.trim().is_empty() {
            let line = Line::parse(text).map_err(|why| Failure::Usage(format!("{name}:{number}: {why}")))?;
            prompts.push(line);
        }
        number += 1;
    }
    Ok(prompts)
}
