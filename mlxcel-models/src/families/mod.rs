//! Model families. Each maps the config and tensor names of one architecture to a [`Decoder`].
//!
//! To add one, add a file here with a [`Family`] and list it in [`FAMILIES`].

mod afmoe;
mod apertus;
mod arcee;
mod axk1;
mod bailing_hybrid;
mod bamba;
mod bert;
mod bitnet;
mod blocks;
mod codegen;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod conversion;
mod convolution;
mod cwm;
mod deepseek;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod distilbert;
mod dots1;
mod eagle3;
mod electra;
mod encoder;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone4;
mod exaone_moe;
mod experts;
mod falcon;
mod falcon_h1;
mod flint;
mod gemma;
mod gemma2;
mod gemma3_text;
mod gemma3n_text;
mod gemma4_text;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_bigcode;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_swa;
mod granitemoe;
mod granitemoehybrid;
mod granitemoeshared;
mod helium;
mod hunyuan_v1_dense;
mod hunyuan_v1_moe;
mod hy_v3;
mod hyperclovax;
mod indexer;
mod internlm2;
mod internlm3;
mod jais2;
mod jamba;
mod kimi_delta;
mod kimi_linear;
mod kolibri1;
mod laguna;
mod latent;
mod layer_inputs;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama;
mod llama4_text;
mod longcat_flash;
mod mamba;
mod mamba2;
mod mellum;
mod mimo_v2_flash;
mod minicpm;
mod minicpm3;
mod minimax_m2;
mod ministral;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod modernbert;
mod mpnet;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod neobert;
mod nomic_bert;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod opt;
mod outline;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod prelude;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5_moe_text;
mod qwen3_5_text;
mod qwen3_moe;
mod qwen3_next;
mod roles;
mod rwkv7;
mod seed_oss;
mod selective_scan;
mod settings;
mod smollm3;
mod solar_open;
mod sparse_layers;
mod stablelm;
mod starcoder2;
mod state_space;
mod step3p5;
mod structure;
mod text;
mod vaultgemma;
mod youtu;

use std::collections::HashSet;

use mlxcel_core::{Error, LoadOptions, ModelPart, Result, TokenId};

pub use conversion::Conversion;
use roles::{OPERATION, Roles};
pub(crate) use settings::activation;
pub(crate) use text::TextModel;

use crate::checkpoint::Checkpoint;
use crate::decoder::{Decoder, Mixer, OutputStates, WeightRef};
use crate::read::formats::refuse_quantized_activations;

/// An architecture, or several that differ in nothing but their name.
pub(crate) struct Family {
    /// The values of `model_type` that [`Checkpoint::decoder`] supports.
    model_types: &'static [&'static str],
    /// The tokens that end a text where no file mentions one, from the default of the settings class in
    /// transformers.
    pub(crate) stop_tokens: &'static [TokenId],
    /// Reads settings and weights into a description.
    describe: fn(&Roles<'_>) -> Result<Decoder>,
    /// What mlx-lm's converter does to its tensors.
    conversion: Conversion,
}

impl Family {
    /// The family of these values of `model_type`, with these stop tokens, that mlx-lm converts as most
    /// others.
    const fn new(
        model_types: &'static [&'static str],
        stop_tokens: &'static [TokenId],
        describe: fn(&Roles<'_>) -> Result<Decoder>,
    ) -> Self {
        Self { model_types, stop_tokens, describe, conversion: Conversion::USUAL }
    }
}

