//! Two models in one process, each with its own engine; requests name theirs: `two_models MODEL [MODEL]`.
use std::collections::BTreeMap;

use mlxcel_session::{Engine, ErrorKind, Model, Options, Result};

struct Models(BTreeMap<&'static str, Engine>);

impl Models {
    fn complete(&self, name: &str, prompt: &str) -> Result<Option<String>> {
        let Some(engine) = self.0.get(name) else { return Ok(None) };
        Ok(Some(engine.generate(prompt, &Options::new(20))?.complete()?.text))
    }
}

fn main() -> Result<()> {
    let mut paths = std::env::args().skip(1);
    let first = paths.next().unwrap_or_default();
    let second = paths.next().unwrap_or_else(|| first.clone());
    let open = |path: &str| Engine::new(Model::open(path)?);
    let models = Models(BTreeMap::from([("first", open(&first)?), ("second", open(&second)?)]));
    for name in ["first", "second", "third"] {
        println!("{name}: {:?}", models.complete(name, "Once upon a time")?);
    }
    let missing = Model::open("no such folder").err().map(|error| error.kind());
    assert_eq!(missing, Some(ErrorKind::NotFound));
    Ok(())
}
