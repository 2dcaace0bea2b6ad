"""Measures a llama network written in jax on a PJRT plugin, on request, for `mlxcel-benches`.

usage: worker.py CHECKPOINT TYPE CACHE_LENGTH        (TYPE of weights, operands and cache: f32, bf16)

The plugin is the one of the environment: `PJRT_NAMES_AND_LIBRARY_PATHS=mlxcel:PATH`, `JAX_PLATFORMS=mlxcel`.

Says in a line of JSON what it is, then reads a request a line and answers each with a line:

    prefill TOKENS                a prompt of as many tokens in one program, until the token after it is known
    decode COUNT POSITION...      COUNT tokens, one by one, of a sequence that has POSITION tokens, for each position
    logits TOKENS FILE            writes the logits after a prompt, as float32
    bandwidth                     how many bytes the memory moves in a second, read and written

The network is written as one does for speed: whole programs under `jit`, a donated KV cache of the length that is in use, the most likely
token chosen on the device. As in the engine beside it, sums of products, the residual stream and norms are float32, and each token is read
before the next step begins, which is how a caller gets it.
"""

import json
import math
import mmap
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax


def tensors(path):
    """The tensors of a safetensors file by name, mapped."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8 : 8 + size])
    header.pop("__metadata__", None)
    types = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}

    def tensor(entry):
        start, end = entry["data_offsets"]
        part = np.frombuffer(mapped, np.uint8, end - start, 8 + size + start)
        return part.view(types[entry["dtype"]]).reshape(entry["shape"])

    return {name: tensor(entry) for name, entry in header.items()}


def load(path, dtype):
    """The weights on the device, each matrix `[outputs, inputs]` as it is stored."""
    found = tensors(Path(path) / "model.safetensors")
    config = json.loads((Path(path) / "config.json").read_text())

    def put(name):
        return jax.device_put(found[name].astype(dtype))

    names = {
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    }
    layers = [
        {key: put(f"model.layers.{layer}.{name}.weight") for key, name in names.items()}
        for layer in range(config["num_hidden_layers"])
    ]
    weights = {"embedding": put("model.embed_tokens.weight"), "norm": put("model.norm.weight"), "layers": layers}
    return jax.block_until_ready(weights), config


def frequencies(config):
    """Of each pair of a head's elements how far a position rotates it, as Llama 3.1 stretches them."""
    width = config["head_dim"]
    plain = config["rope_theta"] ** (-np.arange(0, width, 2) / width)
    scaling = config.get("rope_scaling")
    if not scaling:
        return plain.astype(np.float32)
    context, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = context * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * plain / factor + smooth * plain).astype(np.float32)


