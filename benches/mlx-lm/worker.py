"""Measures mlx-lm on request, for `mlxcel-benches`.

usage: worker.py CHECKPOINT TYPE        (TYPE: f32, bf16, 4bit, 4bit-f32)

Says in a line of JSON what it is, then reads a request a line and answers each with a line:

    prefill TOKENS                a prompt of as many tokens, until the token after it is known
    decode COUNT POSITION...      COUNT tokens, one by one, of a sequence that has POSITION tokens, for each position
    logits TOKENS FILE            writes the logits after a prompt, as float32

The first two run mlx-lm's own generation loop, `generate_step`, which computes a token while the one before is handed out.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


def load(path, kind):
    """The model in the type that is asked for; `4bit` as published checkpoints are, `4bit-f32` with float32 activations."""
    model, _ = load_model(Path(path), lazy=True)
    model.set_dtype(mx.float32 if kind in ("f32", "4bit-f32") else mx.bfloat16)
    if kind.startswith("4bit"):
        nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def prefill(model, tokens):
    prompt = mx.array([(7 * i + 11) % 1000 for i in range(tokens)])
    start = time.perf_counter()
    token, _ = next(generate_step(prompt, model, max_tokens=1))
    seconds = time.perf_counter() - start
    mx.synchronize()
    return {"seconds": seconds, "token": int(token)}


def decode(model, kind, position, count):
    cache = make_prompt_cache(model)
    dtype = mx.float32 if kind in ("f32", "4bit-f32") else mx.bfloat16
    # Values do not matter to speed, and filling the cache by computing takes minutes.
    for layer in cache:
        shape = (1, model.args.num_key_value_heads, position, model.args.head_dim)
        layer.update_and_fetch(0.1 * mx.random.normal(shape).astype(dtype), 0.1 * mx.random.normal(shape).astype(dtype))
    mx.eval([layer.state for layer in cache])
    steps = generate_step(mx.array([11]), model, max_tokens=count + 1, prompt_cache=cache)
    next(steps)
    start = time.perf_counter()
    for _ in range(count):
        next(steps)
    seconds = time.perf_counter() - start
    mx.synchronize()
    return seconds


def logits(model, tokens, path):
    prompt = mx.array([[(7 * i + 11) % 1000 for i in range(tokens)]])
    start = time.perf_counter()
    last = model(prompt)[0, -1].astype(mx.float32)
    mx.eval(last)
    seconds = time.perf_counter() - start
    Path(path).write_bytes(bytes(memoryview(last)))
    return {"seconds": seconds}


def main():
    _, path, kind = sys.argv
    # Whatever else is printed must not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    start = time.perf_counter()
    model = load(path, kind)
    versions = [["mlx-lm", mlx_lm.__version__], ["mlx", mx.__version__]]
    answer({"versions": versions, "load_seconds": time.perf_counter() - start})
    for line in sys.stdin:
        request, rest = line.split(maxsplit=1)
        if request == "prefill":
            answer(prefill(model, int(rest)))
        elif request == "decode":
            count, *positions = (int(word) for word in rest.split())
            answer({"seconds": [decode(model, kind, position, count) for position in positions]})
        elif request == "logits":
            tokens, file = rest.rstrip("\n").split(maxsplit=1)
            answer(logits(model, int(tokens), file))
        else:
            raise SystemExit(f"an unknown request: {line}")


if __name__ == "__main__":
    main()
