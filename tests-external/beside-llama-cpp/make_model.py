"""Writes model.gguf, the checkpoint fixtures/architectures/llama in the form that llama.cpp reads: `python make_model.py`.

Names are llama.cpp's, rows of query and key are in the order of its rotary embedding, and there is no tokenizer.
"""

import json
import math
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
FIXTURE = HERE / "../../fixtures/architectures/llama"
F32, BF16 = 0, 30
UINT32, FLOAT32, STRING = 4, 6, 8

config = json.loads((FIXTURE / "config.json").read_text())
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
raw = (FIXTURE / "model.safetensors").read_bytes()
(header_size,) = struct.unpack("<Q", raw[:8])
header = json.loads(raw[8 : 8 + header_size])
header.pop("__metadata__", None)


def weight(name):
    entry = header[name]
    assert entry["dtype"] == "BF16", entry
    begin, end = entry["data_offsets"]
    return entry["shape"], raw[8 + header_size + begin : 8 + header_size + end]


def permuted(name, heads):
    """Halves of a head's rows become pairs."""
    (rows, columns), data = weight(name)
    each = rows // heads
    order = [h * each + half * each // 2 + i for h in range(heads) for i in range(each // 2) for half in range(2)]
    row = lambda n: data[n * columns * 2 : (n + 1) * columns * 2]
    return [rows, columns], b"".join(row(n) for n in order)


def widened(name):
    """Vectors are float32 in GGUF files."""
    shape, data = weight(name)
    return shape, b"".join(b"\0\0" + data[n : n + 2] for n in range(0, len(data), 2))


def rope_factors():
    scaling, base, size = config["rope_scaling"], config["rope_theta"], config["head_dim"]
    low, high, old = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    factors = []
    for n in range(0, size, 2):
        length = 2 * math.pi * base ** (n / size)
        smooth = min(max((old / length - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return [size // 2], struct.pack(f"<{len(factors)}f", *factors)


tensors = [
    ("token_embd.weight", BF16, *weight("model.embed_tokens.weight")),
    ("output_norm.weight", F32, *widened("model.norm.weight")),
    ("rope_freqs.weight", F32, *rope_factors()),
]
for layer in range(config["num_hidden_layers"]):
    ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
    for name, short in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")]:
        tensors.append((f"{theirs}.{short}.weight", F32, *widened(f"{ours}.{name}.weight")))
    for name, count in [("q", heads), ("k", kv_heads)]:
        tensors.append((f"{theirs}.attn_{name}.weight", BF16, *permuted(f"{ours}.self_attn.{name}_proj.weight", count)))
    for name, short in [
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]:
        tensors.append((f"{theirs}.{short}.weight", BF16, *weight(f"{ours}.{name}.weight")))

string = lambda text: struct.pack("<Q", len(text.encode())) + text.encode()
metadata = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.vocab_size": config["vocab_size"],
    "llama.context_length": config["max_position_embeddings"],
    "llama.embedding_length": config["hidden_size"],
    "llama.block_count": config["num_hidden_layers"],
    "llama.feed_forward_length": config["intermediate_size"],
    "llama.rope.dimension_count": config["head_dim"],
    "llama.attention.head_count": heads,
    "llama.attention.head_count_kv": kv_heads,
    "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    "llama.rope.freq_base": float(config["rope_theta"]),
    "tokenizer.ggml.model": "no_vocab",
}
out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
for key, value in metadata.items():
    kind, code = {str: (STRING, None), int: (UINT32, "<I"), float: (FLOAT32, "<f")}[type(value)]
    out += string(key) + struct.pack("<I", kind) + (string(value) if code is None else struct.pack(code, value))
offset, contents = 0, b""
for name, kind, shape, data in tensors:
    out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
    out += struct.pack("<IQ", kind, offset)
    data += bytes(-len(data) % 32)
    contents += data
    offset += len(data)
out += bytes(-len(out) % 32)
(HERE / "model.gguf").write_bytes(out + contents)
