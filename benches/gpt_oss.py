#!/usr/bin/env python3
"""Writes a checkpoint of gpt-oss-20b's widths with random MXFP4 experts and fewer layers, and prints the bytes that a token reads.

Needs numpy. Speed depends on shapes and element types, not on values.   usage: gpt_oss.py OUT_DIR [--layers 4] [--vocabulary 32768]
"""
import argparse
import json
import os
import struct

import numpy as np

HIDDEN, WIDTH, EXPERTS, CHOSEN, HEADS, KV_HEADS, HEAD = 2880, 2880, 32, 4, 64, 8, 64


def config(layers, vocabulary):
    return dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True, head_dim=HEAD, hidden_act="silu", hidden_size=HIDDEN,
        intermediate_size=WIDTH, num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, num_local_experts=EXPERTS,
        num_experts_per_tok=CHOSEN, layer_types=["sliding_attention", "full_attention"] * (layers // 2), sliding_window=128,
        max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=150000.0, swiglu_limit=7.0, vocab_size=vocabulary,
        tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1,
        rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096, rope_type="yarn", truncate=False),
        quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))


def tensors(layers, vocabulary):
    """Each tensor's name, type, shape and the part of it that a token reads."""
    part = CHOSEN / EXPERTS
    yield "model.embed_tokens.weight", "BF16", (vocabulary, HIDDEN), 0
    yield "lm_head.weight", "BF16", (vocabulary, HIDDEN), 1
    yield "model.norm.weight", "BF16", (HIDDEN,), 1
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows, columns in [("q", HEADS * HEAD, HIDDEN), ("k", KV_HEADS * HEAD, HIDDEN), ("v", KV_HEADS * HEAD, HIDDEN), ("o", HIDDEN, HEADS * HEAD)]:
            yield f"{p}self_attn.{name}_proj.weight", "BF16", (rows, columns), 1
            yield f"{p}self_attn.{name}_proj.bias", "BF16", (rows,), 1
        yield p + "self_attn.sinks", "BF16", (HEADS,), 1
        yield p + "input_layernorm.weight", "BF16", (HIDDEN,), 1
        yield p + "post_attention_layernorm.weight", "BF16", (HIDDEN,), 1
        yield p + "mlp.router.weight", "BF16", (EXPERTS, HIDDEN), 1
        yield p + "mlp.router.bias", "BF16", (EXPERTS,), 1
        for name, rows, columns in [("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)]:
            yield f"{p}mlp.experts.{name}_blocks", "U8", (EXPERTS, rows, columns // 32, 16), part
            yield f"{p}mlp.experts.{name}_scales", "SCALES", (EXPERTS, rows, columns // 32), part
            yield f"{p}mlp.experts.{name}_bias", "BF16", (EXPERTS, rows), part


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32768)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    with open(os.path.join(arguments.out, "config.json"), "w") as file:
        json.dump(config(arguments.layers, arguments.vocabulary), file, indent=2)
    every = list(tensors(arguments.layers, arguments.vocabulary))
    header, at, read = {"__metadata__": {"format": "pt"}}, 0, 0.0
    for name, kind, shape, part in every:
        size = int(np.prod(shape)) * (2 if kind == "BF16" else 1)
        header[name] = dict(dtype="BF16" if kind == "BF16" else "U8", shape=list(shape), data_offsets=[at, at + size])
        at, read = at + size, read + size * part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(7)
    with open(os.path.join(arguments.out, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, kind, shape, _ in every:
            count = int(np.prod(shape))
            if kind == "BF16":
                values = random.standard_normal(count, dtype=np.float32) * np.float32(0.02)
                if "norm" in name:
                    values = np.ones(count, np.float32)
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
            elif kind == "U8":
                file.write(random.bytes(count))
            else:
                file.write(random.integers(118, 122, count, dtype=np.uint8).tobytes())
    print(json.dumps(dict(bytes=at, bytes_per_token=int(read))))


if __name__ == "__main__":
    main()
