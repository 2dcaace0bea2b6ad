"""Measures ONNX Runtime GenAI on request, for `mlxcel-benches`.

usage: worker.py convert CHECKPOINT FOLDER
       worker.py serve FOLDER THREADS

`convert` has its model builder quantize a checkpoint to 4 bits in blocks of 32, with products of 8-bit activations
(`accuracy_level` 4, the fastest on CPUs), which needs torch and transformers. All sequences of a batch decode together,
as one `Generator`.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime_genai as genai

sys.path.insert(0, str(Path(__file__).parents[1]))
import answers  # noqa: E402

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}


def convert(checkpoint, folder):
    # The builder wants a tokenizer, which requests do not use.
    with tempfile.TemporaryDirectory() as source:
        for file in Path(checkpoint).iterdir():
            if file.suffix == ".safetensors" or file.name == "config.json":
                (Path(source) / file.name).symlink_to(file.resolve())
        (Path(source) / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (Path(source) / "tokenizer_config.json").write_text(json.dumps(settings))
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        model = ["-i", source, "-o", folder, "-p", "int4", "-e", "cpu", "-c", str(Path(source) / "cache")]
        subprocess.run([*builder, *model, "--extra_options", "accuracy_level=4", "block_size=32"], check=True)


def prompt(tokens):
    return [(7 * i + 11) % 1000 for i in range(tokens)]


class Model:
    def __init__(self, folder, threads):
        config = genai.Config(folder)
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self.model = genai.Model(config)

    def begin(self, tokens, count, sequences):
        """A generator with room for `count` tokens, after the prompts of all sequences, and the seconds of these."""
        length = tokens + count + 1
        params = genai.GeneratorParams(self.model)
        # Ends of texts are ignored, since texts are as long as they may be.
        params.set_search_options(
            do_sample=False, batch_size=sequences, min_length=length, max_length=length
        )
        start = time.perf_counter()
        generator = genai.Generator(self.model, params)
        generator.append_tokens(np.array([prompt(tokens)] * sequences, dtype=np.int32))
        generator.generate_next_token()
        return generator, time.perf_counter() - start

    def prefill(self, tokens):
        return self.begin(tokens, 0, 1)[1]

    def decode(self, tokens, count, sequences):
        generator, _ = self.begin(tokens, count, sequences)
        start = time.perf_counter()
        for _ in range(count):
            generator.generate_next_token()
        return time.perf_counter() - start

    def logits(self, tokens, path):
        params = genai.GeneratorParams(self.model)
        params.set_search_options(max_length=tokens + 1)
        generator = genai.Generator(self.model, params)
        start = time.perf_counter()
        generator.append_tokens(np.array([prompt(tokens)], dtype=np.int32))
        last = generator.get_logits()[0, -1]
        seconds = time.perf_counter() - start
        Path(path).write_bytes(last.astype(np.float32).tobytes())
        return seconds


def serve(folder, threads):
    versions = [["onnxruntime-genai", genai.__version__]]
    answers.serve(lambda: Model(folder, threads), versions, "4 bits in blocks of 32, 8-bit activations")


if __name__ == "__main__":
    answers.main(__doc__, convert, serve)
