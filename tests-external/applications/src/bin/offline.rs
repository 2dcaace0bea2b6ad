//! Completes many prompts in order, within a budget of memory, and resumes: `offline MODEL`.
use mlxcel_session::{Engine, LoadOptions, Model, OpenOptions, Options, Result};

fn main() -> Result<()> {
    let model = std::env::args().nth(1).unwrap_or_default();
    let options =
        OpenOptions::default().with_load(LoadOptions::default().with_capacity(128).with_sequences(4));
    let memory = Model::estimate(&*model, &options)?;
    println!("{} bytes: {memory:?}", memory.total());
    assert!(Model::open_with(&*model, &options.clone().with_memory_budget(1000)).is_err());

    let engine = Engine::new(Model::open_with(&*model, &options.with_memory_budget(memory.total()))?)?;
    let prompts: Vec<String> =
        ["Pip", "Mia", "Ivy", "Otto", "Nell"].map(|name| format!("A fox named {name}")).into();
    let complete = |skip: usize, take: usize| -> Result<Vec<String>> {
        let prompts = prompts.iter().skip(skip).take(take);
        engine
            .map(prompts, |_| Options::new(12))
            .map(|(prompt, text)| Ok(format!("{prompt}{}", text?.text)))
            .collect()
    };
    let mut stories = complete(0, 2)?;
    stories.extend(complete(stories.len(), usize::MAX)?);
    assert_eq!(stories, complete(0, usize::MAX)?);
    println!("{}", stories.join("\n"));
    Ok(())
}
