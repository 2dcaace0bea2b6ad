//! A conversation that keeps its KV cache from turn to turn, and goes on after it was saved.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use mlxcel_session::{Conversation, Model, Options};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(MODEL)?;
    let mut conversation = model.conversation()?;
    say(&mut conversation, "Tell me a story about a fox named Pip.")?;

    // With its cache, the conversation goes on with this model and engine and computes nothing again.
    // `save` keeps the messages alone, for any model.
    let file = std::env::temp_dir().join(format!("conversation-{}", std::process::id()));
    conversation.save_with_cache(&file)?;
    let mut restored = model.restore_conversation(&file)?;
    std::fs::remove_file(&file)?;
    say(&mut restored, "What happened then?")
}

fn say(conversation: &mut Conversation, line: &str) -> Result<(), Box<dyn Error>> {
    let answer = conversation.say(line, &Options::new(60))?.complete()?;
    let usage = &answer.usage;
    writeln!(stdout(), "> {line}\n{}", answer.text)?;
    writeln!(stdout(), "[{} of {} prompt tokens were kept]", usage.reused_tokens, usage.prompt_tokens)?;
    Ok(())
}
