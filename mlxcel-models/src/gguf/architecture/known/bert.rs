//! Encoders: BERT and what follows it.

use super::shared::*;

/// BERT; DistilBERT, without token types; and RoBERTa, whose table of positions the converter has cut at the
/// first one.
pub(super) const BERT: Architecture = Architecture {
    name: "bert",
    model_type: "bert",
    settings: &[&[EPSILON]],
    present: &[],
    base: ["", "encoder.layer."],
    tensors: &[
        EMBEDDINGS,
        &[
            ("position_embd", "embeddings.position_embeddings", Keep),
            ("ffn_up", "intermediate.dense", Keep),
            ("ffn_down", "output.dense", Keep),
            ("layer_output_norm", "output.LayerNorm", Keep),
            ("cls", "classifier.dense", Keep),
            ("cls.output", "classifier.out_proj", Keep),
        ],
        ATTENTION,
    ],
    adapt: bert,
    ..PLAIN
};

pub(super) const NOMIC_BERT: Architecture = Architecture {
    name: "nomic-bert",
    model_type: "nomic_bert",
    settings: &[&[EPSILON]],
    present: &[],
    base: ["", "encoder.layers."],
    tensors: &[
        EMBEDDINGS,
        &[
            ("attn_qkv", "attn.Wqkv", Keep),
            ("attn_output", "attn.out_proj", Keep),
            ("ffn_up", "mlp.fc11", Keep),
            ("ffn_gate", "mlp.fc12", Keep),
        ],
        NOMIC,
    ],
    adapt: types,
    ..PLAIN
};

/// Nomic Embed v2, without the biases of its experts, which the converter leaves out.
pub(super) const NOMIC_BERT_MOE: Architecture = Architecture {
    name: "nomic-bert-moe",
    settings: &[&[
        (LAYER_EPSILON, "layer_norm_epsilon"),
        ("rope.freq_base", "rotary_emb_base"),
        ("moe_every_n_layers", "moe_every_n_layers"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "moe_top_k"),
    ]],
    tensors: &[
        EMBEDDINGS,
        &[
            ("attn_qkv", "attn.Wqkv", Keep),
            ("attn_output", "attn.out_proj", Keep),
            ("ffn_up", "mlp.fc1", Keep),
            ("ffn_gate_inp", "mlp.router.layer", Keep),
        ],
        NOMIC,
    ],
    ..NOMIC_BERT
};

/// Jina Embeddings v2; that for code has tensors that are not known.
pub(super) const JINA_BERT_V2: Architecture = Architecture {
    name: "jina-bert-v2",
    fixed: &[("position_embedding_type", Text("alibi")), ("feed_forward_type", Text("geglu"))],
    tensors: &[
        EMBEDDINGS,
        &[
            ("attn_q_norm", "attention.self.layer_norm_q", Keep),
            ("ffn_gate", "mlp.gated_layers_w", Keep),
            ("ffn_up", "mlp.gated_layers", Keep),
            ("ffn_down", "mlp.wo", Keep),
            ("layer_output_norm", "mlp.layernorm", Keep),
        ],
        ATTENTION,
    ],
    adapt: types,
    ..BERT
};

/// Jina Embeddings v3; adapters of tasks are files of their own.
pub(super) const JINA_BERT_V3: Architecture = Architecture {
    name: "jina-bert-v3",
    model_type: "jina_embeddings_v3",
    tensors: &[
        EMBEDDINGS,
        &[
            ("attn_qkv", "mixer.Wqkv", Keep),
            ("attn_output", "mixer.out_proj", Keep),
            ("ffn_up", "mlp.fc1", Keep),
        ],
        NOMIC,
    ],
    ..NOMIC_BERT
};

pub(super) const EUROBERT: Architecture = Architecture {
    name: "eurobert",
    model_type: "eurobert",
    present: &[("attn_q.bias", "attention_bias"), ("ffn_up.bias", "mlp_bias")],
    ..PLAIN
};

pub(super) const NEO_BERT: Architecture = Architecture {
    name: "neo-bert",
    model_type: "neobert",
    rows: Pairs,
    settings: &[&[("attention.layer_norm_rms_epsilon", "norm_eps"), ("context_length", "max_length")]],
    present: &[],
    tensors: &[&[
        ("token_embd", "encoder", Keep),
        ("enc.output_norm", "layer_norm", Keep),
        ("attn_norm", "attention_norm", Keep),
        ("attn_qkv", "qkv", Keep),
        ("attn_output", "wo", Keep),
        ("ffn_norm", "ffn_norm", Keep),
        ("ffn_up", "ffn.w12", Keep),
        ("ffn_down", "ffn.w3", Keep),
        ("cls", "dense", Keep),
        ("cls.output", "classifier", Keep),
    ]],
    base: ["", "transformer_encoder."],
    adapt: neo_bert,
    ..PLAIN
};

