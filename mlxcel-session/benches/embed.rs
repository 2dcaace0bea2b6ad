//! The rate of embedding 200 short sentences on the IREE engine, one by one and together:
//! `cargo bench -p mlxcel-session --features iree --bench embed [-- MODEL]`.
#![allow(clippy::print_stdout, missing_docs)]

use std::time::{Duration, Instant};

use mlxcel_session::{EmbedOptions, LoadOptions, Model, OpenOptions, Result};

/// How many texts share a step.
const SEQUENCES: usize = 16;
const ROUNDS: usize = 6;
const ANIMALS: [&str; 10] = ["fox", "hare", "owl", "mole", "deer", "crow", "bee", "otter", "lynx", "wren"];

fn main() -> Result<()> {
    let model = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
    let load = LoadOptions::default().with_sequences(SEQUENCES);
    let options = OpenOptions::default().with_backend("iree").with_load(load);
    let model = Model::open_with(model.unwrap_or_else(|| bundled.to_owned()), &options)?;
    let texts: Vec<String> = (0..200)
        .map(|n| format!("The {} saw a {} by the river.", ANIMALS[n % 10], ANIMALS[n / 20]))
        .collect();
    let options = EmbedOptions::default();
    for round in 0..ROUNDS {
        let start = Instant::now();
        let alone = texts.iter().map(|text| model.embed(text, &options)).collect::<Result<Vec<_>>>()?;
        let by_one = start.elapsed();
        let start = Instant::now();
        let together = model.embed_all(&texts, &options)?;
        let by_all = start.elapsed();
        if round == 0 {
            // Programs were compiled.
            continue;
        }
        let rate = |time: Duration| texts.len() as f64 / time.as_secs_f64();
        let ratio = by_one.as_secs_f64() / by_all.as_secs_f64();
        let differ = alone.iter().zip(&together).filter(|(one, other)| one != other).count();
        println!(
            "one by one {:.0} texts/s, together {:.0} texts/s, {ratio:.2} x; {differ} vectors differ",
            rate(by_one),
            rate(by_all)
        );
    }
    Ok(())
}
