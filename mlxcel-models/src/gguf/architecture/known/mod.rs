//! The supported architectures. Each module has those of a lineage, with what their tables cannot express.

mod afmoe;
mod apertus;
mod bert;
mod cohere;
mod deepseek;
mod ernie;
mod exaone;
mod falcon;
mod gemma;
mod glm;
mod gpt;
mod granite;
mod hunyuan;
mod internlm;
mod jais;
mod laguna;
mod lfm2;
mod llama;
mod mamba;
mod mimo;
mod minicpm;
mod minimax;
mod nemotron;
mod olmo;
mod phi;
mod qwen;
mod rwkv;
mod shared;
mod stablelm;
mod step;

use super::Architecture;
pub(super) use shared::{COMMON, TENSORS, VALUES, WIDTH};

/// All of them, by name.
pub(super) const ALL: &[&Architecture] = &[
    &afmoe::AFMOE,
    &apertus::APERTUS,
    &llama::ARCEE,
    &deepseek::BAILINGMOE3,
    &bert::BERT,
    &llama::BITNET,
    &glm::CHATGLM,
    &cohere::COHERE2,
    &cohere::COHERE2MOE,
    &cohere::COMMAND_R,
    &deepseek::DEEPSEEK,
    &deepseek::DEEPSEEK2,
    &deepseek::DEEPSEEK32,
    &deepseek::DOTS1,
    &llama::EAGLE3,
    &ernie::ERNIE4_5,
    &ernie::ERNIE4_5_MOE,
    &bert::EUROBERT,
    &exaone::EXAONE_MOE,
    &exaone::EXAONE4,
    &falcon::FALCON,
    &mamba::FALCON_H1,
    &gemma::GEMMA,
    &gemma::GEMMA_EMBEDDING,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma::GEMMA3N,
    &gemma::GEMMA4,
    &deepseek::GLM_DSA,
    &glm::GLM4,
    &glm::GLM4MOE,
    &gpt::GPT_OSS,
    &gpt::GPT2,
    &gpt::GPTNEOX,
    &granite::GRANITE,
    &granite::GRANITE_SWA,
    &granite::GRANITEHYBRID,
    &granite::GRANITEMOE,
    &hunyuan::HUNYUAN_DENSE,
    &hunyuan::HUNYUAN_MOE,
    &hunyuan::HY_V3,
    &internlm::INTERNLM2,
    &jais::JAIS2,
    &mamba::JAMBA,
    &bert::JINA_BERT_V2,
    &bert::JINA_BERT_V3,
    &deepseek::KIMI_LINEAR,
    &laguna::LAGUNA,
    &lfm2::LFM2,
    &lfm2::LFM2MOE,
    &llama::LLAMA,
    &llama::LLAMA_EMBED,
    &llama::LLAMA4,
    &mamba::MAMBA,
    &mamba::MAMBA2,
    &laguna::MELLUM,
    &mimo::MIMO2,
    &minicpm::MINICPM,
    &minicpm::MINICPM3,
    &minimax::MINIMAX_M2,
    &llama::MISTRAL3,
    &deepseek::MISTRAL4,
    &bert::MODERN_BERT,
    &nemotron::NEMOTRON,
    &nemotron::NEMOTRON_H,
    &nemotron::NEMOTRON_H_MOE,
    &bert::NEO_BERT,
    &bert::NOMIC_BERT,
    &bert::NOMIC_BERT_MOE,
    &olmo::OLMO,
    &olmo::OLMO2,
    &olmo::OLMOE,
    &phi::PHI2,
    &phi::PHI3,
    &phi::PHIMOE,
    &qwen::QWEN2,
    &qwen::QWEN2MOE,
    &qwen::QWEN3,
    &qwen::QWEN35,
    &qwen::QWEN35MOE,
    &qwen::QWEN3MOE,
    &qwen::QWEN3NEXT,
    &rwkv::RWKV7,
    &llama::SEED_OSS,
    &llama::SMOLLM3,
    &stablelm::STABLELM,
    &gpt::STARCODER,
    &gpt::STARCODER2,
    &step::STEP35,
];
