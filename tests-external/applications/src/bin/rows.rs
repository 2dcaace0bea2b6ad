//! Drives the token-level contract by hand: two sequences share each pass over the weights: `rows MODEL`.
use mlxcel_session::mlxcel_core::{Control, Row, SamplingPlan, SessionOptions, StepOutput};
use mlxcel_session::{Model, Result, TokenId};

fn main() -> Result<()> {
    let model = Model::open(std::env::args().nth(1).unwrap_or_default())?;
    let tokenizer = model.tokenizer()?;
    let mut session = model.engine().open_session(&SessionOptions::default())?;
    let plan = SamplingPlan::greedy();
    let mut texts = Vec::new();
    for prompt in ["Once upon a time", "A fox named Pip"] {
        let tokens = tokenizer.encode(prompt, true)?;
        texts.push((session.open()?, tokens.clone(), tokens));
    }
    let mut output = StepOutput::default();
    for _ in 0..20 {
        let rows: Vec<_> = texts.iter().map(|(id, _, fed)| Row::next(*id, fed, &plan)).collect();
        session.step(&rows, &Control::default(), &mut output)?;
        for ((_, text, fed), result) in texts.iter_mut().zip(output.take()) {
            let next: TokenId = result?.into_token()?.token;
            text.push(next);
            *fed = vec![next];
        }
    }
    for (id, text, _) in texts {
        println!("{}", tokenizer.decode(&text, true)?);
        session.close(id)?;
    }
    Ok(())
}
