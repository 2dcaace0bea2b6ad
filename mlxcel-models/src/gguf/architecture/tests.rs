//! The table of architectures.

use std::collections::BTreeSet;

use super::*;
use crate::families::supported_model_types;

#[test]
fn architectures_are_families_and_in_order() {
    let names: Vec<_> = known::ALL.iter().map(|architecture| architecture.name).collect();
    let sorted: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(names, sorted.into_iter().collect::<Vec<_>>());
    for architecture in known::ALL {
        assert!(
            supported_model_types().any(|model_type| model_type == architecture.model_type),
            "{}",
            architecture.name
        );
    }
}

#[test]
fn tensors_go_where_families_look_for_them() {
    let target = |architecture: &str, name: &str| {
        let architecture = known::ALL.iter().find(|known| known.name == architecture).unwrap();
        super::target(architecture, 2, name)
    };
    let to = |name: &str| Ok(Some((name.to_owned(), Change::Keep)));
    assert_eq!(target("llama", "blk.1.attn_q.weight"), to("model.layers.1.self_attn.q_proj.weight"));
    assert_eq!(target("llama", "output.weight"), to("lm_head.weight"));
    assert_eq!(target("gpt2", "blk.0.attn_qkv.bias"), to("transformer.h.0.attn.c_attn.bias"));
    assert_eq!(target("gpt-oss", "blk.0.attn_sinks.weight"), to("model.layers.0.self_attn.sinks"));
    assert_eq!(
        target("gemma2", "blk.0.ffn_norm.weight"),
        to("model.layers.0.pre_feedforward_layernorm.weight")
    );
    assert_eq!(target("rwkv7", "token_embd_norm.bias"), to("model.layers.0.pre_norm.bias"));
    // What becomes a setting, and what is behind the layers.
    assert_eq!(target("llama", "rope_freqs.weight"), Ok(None));
    assert_eq!(target("mimo2", "blk.2.nextn.eh_proj.weight"), Ok(None));
    // The first of those is the draft head of families that know theirs.
    assert_eq!(target("glm4moe", "blk.2.nextn.eh_proj.weight"), to("model.layers.2.eh_proj.weight"));
    assert_eq!(
        target("deepseek2", "blk.2.nextn.shared_head_norm.weight"),
        to("model.layers.2.shared_head.norm.weight")
    );
    assert_eq!(target("deepseek2", "blk.2.attn_norm.weight"), to("model.layers.2.input_layernorm.weight"));
    assert_eq!(target("qwen35", "blk.2.nextn.hnorm.weight"), to("mtp.pre_fc_norm_hidden.weight"));
    assert_eq!(target("qwen3next", "blk.2.attn_q_norm.weight"), to("mtp.layers.0.self_attn.q_norm.weight"));
    assert_eq!(target("glm4moe", "blk.2.nextn.shared_head_head.weight"), Ok(None));
    assert_eq!(target("glm4moe", "blk.2.nextn.embed_tokens.weight"), Ok(None));
    assert_eq!(target("glm4moe", "blk.3.nextn.eh_proj.weight"), Ok(None));
    assert_eq!(target("llama", "blk.0.post_ffw_norm.weight"), Err(()));
    assert_eq!(target("llama", "blk.x.attn_q.weight"), Err(()));
    assert_eq!(target("bitnet", "blk.0.attn_q.scale"), Err(()));
}
