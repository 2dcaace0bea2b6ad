"""Measures ik_llama.cpp on request, for `mlxcel-benches`.

usage: worker.py MODEL.gguf THREADS CAPACITY

Requests and answers are those of `llama-cpp/src/main.rs`. Everything is as ik_llama.cpp has it by default (a cache in
float16, flash attention, no repacking at load), but for the number of threads.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from ik_llama_cpp import __version__
from ik_llama_cpp import _ctypes_api as api

library = api._lib
library.llama_print_system_info.restype = ctypes.c_char_p
library.llama_n_vocab.argtypes = [ctypes.c_void_p]
library.llama_n_batch.argtypes = [ctypes.c_void_p]
log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
silence = log_callback(lambda level, text, data: None)


class Sequences:
    """Sequences of one context, all fed alike."""

    def __init__(self, model, threads, capacity, sequences):
        params = api.llama_context_default_params()
        # A multiple that llama.cpp likes.
        params.n_ctx = -(-capacity // 256) * 256 * sequences
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        self.context = api.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit(f"no context of {params.n_ctx} positions")
        self.vocabulary = library.llama_n_vocab(model)
        self.most = library.llama_n_batch(self.context)
        self.batch = api.llama_batch_init(self.most, 0, 1)
        # The tokens that each has, and the token that follows them.
        self.lengths = [0] * sequences
        self.next = [0] * sequences

    def close(self):
        api.llama_batch_free(self.batch)
        api.llama_free(self.context)

    def clear(self):
        api.llama_kv_cache_clear(self.context)
        self.lengths = [0] * len(self.lengths)

    def run(self, rows):
        """Decodes rows of a token, its position, its sequence and whether its logits are asked for."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, last) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, last
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        status = api.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode failed ({status})")

    def logits(self, row):
        return np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, row), (self.vocabulary,))

    def feed(self, tokens):
        """Extends each sequence until it has as many tokens, and finds the token that follows."""
        for sequence in range(len(self.lengths)):
            while self.lengths[sequence] < tokens:
                start = self.lengths[sequence]
                end = min(tokens, start + self.most)
                self.run([((7 * i + 11) % 1000, i, sequence, i + 1 == tokens) for i in range(start, end)])
                self.lengths[sequence] = end
            self.next[sequence] = int(self.logits(self.batch.n_tokens - 1).argmax())

    def decode(self, count, sequences):
        """The seconds that so many steps of the first sequences take."""
        start = time.perf_counter()
        for _ in range(count):
            self.run([(self.next[s], self.lengths[s], s, True) for s in range(sequences)])
            for sequence in range(sequences):
                self.next[sequence] = int(self.logits(sequence).argmax())
                self.lengths[sequence] += 1
        return time.perf_counter() - start


def prompt(one, tokens):
    """The seconds until the token after a prompt of as many tokens is known."""
    one.clear()
    start = time.perf_counter()
    one.feed(tokens)
    return time.perf_counter() - start


def decode(one, count, position):
    one.feed(position)
    return one.decode(count, 1)


def batch(model, threads, count, position, numbers):
    many = Sequences(model, threads, position + count * len(numbers) + 1, max(numbers))
    many.feed(position)
    seconds = [many.decode(count, number) for number in numbers]
    many.close()
    return seconds


def main():
    _, path, threads, capacity = sys.argv
    threads = int(threads)
    # Whatever else is printed must not get between the answers.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    if "LLAMA_LOG" not in os.environ:
        library.llama_log_set(silence, None)
    api.llama_backend_init()
    start = time.perf_counter()
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    if not model:
        raise SystemExit(f"ik_llama.cpp did not load {path}")
    one = Sequences(model, threads, int(capacity), 1)
    seconds = time.perf_counter() - start
    answer(
        {
            "versions": [["ik-llama-cpp-python", __version__]],
            "load_seconds": seconds,
            "notes": library.llama_print_system_info().decode().strip(),
        }
    )
    for line in sys.stdin:
        request, rest = line.split(maxsplit=1)
        if request == "logits":
            tokens, file = rest.rstrip("\n").split(maxsplit=1)
            seconds = prompt(one, int(tokens))
            Path(file).write_bytes(one.logits(one.batch.n_tokens - 1).tobytes())
            answer({"seconds": seconds})
            continue
        numbers = [int(word) for word in rest.split()]
        if request == "prefill":
            answer({"seconds": prompt(one, *numbers)})
        elif request == "decode":
            one.clear()
            count, *positions = numbers
            answer({"seconds": [decode(one, count, position) for position in positions]})
        elif request == "batch":
            count, position, *sequences = numbers
            answer({"seconds": batch(model, threads, count, position, sequences)})
        else:
            raise SystemExit(f"an unknown request: {line}")


if __name__ == "__main__":
    main()
