//! Talks in turns, takes one back, saves the conversation with its KV cache, and goes on: `conversation
//! MODEL`.
use mlxcel_session::{Message, Model, Options, Result, WhenFull};

fn main() -> Result<()> {
    let model = Model::open(std::env::args().nth(1).unwrap_or_default())?;
    let options = Options::new(20).with_temperature(0.9).with_seed(7);
    let mut conversation = model.conversation()?;
    conversation.set_when_full(WhenFull::ForgetOldest);
    conversation.push(Message::system("You tell stories for children."));
    let first = conversation.say("A story about a fox.", &options)?.complete()?;
    let other = conversation.retry(&options.clone().with_seed(8))?.complete()?;
    println!("{}\n or\n{}", first.text, other.text);

    let path = std::env::temp_dir().join(format!("conversation-{}", std::process::id()));
    conversation.save_with_cache(&path)?;
    let mut resumed = model.restore_conversation(&path)?;
    std::fs::remove_file(&path).ok();
    let here = conversation.say("And then?", &options)?.complete()?;
    let there = resumed.say("And then?", &options)?.complete()?;
    assert_eq!((&here.text, resumed.position()?), (&there.text, conversation.position()?));
    conversation.undo();
    println!(
        "{}\n{} messages, {} without the last turn",
        here.text,
        resumed.messages().len(),
        conversation.messages().len()
    );
    Ok(())
}
