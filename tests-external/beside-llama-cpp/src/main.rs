//! Runs one file on llama.cpp and on mlxcel's IREE engine in the same program, both at once, and compares
//! their tokens.

use std::error::Error;
use std::path::Path;
use std::thread;

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use mlxcel_session::mlxcel_core::{GenerateExt, GenerateOptions, SessionOptions};
use mlxcel_session::{LoadOptions, Precision, select_backend};

const PROMPT: [u32; 5] = [12, 176, 62, 160, 111];
const TOKENS: usize = 8;

type Tokens = Result<Vec<u32>, Box<dyn Error + Send + Sync>>;

fn by_llama_cpp(backend: &LlamaBackend, file: &Path) -> Tokens {
    let model = LlamaModel::load_from_file(backend, file, &LlamaModelParams::default())?;
    let mut context = model.new_context(backend, LlamaContextParams::default().with_n_threads(1))?;
    let mut batch = LlamaBatch::new(PROMPT.len(), 1);
    let prompt = PROMPT.map(|id| LlamaToken(id as i32));
    batch.add_sequence(&prompt, 0, false)?;
    let mut tokens = Vec::new();
    for position in PROMPT.len()..PROMPT.len() + TOKENS {
        context.decode(&mut batch)?;
        let logits = context.get_logits_ith(batch.n_tokens() - 1);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).ok_or("no logits")?;
        tokens.push(best as u32);
        batch.clear();
        batch.add(LlamaToken(best as i32), position as i32, &[0], true)?;
    }
    Ok(tokens)
}

fn by_mlxcel(file: &Path) -> Tokens {
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model = select_backend(Some("iree"))?.load(&file.into(), &options)?;
    let mut session = model.open_session(&SessionOptions::default())?;
    Ok(session.generate_greedy(&PROMPT, &GenerateOptions::new(TOKENS))?.tokens)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let file = std::env::args_os().nth(1).ok_or("usage: beside-llama-cpp MODEL.gguf")?;
    let file = Path::new(&file);
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| by_llama_cpp(&backend, file));
        (theirs.join(), by_mlxcel(file))
    });
    let (theirs, ours) = (theirs.map_err(|_| "llama.cpp panicked")??, ours?);
    println!("llama.cpp: {theirs:?}\nmlxcel:    {ours:?}");
    if ours != theirs {
        return Err("the engines disagree".into());
    }
    Ok(())
}