/// Every supported family.
const FAMILIES: &[Family] = &[
    afmoe::FAMILY,
    apertus::FAMILY,
    arcee::FAMILY,
    axk1::FAMILY,
    bailing_hybrid::FAMILY,
    bamba::FAMILY,
    bert::ERNIE,
    bert::FAMILY,
    bert::ROBERTA,
    bitnet::FAMILY,
    codegen::FAMILY,
    cohere::FAMILY,
    cohere2::FAMILY,
    cohere2_moe::FAMILY,
    cwm::FAMILY,
    deepseek::FAMILY,
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    deepseek_v32::FAMILY,
    deepseek_v4::FAMILY,
    distilbert::FAMILY,
    dots1::FAMILY,
    electra::FAMILY,
    ernie4_5::FAMILY,
    ernie4_5_moe::FAMILY,
    eurobert::FAMILY,
    exaone4::FAMILY,
    exaone_moe::FAMILY,
    falcon::FAMILY,
    falcon_h1::FAMILY,
    flint::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3_text::FAMILY,
    gemma3n_text::FAMILY,
    gemma4_text::FAMILY,
    glm::FAMILY,
    glm4::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    glm_moe_dsa::FAMILY,
    gpt2::FAMILY,
    gpt_bigcode::FAMILY,
    gpt_neox::FAMILY,
    gpt_oss::FAMILY,
    gptj::FAMILY,
    granite::FAMILY,
    granite_swa::FAMILY,
    granitemoe::FAMILY,
    granitemoehybrid::FAMILY,
    granitemoeshared::FAMILY,
    helium::FAMILY,
    hunyuan_v1_dense::FAMILY,
    hunyuan_v1_moe::FAMILY,
    hy_v3::FAMILY,
    hyperclovax::FAMILY,
    internlm2::FAMILY,
    internlm3::FAMILY,
    jais2::FAMILY,
    jamba::FAMILY,
    kimi_linear::FAMILY,
    kolibri1::FAMILY,
    laguna::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    lfm3::FAMILY,
    llama::FAMILY,
    llama4_text::FAMILY,
    longcat_flash::FAMILY,
    mamba::FAMILY,
    mamba::FALCON,
    mamba2::FAMILY,
    mellum::FAMILY,
    mimo_v2_flash::FAMILY,
    minicpm::FAMILY,
    minicpm3::FAMILY,
    minimax_m2::FAMILY,
    ministral::FAMILY,
    ministral3::FAMILY,
    mistral::FAMILY,
    mistral4::FAMILY,
    mixtral::FAMILY,
    modernbert::FAMILY,
    mpnet::FAMILY,
    nanochat::FAMILY,
    nemotron::FAMILY,
    nemotron_h::FAMILY,
    neobert::FAMILY,
    nomic_bert::FAMILY,
    nomic_bert::GTE,
    nomic_bert::JINA,
    olmo::FAMILY,
    olmo2::FAMILY,
    olmo3::FAMILY,
    olmo_hybrid::FAMILY,
    olmoe::FAMILY,
    opt::FAMILY,
    persimmon::FAMILY,
    phi::FAMILY,
    phi3::FAMILY,
    phimoe::FAMILY,
    qwen2::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_5_moe_text::FAMILY,
    qwen3_5_text::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    rwkv7::FAMILY,
    seed_oss::FAMILY,
    smollm3::FAMILY,
    solar_open::FAMILY,
    stablelm::FAMILY,
    starcoder2::FAMILY,
    step3p5::FAMILY,
    vaultgemma::FAMILY,
    youtu::FAMILY,
];

/// The values of `model_type` that [`Checkpoint::decoder`] supports.
pub fn supported_model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types.iter().copied())
}

