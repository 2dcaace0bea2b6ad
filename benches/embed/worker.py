"""Embeds texts with sentence-transformers or onnxruntime on request; the protocol is in benches/src/embed.rs.

    pip install sentence-transformers==5.2.2 onnxruntime onnx onnxscript
"""
import json
import pathlib
import sys
import tempfile
import time


def sentence_transformers(folder, threads):
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    versions = [["sentence-transformers", sentence_transformers.__version__], ["torch", torch.__version__]]
    return versions, lambda texts: model.encode(texts, batch_size=32)


def onnxruntime(folder, threads):
    """The same network exported from transformers; pooled and normalized as fastembed does it."""
    import numpy
    import onnxruntime
    import tokenizers
    import torch
    import transformers

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            found = self.inner(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return found.last_hidden_state

    network = Network()
    example = {name: torch.ones((2, 8), dtype=torch.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    shape = {0: "batch", 1: "tokens"}
    with tempfile.TemporaryDirectory() as place:
        file = str(pathlib.Path(place) / "model.onnx")
        torch.onnx.export(network, tuple(example.values()), file, input_names=list(example), output_names=["states"],
                          dynamic_axes={name: shape for name in [*example, "states"]}, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()

    def embed(texts):
        # Texts of about the same length together, as sentence-transformers does too.
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        vectors = [None] * len(texts)
        for start in range(0, len(order), 32):
            part = order[start:start + 32]
            found = tokenizer.encode_batch([texts[index] for index in part])
            mask = numpy.array([one.attention_mask for one in found], dtype=numpy.int64)
            given = {"input_ids": numpy.array([one.ids for one in found], dtype=numpy.int64), "attention_mask": mask,
                     "token_type_ids": numpy.zeros_like(mask)}
            states = session.run(["states"], given)[0]
            mean = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            mean /= numpy.linalg.norm(mean, axis=1, keepdims=True)
            for index, vector in zip(part, mean):
                vectors[index] = vector
        return numpy.stack(vectors)

    return [["onnxruntime", onnxruntime.__version__]], embed


def main():
    program, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    versions, embed = {"sentence-transformers": sentence_transformers, "onnxruntime": onnxruntime}[program](folder, threads)
    print(json.dumps({"versions": versions}), flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        start = time.perf_counter()
        vectors = embed(texts)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "vectors": [[float(x) for x in vector] for vector in vectors]}), flush=True)


if __name__ == "__main__":
    main()
