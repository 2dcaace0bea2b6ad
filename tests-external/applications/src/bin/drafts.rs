//! Drafts from a text that it expects, and generates the same text in fewer passes: `drafts MODEL`.
use mlxcel_session::{DraftContext, DraftSource, Drafter, Model, Options, Result, Speculation, TokenId};

#[derive(Clone, Debug)]
struct Expected(Vec<TokenId>);

impl Drafter for Expected {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        Ok(self.0.iter().skip(tokens.len()).take(most).copied().collect())
    }
}

impl DraftSource for Expected {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(self.clone()))
    }
}

fn main() -> Result<()> {
    let model = Model::open(std::env::args().nth(1).unwrap_or_default())?;
    let options = Options::new(60);
    let prompt = model.tokenizer()?.encode("Once upon a time", true)?;
    let story = model.generate_tokens(&prompt, &options)?.complete()?;

    let expected = Expected([&*prompt, &story.tokens].concat());
    let drafted = options.with_speculation(Speculation::new(expected).with_width(7));
    let again = model.generate_tokens(&prompt, &drafted)?.complete()?;
    assert_eq!(again.tokens, story.tokens);
    println!(
        "{}\n{} of {} drafts were right",
        again.text, again.usage.accepted_tokens, again.usage.drafted_tokens
    );
    Ok(())
}
