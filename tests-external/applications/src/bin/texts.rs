//! Embeds and scores texts beside a generation, in one session: `texts MODEL`.
use mlxcel_session::{EmbedOptions, Engine, Model, Options, Result, ScoreOptions};

fn main() -> Result<()> {
    let engine = Engine::new(Model::open(std::env::args().nth(1).unwrap_or_default())?)?;
    let story = engine.generate("Once upon a time", &Options::new(40))?;
    let texts = ["A fox sleeps.", "A fox is asleep.", "The river is wide and cold."];
    let vectors = engine.embed_all(&texts, &EmbedOptions::default())?;
    for (text, vector) in texts.iter().zip(&vectors) {
        let cosine: f32 = vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
        println!("{cosine:.3} {text}");
    }
    for (text, score) in texts.iter().zip(engine.score_all(&texts, &ScoreOptions::default())?) {
        println!("perplexity {:.1}: {text}", score.perplexity());
    }
    println!("{}", story.complete()?.text);
    Ok(())
}
