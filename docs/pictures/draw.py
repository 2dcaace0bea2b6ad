"""Writes the pictures of the documentation: `python docs/pictures/draw.py`, with Python's own modules alone.

The arrows between crates are read from their Cargo.toml, and the rates of decoding from the tables of the
benchmark. A test compares the files with the output of this script.
"""

import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
BLUE, GREEN, YELLOW, VIOLET, GREY = "#e5f0fb", "#e7f5ea", "#fdf3dc", "#f4e8f7", "#eef0f3"
INK = "#3b4252"
FONT = 'font-family="system-ui, sans-serif"'


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def label(x, y, text, size=12, anchor="middle", weight=400):
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" {FONT} font-size="{size}" font-weight="{weight}"'
        f' fill="{INK}">{escaped(text)}</text>'
    )


class Picture:
    """Boxes by name, and arrows between their edges."""

    def __init__(self, name, title, width, height):
        self.name, self.width, self.height = name, width, height
        self.boxes, self.lines = {}, [f"<title>{escaped(title)}</title>"]

    def box(self, name, x, y, width, height, colour, *texts):
        """A box; the first text is its title, and its name where there is none."""
        self.boxes[name] = (x, y, width, height)
        self.lines.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{colour}" stroke="{INK}"/>'
        )
        first, *rest = texts or (name,)
        top = y + height / 2 + 5 - 8 * len(rest)
        self.lines.append(label(x + width / 2, top, first, 14, weight=600))
        self.lines += [label(x + width / 2, top + 16 * (i + 1), text) for i, text in enumerate(rest)]

    def text(self, x, y, text):
        self.lines.append(label(x, y, text, anchor="start"))

    def arrow(self, source, target, note=None, aside=0):
        """A straight arrow: vertical or horizontal where the boxes overlap, `aside` from the middle."""
        ax, ay, aw, ah = self.boxes[source]
        bx, by, bw, bh = self.boxes[target]
        left, right = max(ax, bx), min(ax + aw, bx + bw)
        top, bottom = max(ay, by), min(ay + ah, by + bh)
        if left < right:
            x1 = x2 = (left + right) / 2 + aside
            y1, y2 = (ay + ah, by - 2) if ay < by else (ay, by + bh + 2)
        elif top < bottom:
            y1 = y2 = (top + bottom) / 2 + aside
            x1, x2 = (ax + aw, bx - 2) if ax < bx else (ax, bx + bw + 2)
        else:
            raise SystemExit(f"{self.name}: no straight arrow from {source} to {target}")
        self.lines.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.5"'
            ' marker-end="url(#head)"/>'
        )
        if note and x1 == x2:
            self.lines.append(label(x1 + 6, (y1 + y2) / 2 + 4, note, anchor="start"))
        elif note:
            self.lines.append(label((x1 + x2) / 2, y1 - 6, note))

    def write(self):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" role="img">'
        )
        marker = (
            '<defs><marker id="head" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
            f'<path d="M0,0 L9,4 L0,8 z" fill="{INK}"/></marker></defs>'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>'
        title, *rest = self.lines
        return "\n".join([head, title, marker, ground, *rest, "</svg>", ""])


def dependencies():
    """What each published crate depends on, without what follows from its other dependencies."""
    uses = {}
    for path in sorted(HERE.parents[1].glob("mlxcel-*/Cargo.toml")):
        manifest = tomllib.loads(path.read_text())
        tables = [manifest, *manifest.get("target", {}).values()]
        names = {name for table in tables for name in table.get("dependencies", {})}
        uses[path.parent.name] = {name for name in names if name.startswith("mlxcel-")}

    def below(crate):
        return uses[crate].union(*(below(used) for used in uses[crate]))

    return {
        crate: sorted(used for used in direct if not any(used in below(other) for other in direct))
        for crate, direct in uses.items()
    }


def crates():
    places = {
        "server": (140, 80, 568, BLUE, "a router to mount"),
        "cli": (952, 80, 228, BLUE, "the program mlxcel"),
        "session": (24, 166, 916, BLUE, "models, text, chat, scheduling, sampling"),
        "template": (24, 252, 104, GREY),
        "pjrt": (256, 252, 104, GREEN),
        "portable": (372, 252, 104, GREEN),
        "iree": (488, 252, 220, GREEN),
        "mlx": (720, 252, 104, GREEN),
        "hub": (836, 252, 104, GREY),
        "quantize": (952, 252, 104, GREY),
        "iree-compile": (488, 338, 120, YELLOW),
        "iree-runtime": (620, 338, 108, GREEN),
        "iree-sys": (664, 424, 88, VIOLET),
        "iree-target": (488, 424, 164, YELLOW),
        "iree-kernels": (488, 510, 120, YELLOW),
        "graph": (256, 596, 352, YELLOW, "the decoder as a StableHLO graph; one session"),
        "stablehlo": (256, 682, 220, VIOLET, "builder, printer"),
        "models": (488, 682, 568, VIOLET, "checkpoint, decoder, weights"),
        "conformance": (1068, 682, 112, GREY, "tests engines"),
        "core": (24, 768, 1156, VIOLET, "the contract: traits, capabilities, errors"),
    }
    picture = Picture("crates", "The crates of mlxcel: every arrow points down", 1196, 836)
    picture.text(952, 40, "Names of crates begin with mlxcel-.")
    picture.box("application", 24, 14, 684, 42, GREY, "your application")
    for name, (x, y, width, colour, *about) in places.items():
        picture.box(name, x, y, width, 52, colour, name, *about)
    picture.box("yours", 140, 252, 104, 52, GREEN, "your engine")
    for crate, used in dependencies().items():
        for name in used:
            picture.arrow(crate.removeprefix("mlxcel-"), name.removeprefix("mlxcel-"))
    picture.arrow("application", "server")
    picture.arrow("session", "yours")
    picture.arrow("yours", "core")
    x, y, _, _ = picture.boxes["session"]
    picture.boxes["left of server"] = (24, 80, 104, 0)
    picture.boxes["application's left"] = (24, 14, 104, 42)
    picture.arrow("application's left", "session")
    return picture


def step():
    picture = Picture("step", "Two requests share a pass", 1000, 330)
    picture.box("a", 20, 20, 210, 60, BLUE, "request A", "a prompt of 300 tokens")
    picture.box("b", 20, 110, 210, 60, BLUE, "request B", "its text is at token 57")
    picture.box("step", 320, 20, 250, 150, YELLOW, "one step", "A: 128 tokens of the prompt", "B: 1 token")
    picture.box("pass", 660, 20, 320, 150, GREEN, "one pass over the weights", "the program of this shape:", "products for 129 tokens,", "attention over each cache,", "sampling on the device")
    picture.box("caches", 660, 250, 320, 60, VIOLET, "KV caches", "one per sequence; A +128, B +1 positions")
    picture.box("results", 320, 250, 250, 60, YELLOW, "results", "A: none yet; B: token, log probability")
    picture.box("text", 20, 250, 210, 60, BLUE, "B's next piece of text", "A's next chunk is in the next step")
    picture.arrow("a", "step", "row")
    picture.arrow("b", "step", "row")
    picture.arrow("step", "pass", "ids")
    picture.arrow("pass", "caches", "written in place")
    picture.arrow("caches", "results", "read")
    picture.arrow("results", "text", "token")
    return picture


def weight():
    picture = Picture("weight", "A weight's way from the file to a register", 1180, 130)
    boxes = [
        ("file", BLUE, "file", "safetensors or GGUF,", "mapped, not copied"),
        ("decoder", BLUE, "decoder", "which tensor, rows,", "packing; no values"),
        ("layout", YELLOW, "layout", "panels that the kernel", "reads, written once"),
        ("device", GREEN, "device buffer", "packed as in the file;", "shared by all sessions"),
        ("register", VIOLET, "register", "expanded there, for", "all rows of the pass"),
    ]
    for i, (name, colour, *texts) in enumerate(boxes):
        picture.box(name, 20 + 240 * i, 36, 184, 74, colour, *texts)
    for (first, *_), (second, *_), note in zip(boxes, boxes[1:], ["open", "load", "upload", "pass"]):
        picture.arrow(first, second, note)
    return picture


def bundle():
    picture = Picture("bundle", "What a bundle contains", 900, 290)
    picture.text(20, 18, "the bundle, a folder")
    picture.box("checkpoint", 20, 30, 260, 110, BLUE, "the checkpoint's files", "config, tokenizer, template,", "weights")
    picture.box("weights", 20, 160, 260, 110, BLUE, "weights as kernels read them", "with one target; mapped,", "pages shared by processes")
    picture.box("programs", 300, 30, 260, 110, GREEN, "programs", "machine code for each target and", "each shape that can be reached")
    picture.box("manifest", 300, 160, 260, 110, VIOLET, "manifest", "options, targets, and the", "SHA-256 of every other file")
    picture.box("machine", 650, 30, 230, 240, GREY, "the machine that opens it", "has no compiler;", "runs the best target that it can,", "if it wrote the bundle itself", "or its user trusts it")
    picture.arrow("programs", "machine", "run")
    picture.arrow("manifest", "machine", "checked")
    return picture


def sequence():
    picture = Picture("sequence", "The life of a sequence", 1000, 270)
    picture.box("open", 20, 30, 170, 60, BLUE, "open", "empty, with its options")
    picture.box("prompt", 280, 30, 200, 60, YELLOW, "reads its prompt", "in chunks")
    picture.box("decode", 570, 30, 200, 60, GREEN, "decodes", "one token per step")
    picture.box("closed", 860, 30, 120, 60, GREY, "closed")
    picture.box("fork", 280, 180, 200, 60, BLUE, "fork, snapshot", "another sequence like it")
    picture.box("poisoned", 570, 180, 200, 60, VIOLET, "poisoned", "a fault, or logits with NaN")
    picture.box("end", 860, 180, 120, 60, GREY, "close", "alone is left")
    picture.arrow("open", "prompt", "step")
    picture.arrow("prompt", "decode", "last chunk", aside=-12)
    picture.arrow("decode", "prompt", None, aside=10)
    picture.text(506, 88, "rewind")
    picture.arrow("decode", "closed", "close")
    picture.arrow("prompt", "fork", "at any position")
    picture.arrow("decode", "poisoned", "the step failed")
    picture.arrow("poisoned", "end")
    return picture


def decoding():
    """Bars of one table of the benchmark, with the minimum and maximum of its rounds."""
    text = (HERE.parent / "internals/benchmarks-llama-3.2-1b.txt").read_text()
    table = text[text.index("Decoding one sequence") :].split("\n\n")[0]
    groups = [
        ("bfloat16", "mlxcel bf16 native", "llama.cpp bf16"),
        ("8 bits", "mlxcel 8bit native", "llama.cpp q8_0"),
        ("4 bits", "mlxcel 4bit native", "llama.cpp q4_0-pure"),
    ]
    machine, rounds = re.search(r" on ([^,]+), ", text)[1], re.search(r"of (\d+) rounds", text)[1]
    title = f"Decoding, Llama-3.2-1B shapes, {machine}), tok/s: median, minimum and maximum of {rounds} rounds"
    picture = Picture("decoding", title, 760, 240)
    scale, left, y = 6, 190, 44
    picture.text(20, 24, title)
    for name, *rows in groups:
        picture.lines.append(label(20, y + 23, name, 14, anchor="start", weight=600))
        for row, colour in zip(rows, ("#7aa6d8", "#f0b871")):
            figures = re.search(rf"^{re.escape(row)} +([\d.]+) \(([\d.]+) to ([\d.]+)\)", table, re.M)
            median, least, greatest = (float(figure) for figure in figures.groups())
            start, end, middle = left + scale * least, left + scale * greatest, y + 9
            picture.lines += [
                label(left - 8, y + 13, row.split()[0], anchor="end"),
                f'<rect x="{left}" y="{y}" width="{scale * median:g}" height="18" fill="{colour}"/>',
                f'<path d="M{start:g},{middle - 4} v8 M{start:g},{middle} H{end:g} M{end:g},{middle - 4} v8" stroke="{INK}"/>',
                label(end + 8, y + 13, f"{median:g}", anchor="start"),
            ]
            y += 22
        y += 18
    return picture


def main():
    stale = []
    for picture in (crates(), step(), weight(), bundle(), sequence(), decoding()):
        path, text = HERE / f"{picture.name}.svg", picture.write()
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        raise SystemExit(f"run docs/pictures/draw.py: {', '.join(stale)}")


main()
