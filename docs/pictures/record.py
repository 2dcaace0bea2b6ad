"""Records `chat.svg` of the README, on Linux: `python docs/pictures/record.py PROGRAM MODEL [QUESTION …]`, with
Python's own modules alone.

`PROGRAM chat` runs on a terminal of this script, which types the questions. In the picture each character
appears after the time after which the program wrote it. Lines that the program took back, such as progress, are
left out.
"""

import codecs
import fcntl
import html
import os
import pathlib
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time

COLUMNS, ROWS = 92, 60
SIZE, LINE, MARGIN = 13, 19, 14
PROMPT = "> "
STYLE = (
    "text{font:%dpx ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9}.d{fill:#8b98a9}"
    "@keyframes h{from,to{fill:transparent}}tspan{animation:h}"
    "@media(prefers-reduced-motion){tspan{animation-name:none}}" % SIZE
)


class Terminal:
    """The characters of each line, with the time at which each was written."""

    def __init__(self):
        self.lines, self.row, self.column, self.rest = [[]], 0, 0, ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def write(self, data, now):
        text = self.rest + self.decoder.decode(data)
        self.rest = ""
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b.|\x1b\[[?0-9;]*$|\x1b$|[^\x1b]", text, re.S):
            if part[0] != "\x1b":
                self.put(part, now)
            elif part[-1].isalpha() and part[1:2] == "[":
                self.control(part[-1], int(re.sub(r"\D.*", "", part[2:]) or 0))
            elif len(part) < 2 or part[1] == "[":
                self.rest = part

    def put(self, character, now):
        if character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character == "\n":
            self.row += 1
        elif character >= " ":
            if self.column == COLUMNS:
                self.row, self.column = self.row + 1, 0
            self.fill()
            line = self.lines[self.row]
            # What is drawn again stays as old as it is.
            if line[self.column][0] != character:
                line[self.column] = (character, now)
            self.column += 1
        self.fill()

    def fill(self):
        while len(self.lines) <= self.row:
            self.lines.append([])
        line = self.lines[self.row]
        line += [(" ", 0)] * (self.column + 1 - len(line))

    def control(self, letter, count):
        if letter == "K":
            kept = 0 if count == 2 else self.column
            del self.lines[self.row][kept:]
        elif letter == "J":
            del self.lines[self.row][self.column :], self.lines[self.row + 1 :]
        elif letter in "AB":
            self.row = max(0, self.row + max(1, count) * (-1 if letter == "A" else 1))
        elif letter in "CD":
            self.column = max(0, self.column + max(1, count) * (-1 if letter == "D" else 1))
        elif letter == "G":
            self.column = max(1, count) - 1
        self.fill()

    def is_waiting(self):
        line = "".join(character for character, _ in self.lines[self.row])
        return self.column == len(PROMPT) and line.strip() == PROMPT.strip()


def record(program, model, questions):
    """Runs the chat in a folder that has the model under its own name."""
    terminal, arguments = Terminal(), ["chat", "--model", model.name]
    command = "$ mlxcel " + " ".join(arguments)
    for character in command + "\r\n":
        terminal.put(character, 0)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / model.name).symlink_to(model)
        process, file = pty.fork()
        if process == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", MLXCEL_CONFIG="")
            os.execv(program, ["mlxcel", *arguments])
        fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        start, typed, last = time.monotonic(), iter(()), 0
        questions = iter([*questions, "\x04"])
        while True:
            ready, _, _ = select.select([file], [], [], 0.04)
            now = time.monotonic() - start
            if ready:
                try:
                    terminal.write(os.read(file, 65536), now)
                    last = now
                except OSError:
                    break
            elif (key := next(typed, None)) is not None:
                os.write(file, key.encode())
            elif terminal.is_waiting() and now - last > 0.6:
                question = next(questions, "\x04")
                typed = iter(question if question == "\x04" else question + "\r")
        os.waitpid(process, 0)
    while not "".join(character for character, _ in terminal.lines[-1]).strip(PROMPT):
        terminal.lines.pop()
    return terminal.lines


def cpu():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    return re.search(r"^model name\s*: (.*)$", text, re.M)[1].strip()


def drawn(line, y):
    """One line, in parts that appear together."""
    text = "".join(character for character, _ in line).rstrip()
    parts = []
    for character, at in line[: len(text)]:
        # Blanks between words have the time of the word before.
        if parts and (abs(parts[-1][1] - at) < 0.02 or character == " "):
            parts[-1][0] += character
        else:
            parts.append([character, at])
    spans = []
    for part, at in parts:
        shown = html.escape(part, False)
        spans.append(f'<tspan style="animation-duration:{at:.2f}s">{shown}</tspan>' if at > 0.05 else shown)
    dim = ' class="d"' if re.match(r"note: |\[\d+ tokens", text) else ""
    return f'<text{dim} x="{MARGIN}" y="{y}">{"".join(spans)}</text>'


def main():
    program, model, *questions = sys.argv[1:]
    lines = record(os.path.abspath(program), pathlib.Path(model).resolve(), questions)
    name = f"{cpu()}, {len(os.sched_getaffinity(0))} cores"
    width, height = 760, MARGIN * 2 + LINE * len(lines)
    rows = [drawn(line, MARGIN + LINE * i + SIZE) for i, line in enumerate(lines)]
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">',
        f"<title>mlxcel chat, recorded on {html.escape(name)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1f2430"/>',
        *rows,
        "</svg>\n",
    ]
    (pathlib.Path(__file__).parent / "chat.svg").write_text("\n".join(picture))


main()
