"""Answers requests of `mlxcel-benches`, which are those of `llama-cpp/src/main.rs`."""

import json
import os
import sys
import time


def serve(load, versions, notes):
    """Answers until there are no more requests.

    `load` returns a model, whose methods return seconds: `prefill(tokens)` of a prompt, `decode(tokens, count,
    sequences)` of `count` tokens of each sequence after prompts, and `logits(tokens, file)` of a prompt whose last
    logits are written to the file.
    """
    # Whatever else is printed must not get between the answers.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    start = time.perf_counter()
    model = load()
    answer({"versions": versions, "load_seconds": time.perf_counter() - start, "notes": notes})
    for line in sys.stdin:
        request, rest = line.split(maxsplit=1)
        if request == "logits":
            tokens, file = rest.rstrip("\n").split(maxsplit=1)
            answer({"seconds": model.logits(int(tokens), file)})
            continue
        numbers = [int(word) for word in rest.split()]
        if request == "prefill":
            answer({"seconds": model.prefill(*numbers)})
        elif request == "decode":
            count, *positions = numbers
            answer({"seconds": [model.decode(position, count, 1) for position in positions]})
        elif request == "batch":
            count, position, *sequences = numbers
            answer({"seconds": [model.decode(position, count, number) for number in sequences]})
        else:
            raise SystemExit(f"an unknown request: {line}")


def main(usage, convert, serve):
    """Runs `convert FROM FOLDER` or `serve FOLDER THREADS` of the command line; anything else prints `usage`."""
    match sys.argv[1:]:
        case ["convert", source, folder]:
            convert(source, folder)
        case ["serve", folder, threads]:
            serve(folder, int(threads))
        case _:
            raise SystemExit(usage)