class Network:
    """A llama of these settings, its products in `dtype`."""

    def __init__(self, config, dtype):
        self.dtype = dtype
        self.epsilon = config["rms_norm_eps"]
        self.heads, self.groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.width = config["head_dim"]
        self.frequencies = frequencies(config)

    def cache(self, layers, length):
        """Keys and values of each layer, zeros."""
        shape = (self.groups, length, self.width)
        return [tuple(jnp.zeros(shape, self.dtype) for _ in range(2)) for _ in range(layers)]

    def norm(self, x, weight):
        scale = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x * scale * weight.astype(jnp.float32)

    def linear(self, x, weight):
        dimensions = (((x.ndim - 1,), (1,)), ((), ()))
        return lax.dot_general(x.astype(self.dtype), weight, dimensions, preferred_element_type=jnp.float32)

    def rotate(self, x, cos, sin):
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, x, weights, cache, position, cos, sin):
        tokens, length = x.shape[0], cache[0].shape[1]

        def heads(weight, count):
            return self.linear(x, weight).reshape(tokens, count, self.width).transpose(1, 0, 2)

        query = self.rotate(heads(weights["q"], self.heads), cos, sin)
        key = self.rotate(heads(weights["k"], self.groups), cos, sin)
        value = heads(weights["v"], self.groups)
        cache = tuple(
            lax.dynamic_update_slice(kept, new.astype(self.dtype), (0, position, 0))
            for kept, new in zip(cache, (key, value))
        )
        keys, values = (kept.astype(jnp.float32) for kept in cache)
        query = query.reshape(self.groups, self.heads // self.groups, tokens, self.width)
        scores = jnp.einsum("gntd,gsd->gnts", query, keys) / math.sqrt(self.width)
        seen = jnp.arange(length)[None, :] <= position + jnp.arange(tokens)[:, None]
        mixed = jnp.einsum("gnts,gsd->tgnd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1), values)
        return self.linear(mixed.reshape(tokens, self.heads * self.width), weights["o"]), cache

    def logits(self, weights, caches, tokens, position):
        """Float32 logits after the last of `tokens`, and the caches that have them all."""
        x = weights["embedding"][tokens].astype(jnp.float32)
        angles = (position + jnp.arange(tokens.shape[0]))[:, None] * self.frequencies
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        kept = []
        for layer, cache in zip(weights["layers"], caches):
            mixed, cache = self.attention(self.norm(x, layer["attention_norm"]), layer, cache, position, cos, sin)
            kept.append(cache)
            x = x + mixed
            normed = self.norm(x, layer["mlp_norm"])
            gated = jax.nn.silu(self.linear(normed, layer["gate"])) * self.linear(normed, layer["up"])
            x = x + self.linear(gated, layer["down"])
        last = self.norm(x[-1:], weights["norm"])
        return self.linear(last, weights["embedding"]), kept

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def step(self, weights, caches, tokens, position):
        """The most likely token after `tokens`, as an array of one, and the caches."""
        logits, caches = self.logits(weights, caches, tokens, position)
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), caches

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def only_logits(self, weights, caches, tokens, position):
        return self.logits(weights, caches, tokens, position)


def prompt(tokens):
    return np.array([(7 * i + 11) % 1000 for i in range(tokens)], np.int32)


class Measured:
    def __init__(self, path, kind, length):
        dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[kind]
        self.weights, config = load(path, dtype)
        self.layers, self.length = config["num_hidden_layers"], length
        self.network = Network(config, dtype)

    def cache(self):
        return jax.block_until_ready(self.network.cache(self.layers, self.length))

    def prefill(self, tokens):
        """The seconds, the token after the prompt, and the caches."""
        caches, ids = self.cache(), prompt(tokens)
        start = time.perf_counter()
        token, caches = self.network.step(self.weights, caches, ids, np.int32(0))
        int(token[0])
        return time.perf_counter() - start, token, caches

    def decode(self, position, count):
        _, token, caches = self.prefill(position)
        start = time.perf_counter()
        for at in range(position, position + count):
            token, caches = self.network.step(self.weights, caches, token, np.int32(at))
            int(token[0])
        return time.perf_counter() - start

    def logits(self, tokens, path):
        start = time.perf_counter()
        logits, _ = self.network.only_logits(self.weights, self.cache(), prompt(tokens), np.int32(0))
        Path(path).write_bytes(np.asarray(logits[0], np.float32).tobytes())
        return time.perf_counter() - start


@partial(jax.jit, donate_argnums=0)
def add(x):
    return x + 1


def bandwidth():
    """Bytes a second: a gigabyte is read and written, twenty times."""
    x = add(jnp.zeros(1 << 28, jnp.float32))
    jax.block_until_ready(x)
    start = time.perf_counter()
    for _ in range(20):
        x = add(x)
    jax.block_until_ready(x)
    return 20 * 2 * x.nbytes / (time.perf_counter() - start)


def main():
    _, path, kind, length = sys.argv
    # Whatever else is printed must not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    start = time.perf_counter()
    measured = Measured(path, kind, int(length))
    versions = [["jax", jax.__version__], ["plugin", jax.devices()[0].client.platform_version.splitlines()[0]]]
    answer({"versions": versions, "load_seconds": time.perf_counter() - start})
    for line in sys.stdin:
        request, _, rest = line.strip().partition(" ")
        if request == "prefill":
            answer({"seconds": measured.prefill(int(rest))[0]})
        elif request == "decode":
            count, *positions = (int(word) for word in rest.split())
            answer({"seconds": [measured.decode(position, count) for position in positions]})
        elif request == "logits":
            tokens, file = rest.split(maxsplit=1)
            answer({"seconds": measured.logits(int(tokens), file)})
        elif request == "bandwidth":
            answer({"bytes_per_second": bandwidth()})
        else:
            raise SystemExit(f"an unknown request: {line}")


if __name__ == "__main__":
    main()
