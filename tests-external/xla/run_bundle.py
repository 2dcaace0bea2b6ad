"""Runs the programs of a bundle written for the target `stablehlo` through XLA, and nothing of mlxcel.

It is a test, and an example of what a bundle needs from another compiler: the manifest says what each argument is, the
weights come from the checkpoint's safetensors files, and the states of the sequence go in and come back.

    mlxcel bundle --model fixtures/architectures/llama --target stablehlo --precision exact --out /tmp/llama
    pip install --require-hashes -r tests-external/xla/requirements.txt
    python tests-external/xla/run_bundle.py /tmp/llama --tokens 12,7,3 -n 8
    python tests-external/xla/run_bundle.py /tmp/llama --oracle fixtures/architectures/llama/oracle.json
"""

import argparse
import hashlib
import json
import struct
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from jax._src.lib import xla_client

FROM_SAFETENSORS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
FROM_MLIR = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32}

# Below this margin between the best two logits, another order of sums may choose the other token.
TOSS_UP = 1e-4
# How far a log probability may be from the oracle's, in float32.
TOLERANCE = 1e-4


def read_tensors(folder):
    """All tensors of a folder's safetensors files, by name, mapped and not copied."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        (length,) = struct.unpack("<Q", data[:8].tobytes())
        header = json.loads(data[8 : 8 + length].tobytes())
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                values = data[begin:end].view(FROM_SAFETENSORS[entry["dtype"]])
                tensors[name] = values.reshape(entry["shape"])
    return tensors


class Program:
    """One program, compiled by XLA."""

    def __init__(self, client, devices, path, file, description):
        text = path.read_bytes()
        if hashlib.sha256(text).hexdigest() != file["sha256"]:
            sys.exit(f"{path}: the checksum is wrong")
        self.description = description
        self.executable = client.compile_and_load(text.decode(), devices, xla_client.CompileOptions())

    def run(self, weights, inputs):
        """The results by name, of inputs by name."""
        arguments = list(weights)
        for expected in self.description["inputs"]:
            value = inputs[expected["name"]]
            if list(value.shape) != expected["shape"] or value.dtype != FROM_MLIR[expected["element_type"]]:
                sys.exit(f"{expected} is given {value.shape} of {value.dtype}")
            arguments.append(jax.device_put(value))
        results = self.executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
        names = [result["name"] for result in self.description["results"]]
        return {name: shards[0] for name, shards in zip(names, results, strict=True)}


class Model:
    """A bundle's programs and weights."""

    def __init__(self, folder, checkpoint=None):
        manifest = json.loads((folder / "bundle.json").read_text())
        if (manifest["format"], manifest["format_version"]) != ("mlxcel bundle", 5):
            sys.exit("this is no bundle of format version 5")
        if "adapters" in manifest:
            sys.exit("bundles with room for adapters are not supported here")
        self.manifest = manifest
        target = next((target for target in manifest["targets"] if target["target"] == "stablehlo"), None)
        if target is None:
            sys.exit("the bundle was not written for the target `stablehlo`")
        devices = jax.devices("cpu")[:1]
        self.programs = {}
        for file, description in zip(target["programs"], manifest["programs"], strict=True):
            if len(description["rows"]) == 1 and description["outputs"] == "last":
                key = (description["rows"][0], description["length"])
                path = folder / file["path"]
                self.programs[key] = Program(
                    devices[0].client, xla_client.DeviceList(tuple(devices)), path, file, description
                )
        tensors = read_tensors(checkpoint or folder)
        self.weights = [jax.device_put(self.weight(tensors, weight)) for weight in manifest["weights"]]

    @staticmethod
    def weight(tensors, weight):
        tensor = tensors[weight["tensor"]]
        if "stack" in weight:
            tensor = np.stack([tensor] + [tensors[name] for name in weight["stack"]])
        if weight.get("transposed"):
            tensor = np.swapaxes(tensor, -1, -2)
        if "selection" in weight:
            axis, start, run, stride, runs = (
                weight["selection"][key] for key in ("axis", "start", "run", "stride", "runs")
            )
            indices = start + stride * np.arange(runs)[:, None] + np.arange(run)[None, :]
            tensor = np.take(tensor, indices.reshape(-1), axis)
        return np.ascontiguousarray(tensor).reshape(weight["shape"])

    def rotary(self, positions):
        """The tables of cosines and sines for each position."""
        tables = {}
        for index, rotary in enumerate(self.manifest["rotary"]):
            if "long" in rotary and positions.max() >= rotary["long"]["original_context"]:
                sys.exit("what has been computed of a sequence that outgrows its frequencies is not computed again here")
            inv_freq = np.array(rotary["inv_freq"], np.float32)
            angles = (positions.astype(np.float32)[:, None] * inv_freq[None, :]).astype(np.float64)
            factor = np.float32(rotary["attention_factor"])
            tables[f"cos.{index}"] = np.cos(angles).astype(np.float32) * factor
            tables[f"sin.{index}"] = np.sin(angles).astype(np.float32) * factor
        return tables

    def grown(self, state, description):
        """A state in the shape that a program takes: with more room for positions, which lie where they lay."""
        if state is not None and list(state.shape) == description["shape"]:
            return state
        grown = np.zeros(description["shape"], FROM_MLIR[description["element_type"]])
        if state is not None:
            grown[tuple(slice(size) for size in state.shape)] = np.asarray(state)
        return jax.device_put(grown)

    def step(self, states, position, tokens):
        """Feeds one or more tokens (at most a chunk), and gives the most likely next one, its log probability and the states."""
        room = 1 if len(tokens) == 1 else self.manifest["chunk"]
        lengths = (length for length in self.manifest["lengths"] if length >= max(position + room, states["length"]))
        # Where windows bound the states, the last length serves all longer sequences.
        length = next(lengths, self.manifest["lengths"][-1])
        program = self.programs[room, length]
        inputs = {
            "tokens": np.array(tokens + [0] * (room - len(tokens)), np.int32),
            "positions": np.array([position], np.int32),
            "last": np.array([len(tokens) - 1], np.int32),
            **self.rotary(position + np.arange(room)),
        }
        for description in program.description["inputs"]:
            name = description["name"]
            if name.startswith("state."):
                inputs[name] = self.grown(states.get(name), description)
        results = program.run(self.weights, inputs)
        token, bits = np.asarray(results.pop("best"))[0]
        return int(token), float(np.int32(bits).view(np.float32)), {**results, "length": length}

    def generate(self, prompt, count):
        """The most likely tokens after a prompt, with their log probabilities."""
        states, position, chunk = {"length": 0}, 0, self.manifest["chunk"]
        for start in range(0, len(prompt), chunk):
            part = prompt[start : start + chunk]
            token, logprob, states = self.step(states, position, part)
            position += len(part)
        found = [(token, logprob)]
        while len(found) < count:
            token, logprob, states = self.step(states, position, [found[-1][0]])
            position += 1
            found.append((token, logprob))
        return found