pub(super) const MODERN_BERT: Architecture = Architecture {
    name: "modern-bert",
    model_type: "modernbert",
    settings: &[&[
        (LAYER_EPSILON, "norm_eps"),
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("attention.sliding_window", "local_attention"),
        ("attention.sliding_window_pattern", "global_attn_every_n_layers"),
        ("rope.freq_base", "global_rope_theta"),
        ("rope.freq_base_swa", "local_rope_theta"),
    ]],
    present: &[
        ("attn_output.bias", "attention_bias"),
        ("ffn_up.bias", "mlp_bias"),
        ("ffn_norm.bias", "norm_bias"),
    ],
    tensors: &[&[
        ("token_embd", "embeddings.tok_embeddings", Keep),
        ("token_embd_norm", "embeddings.norm", Keep),
        ("output_norm", "final_norm", Keep),
        ("attn_norm", "attn_norm", Keep),
        ("attn_qkv", "attn.Wqkv", Keep),
        ("attn_output", "attn.Wo", Keep),
        ("ffn_norm", "mlp_norm", Keep),
        ("ffn_up", "mlp.Wi", Keep),
        ("ffn_down", "mlp.Wo", Keep),
        ("cls", "head.dense", Keep),
        ("cls.norm", "head.norm", Keep),
        ("cls.output", "classifier", Keep),
    ]],
    base: ["", "layers."],
    adapt: modern_bert,
    ..PLAIN
};

/// Names of the tables that tokens and their types are looked up in.
const EMBEDDINGS: &[Name] = &[
    ("token_embd", "embeddings.word_embeddings", Keep),
    ("token_types", "embeddings.token_type_embeddings", Keep),
];
/// Names of BERT's norm of embeddings and of its attention.
const ATTENTION: &[Name] = &[
    ("token_embd_norm", "embeddings.LayerNorm", Keep),
    ("attn_q", "attention.self.query", Keep),
    ("attn_k", "attention.self.key", Keep),
    ("attn_v", "attention.self.value", Keep),
    ("attn_output", "attention.output.dense", Keep),
    ("attn_output_norm", "attention.output.LayerNorm", Keep),
];
/// Names of the norms of Nomic BERT and those after it, and of the projection behind the MLP's activation.
const NOMIC: &[Name] = &[
    ("token_embd_norm", "emb_ln", Keep),
    ("attn_output_norm", "norm1", Keep),
    ("ffn_down", "mlp.fc2", Keep),
    ("layer_output_norm", "norm2", Keep),
];
const EPSILON: Setting = (LAYER_EPSILON, "layer_norm_eps");

/// The number of token types, from their table.
fn types(draft: &mut Draft<'_>) -> Result<()> {
    draft.set_rows_of("type_vocab_size", "token_types.weight");
    Ok(())
}

fn bert(draft: &mut Draft<'_>) -> Result<()> {
    const SCORES: &str = "cls.output.weight";
    types(draft)?;
    // Files of DistilBERT.
    if !draft.has("token_types.weight") {
        draft.set("type_vocab_size", 0_usize);
    }
    match (draft.has(SCORES), draft.has("cls.weight")) {
        (false, _) => {}
        (true, true) => draft.set("architectures", vec!["RobertaForSequenceClassification"]),
        (true, false) => {
            let message = "a classifier of BERT needs its pooler, which llama.cpp's converter leaves out; open the \
                           checkpoint that the file was made of";
            return Err(draft.metadata.unsupported(SCORES, message.to_owned()));
        }
    }
    Ok(())
}

fn neo_bert(draft: &mut Draft<'_>) -> Result<()> {
    // Of the setting, MLPs have two thirds.
    if let Some(width) = draft.size_of("ffn_down.weight", 1) {
        draft.set("intermediate_size", width + width.div_ceil(2));
    }
    if draft.has("cls.output.weight") {
        draft.set("architectures", vec!["NeoBERTForSequenceClassification"]);
    }
    Ok(())
}

fn modern_bert(draft: &mut Draft<'_>) -> Result<()> {
    if let Some(name) = draft.metadata.text(&draft.key("hidden_activation"))? {
        draft.set("hidden_activation", name);
    }
    if draft.has("cls.output.weight") {
        draft.set("architectures", vec!["ModernBertForSequenceClassification"]);
        draft.set("classifier_bias", draft.has("cls.bias"));
        if let Some(pooling) = draft.metadata.pooling(&draft.key("classifier.pooling_type"))? {
            draft.set("classifier_pooling", pooling);
        }
    }
    Ok(())
}