/// The family of a `model_type`.
pub(crate) fn find(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

impl Checkpoint {
    /// The description of the network: every layer, with a weight for each role.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for an unknown `model_type` or an unsupported
    /// config field; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for a config that is inconsistent with
    /// itself or with the tensors' shapes; [`NotFound`](mlxcel_core::ErrorKind::NotFound) for a missing
    /// tensor. The error names the field or the tensor.
    pub fn decoder(&self) -> Result<Decoder> {
        describe(self, ModelPart::Whole)
    }

    /// The description of what [`LoadOptions::part`] and [`LoadOptions::output_states`] ask for; the first
    /// thing that a [`Backend`](mlxcel_core::Backend) needs of a checkpoint.
    ///
    /// # Errors
    ///
    /// The errors of [`decoder`](Self::decoder). For a [draft head](ModelPart::DraftHead):
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) if the family's are not known,
    /// [`NotFound`](mlxcel_core::ErrorKind::NotFound) if the checkpoint has none. For hidden states:
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for a model that does not generate. For a head of [another
    /// checkpoint](LoadOptions::draft_head): [`InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) if it was
    /// trained for a model of other sizes.
    pub fn decoder_for(&self, options: &LoadOptions) -> Result<Decoder> {
        if options.part == ModelPart::DraftHead {
            return match self.draft_head() {
                None => describe(self, options.part),
                Some(head) => kept_whole(eagle3::describe(head, &describe(self, ModelPart::Whole)?)?),
            };
        }
        let mut decoder = describe(self, options.part)?;
        if !options.output_states {
            return Ok(decoder);
        }
        if decoder.head.is_none() {
            let message = "the model does not generate, so nothing is drafted for it";
            return Err(Error::unsupported(OPERATION, message).with_context("field", "output_states"));
        }
        match self.draft_head() {
            None => decoder.output_states = Some(OutputStates::Normed),
            Some(head) => eagle3::return_states(head, &mut decoder)?,
        }
        Ok(decoder)
    }

    /// Whether it is an EAGLE-3 draft head, which runs only with [the model that it was trained
    /// for](LoadOptions::draft_head).
    pub fn is_draft_head(&self) -> bool {
        eagle3::is_head(self)
    }
}

/// The decoder of a checkpoint of any family.
fn describe(checkpoint: &Checkpoint, part: ModelPart) -> Result<Decoder> {
    if checkpoint.is_draft_head() {
        let message = "this is an EAGLE-3 draft head, which does not run alone; open the model that it was trained for \
                       with it (`--draft-head`)";
        return Err(checkpoint.config().unsupported("architectures", message.to_owned()));
    }
    let text = TextModel::of(checkpoint.model_type(), checkpoint.config())?;
    let Some(family) = find(text.model_type) else {
        let supported = supported_model_types().collect::<Vec<_>>().join(", ");
        let message = format!(
            "the model type '{}' is not known; supported: {supported}",
            text.model_type.escape_debug()
        );
        return Err(text.config.unsupported("model_type", message));
    };
    if let Some(error) = refuse_quantized_activations(checkpoint.config()) {
        return Err(error);
    }
    let roles = Roles::new(checkpoint, text, part);
    let decoder = (family.describe)(&roles)?;
    if !roles.is_draft_head() {
        expect_no_other_bias(checkpoint, &decoder)?;
        return Ok(decoder);
    }
    if decoder.input_states.is_none() {
        return Err(roles.unknown_draft_head());
    }
    kept_whole(decoder)
}

/// Refuses a bias in a GGUF file that the decoder does not read, though it reads the weight beside it: only
/// its presence says that it is added.
fn expect_no_other_bias(checkpoint: &Checkpoint, decoder: &Decoder) -> Result<()> {
    let Some(architecture) = checkpoint.gguf_architecture() else { return Ok(()) };
    let read: HashSet<&str> =
        decoder.weights().flat_map(WeightRef::tensors).flat_map(WeightRef::names).collect();
    let is_other = |name: &&str| {
        let module = name.strip_suffix(".bias").filter(|_| !read.contains(name));
        module.is_some_and(|module| read.contains(&*format!("{module}.weight")))
    };
    match checkpoint.tensors().map(|(name, _)| name).find(is_other) {
        None => Ok(()),
        Some(name) => {
            let message = format!("a bias here is not supported for the architecture '{architecture}'");
            Err(Error::unsupported(OPERATION, message).with_context("tensor", name))
        }
    }
}

/// Refuses draft heads whose sequences may have to be computed again, since nobody keeps the states that they
/// were fed.
fn kept_whole(decoder: Decoder) -> Result<Decoder> {
    let keeps_all = |mixer: &Mixer| match mixer {
        Mixer::Attention(attention) => attention.core.window.is_none(),
        Mixer::Latent(latent) => latent.sparse.is_none(),
        _ => false,
    };
    if decoder.mixers().all(keeps_all) && !decoder.rope_epochs().depend_on_length() {
        return Ok(decoder);
    }
    let message = "draft heads with windows, recurrences, selected positions or frequencies by length are not supported";
    Err(Error::unsupported(OPERATION, message).with_context("model_type", decoder.model_type))
}