def compare(model, path):
    """Holds the model against every case of an oracle, as far as the oracle's own choice was no toss-up."""
    cases = json.loads(path.read_text())["cases"]
    compared = 0
    for number, case in enumerate(cases):
        found = model.generate(case["prompt"], len(case["greedy"]))
        for at, (token, logprob) in enumerate(found):
            if case["margins"][at] < TOSS_UP:
                break
            if token != case["greedy"][at]:
                sys.exit(f"case {number}, token {at}: {token} is not the oracle's {case['greedy'][at]}")
            if abs(logprob - case["logprobs"][at]) > TOLERANCE:
                sys.exit(f"case {number}, token {at}: log probability {logprob} is not {case['logprobs'][at]}")
            compared += 1
    if compared == 0:
        sys.exit("nothing was compared")
    print(f"{compared} tokens of {len(cases)} prompts are the oracle's")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="where the weights are, if they are not in the bundle")
    parser.add_argument("--tokens", help="the prompt, as token ids with commas between them")
    parser.add_argument("-n", type=int, default=16, help="how many tokens to generate")
    parser.add_argument("--oracle", type=Path, help="the expected tokens of some prompts")
    arguments = parser.parse_args()
    model = Model(arguments.bundle, arguments.checkpoint)
    if arguments.oracle:
        compare(model, arguments.oracle)
    if arguments.tokens:
        prompt = [int(token) for token in arguments.tokens.split(",")]
        print(*(token for token, _ in model.generate(prompt, arguments.n)))


if __name__ == "__main__":
    main()
