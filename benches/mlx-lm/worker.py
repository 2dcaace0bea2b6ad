"""Measures mlx-lm on request, for `mlxcel-benches`.

usage: worker.py CHECKPOINT TYPE        (TYPE: f32, bf16, 4bit, 4bit-f32)

Reads a request a line from standard input and answers a line of JSON to each:

    prefill TOKENS            a prompt of as many tokens, until the token after it is known
    decode POSITION COUNT     COUNT tokens, one by one, of a sequence that has POSITION tokens

Both run mlx-lm's own generation loop, `generate_step`, which computes a token while the one before is handed out.
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
    return {"seconds": seconds}


def main():
    _, path, kind = sys.argv
    # Whatever else is printed must not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    model = load(path, kind)
    answer({"mlx_lm": mlx_lm.__version__, "mlx": mx.__version__})
    for line in sys.stdin:
        request, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        answer(prefill(model, *numbers) if request == "prefill" else decode(model, kind, *numbers))


if __name__ == "__main__":
    main()
