"""Measures OpenVINO GenAI on request, for `mlxcel-benches`.

usage: worker.py convert MODEL.gguf FOLDER
       worker.py serve FOLDER THREADS

`convert` has OpenVINO GenAI read a GGUF file and write it as an OpenVINO model. `serve` runs
`ContinuousBatchingPipeline`, which is also what `LLMPipeline` runs on x86-64, with its defaults (a cache in 8 bits,
activations in 8 bits beside quantized weights) but for the number of threads and the reuse of prefixes, by which a
prompt would be computed only once.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai as genai

sys.path.insert(0, str(Path(__file__).parents[1]))
import answers  # noqa: E402


def properties(threads):
    return {"INFERENCE_NUM_THREADS": threads}


def tokenizer():
    """None at all: requests are tokens."""
    with tempfile.TemporaryDirectory() as folder:
        return genai.Tokenizer(folder)


def convert(file, folder):
    # It writes beside the file that it reads.
    link = Path(folder) / "model.gguf"
    link.symlink_to(Path(file).resolve())
    genai.LLMPipeline(link, tokenizer(), "CPU", enable_save_ov_model=True)
    link.unlink()


def prompt(tokens):
    return np.array([[(7 * i + 11) % 1000 for i in range(tokens)]], dtype=np.int64)


class Pipeline:
    def __init__(self, folder, threads):
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        # Prompts are not split, as in `LLMPipeline`.
        scheduler.max_num_batched_tokens = 2**31
        self.folder, self.threads = folder, threads
        self.pipeline = genai.ContinuousBatchingPipeline(folder, tokenizer(), scheduler, "CPU", **properties(threads))

    def run(self, tokens, count, sequences):
        """The seconds of the prompts of so many sequences, with the token after each, and of `count` further tokens
        of each."""
        # Some end of a text has to be named, to be ignored.
        config = genai.GenerationConfig(
            max_new_tokens=count + 1, ignore_eos=True, eos_token_id=0, do_sample=False
        )
        inputs = [openvino.Tensor(prompt(tokens)) for _ in range(sequences)]
        start = time.perf_counter()
        handles = [self.pipeline.add_request(i, tensor, config) for i, tensor in enumerate(inputs)]
        self.pipeline.step()
        between = time.perf_counter()
        for _ in range(count):
            self.pipeline.step()
        end = time.perf_counter()
        made = [len(handle.read_all()[0].generated_ids) for handle in handles]
        if made != [count + 1] * sequences:
            raise SystemExit(f"{made} tokens in {count + 1} steps of {sequences} sequences")
        return between - start, end - between

    def prefill(self, tokens):
        return self.run(tokens, 0, 1)[0]

    def decode(self, tokens, count, sequences):
        return self.run(tokens, count, sequences)[1]

    def logits(self, tokens, path):
        """Of the same file, computed without the pipeline, which does not give them."""
        core = openvino.Core()
        file = Path(self.folder) / "openvino_model.xml"
        model = core.compile_model(file, "CPU", properties(self.threads))
        ids = prompt(tokens)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(tokens, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        start = time.perf_counter()
        last = model(inputs)["logits"][0, -1]
        seconds = time.perf_counter() - start
        Path(path).write_bytes(last.astype(np.float32).tobytes())
        return seconds


def serve(folder, threads):
    versions = [["openvino-genai", genai.__version__], ["openvino", openvino.__version__]]
    notes = ", ".join(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    answers.serve(lambda: Pipeline(folder, threads), versions, notes)


if __name__ == "__main__":
    answers.main(__doc__, convert, serve)
