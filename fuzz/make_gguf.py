"""The models among the inputs of the target `gguf`: of four architectures, one layer each, with every type of block.

`python make_gguf.py` with PyPI's gguf and numpy.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

OUT = pathlib.Path(__file__).parent / "corpus/gguf"
QUANTIZED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "BF16"]
rng = np.random.default_rng(1)


def values(name, shape):
    made = rng.standard_normal(shape).astype(np.float32) * 0.1
    if name.endswith("norm.weight"):
        return made + 1
    if name == "rope_freqs.weight":
        return np.abs(made) + 1
    return -np.exp(made) if name.endswith("ssm_a") else made


def add_tensor(writer, name, shape, kind):
    made = values(name, shape)
    if kind == "F32":
        writer.add_tensor(name, made)
    elif kind == "F16":
        writer.add_tensor(name, made.astype(np.float16))
    elif kind in QUANTIZED:
        writer.add_tensor(name, quantize(made, Type[kind]), raw_dtype=Type[kind])
    else:
        block, size = gguf.GGML_QUANT_SIZES[Type[kind]]
        raw = rng.integers(0, 60, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
        writer.add_tensor(name, raw, raw_dtype=Type[kind])


def model(name, architecture, keys, tensors):
    writer = gguf.GGUFWriter(OUT / name, architecture)
    for key, value in keys.items():
        writer.add_key_value(f"{architecture}.{key}", value, *kinds(value))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["a", "b", "c", "Ġ", "ab", "Ġa", "<s>", "<|im_end|>"])
    writer.add_token_types([1] * 6 + [3, 3])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(6)
    writer.add_eos_token_id(7)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    for tensor, (shape, kind) in tensors.items():
        add_tensor(writer, tensor, shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def kinds(value):
    kind = gguf.GGUFValueType
    if isinstance(value, list):
        return kind.ARRAY, kind.BOOL
    return ({bool: kind.BOOL, int: kind.UINT32, float: kind.FLOAT32, str: kind.STRING}[type(value)],)


def layer(tensors):
    return {f"blk.0.{name}": tensor for name, tensor in tensors.items()}


def sizes(hidden, mlp):
    return {
        "block_count": 1, "context_length": 64, "embedding_length": hidden, "feed_forward_length": mlp,
        "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 16, "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
    }


def main():
    h = 32
    top = {"token_embd.weight": ((8, h), "Q8_0"), "output_norm.weight": ((h,), "F32")}
    attention = {
        "attn_norm.weight": ((h,), "F32"), "attn_q.weight": ((h, h), "Q8_0"), "attn_k.weight": ((16, h), "Q4_0"),
        "attn_v.weight": ((16, h), "Q5_1"), "attn_output.weight": ((h, h), "F16"), "ffn_norm.weight": ((h,), "F32"),
    }
    model("llama", "llama", sizes(h, 64), {
        **top, "output.weight": ((8, h), "BF16"), "rope_freqs.weight": ((8,), "F32"),
        **layer({
            **attention, "ffn_gate.weight": ((64, h), "Q4_1"), "ffn_up.weight": ((64, h), "Q5_0"),
            "ffn_down.weight": ((h, 64), "MXFP4"),
        }),
    })
    model("qwen3moe", "qwen3moe", {**sizes(h, 64), "expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 32}, {
        **top,
        **layer({
            **attention, "attn_q_norm.weight": ((16,), "F32"), "attn_k_norm.weight": ((16,), "F32"),
            "ffn_gate_inp.weight": ((2, h), "F32"), "ffn_gate_exps.weight": ((2, 32, h), "IQ4_NL"),
            "ffn_up_exps.weight": ((2, 32, h), "Q4_0"), "ffn_down_exps.weight": ((2, h, 32), "Q8_0"),
        }),
    })
    model("mamba2", "mamba2", {
        **sizes(h, 0), "attention.head_count": 0, "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 8,
        "ssm.time_step_rank": 4, "ssm.group_count": 2,
    }, {
        **top, "output.weight": ((8, h), "F16"),
        **layer({
            "attn_norm.weight": ((h,), "F32"), "ssm_in.weight": ((164, h), "Q8_0"), "ssm_conv1d.weight": ((96, 4), "F32"),
            "ssm_conv1d.bias": ((96,), "F32"), "ssm_dt.bias": ((4,), "F32"), "ssm_a": ((4, 1), "F32"), "ssm_d": ((4, 1), "F32"),
            "ssm_norm.weight": ((2, 32), "F32"), "ssm_out.weight": ((h, 64), "Q8_0"),
        }),
    })
    h = 256
    windows = {
        "attention.sliding_window": 16, "attention.sliding_window_pattern": [True], "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    norms = {f"{name}.weight": ((h,), "F32") for name in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]}
    model("gemma3-k", "gemma3", {**sizes(h, 16), **windows}, {
        "token_embd.weight": ((8, h), "Q6_K"), "output_norm.weight": ((h,), "F32"),
        **layer({
            **norms, "attn_q.weight": ((32, h), "Q4_K"), "attn_k.weight": ((16, h), "Q2_K"), "attn_v.weight": ((16, h), "Q3_K"),
            "attn_output.weight": ((h, 32), "Q8_0"), "attn_q_norm.weight": ((16,), "F32"), "attn_k_norm.weight": ((16,), "F32"),
            "ffn_gate.weight": ((16, h), "Q5_K"), "ffn_up.weight": ((16, h), "IQ4_XS"), "ffn_down.weight": ((h, 16), "F16"),
        }),
    })


main()
