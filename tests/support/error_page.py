"""The page of messages, docs/messages.md: what `make messages` makes of the errors that tests provoked, and the check
that it has each error site of the package and no other."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from error_sites import PACKAGE, all_sites

PAGE = PACKAGE.parent / "docs" / "messages.md"
TITLE = """\
# What messages say

Each error message that this system can end with, as a user sees it, under what the user was doing; most say what is
wrong, where, and what to change. The tests that cause the errors wrote this page (`make messages`): values in it are
examples, FOLDER stands for a path, a slash between spaces for a new line, and ... for the rest of a long text.
"""
GROUPS: dict[str, tuple[str, ...]] = {
    "Workflow file and command line": ("workflow", "run", "messages", "init", "notebook", "__init__"),
    "Model and optimizer": ("models", "optimizer", "optim", "training", "preflight.check_model"),
    "Data": ("data",),
    "Preparing raw logs": ("prepare",),
    "Memory and disk": ("preflight", "planner", "storage", "machine.memory", "device"),
    "A run, its commits, and going on": ("driver", "worker", "commits", "verify", "stages", "monitor", "settings"),
    "Several workers": ("cluster", "comm", "machine.affinity"),
    "Serving over HTTP": ("serving.http", "serving.serve"),
    "Scoring, looking up, exporting": ("serving",),
}
"""Modules of each part of the page. A module belongs to the longest name that fits."""
BEFORE = {
    "Preparing raw logs": "What is wrong with a line is said after its file and number: "
    "`FOLDER/log: line 3: expected 24 columns, got 3`.",
    "A run, its commits, and going on": "What is wrong with a value of a commit is said after the commit's file. A run "
    "that ends early also says what is committed, and how to go on.",
    "Serving over HTTP": "The server answers a request that it refuses with JSON, in which `error` is the message. The "
    "last ones are about options of the command, whose name they follow.",
}
"""Text at the top of a part."""
EXEMPT: dict[str, str] = {}
"""Reason by key of an error site that no test reaches."""
LONGEST = 400
NORMAL = (
    (r"(?:/[^\s/:'\"]+)*/pytest-of-\w+/pytest-\d+(?:/popen-gw\d+)?/[^\s/:;,'\")]+", "FOLDER"),
    (r"/tmp/(?:tmp)?[^\s/:;,'\")]+", "FOLDER"),
    (re.escape(f"{PACKAGE.parent}/"), ""),
    (r"\b(?:127\.0\.0\.1|localhost):\d+", "HOST:PORT"),
    (r"\binproc://[\d.]+/\d+/\d+", "inproc://HOST"),
    (r"--port \d+", "--port PORT"),
    (r"\b0x[0-9a-f]{6,}", "0x..."),
    (r"\b[0-9a-f]{24,}\b", "0123abcd..."),
    (r"\bprocess \d+", "process 4321"),
)


def shown(text: str) -> str:
    """A message without what differs from one machine or run to the next, on one line, and not too long."""
    for pattern, instead in NORMAL:
        text = re.sub(pattern, instead, text)
    text = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
    text = " / ".join(filter(None, (" ".join(line.split()) for line in text.split("\n"))))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def recorded(folder: Path) -> dict[str, list[str]]:
    """Texts of each site that tests recorded, as they are shown: those inside another message, as a user sees them,
    first, then by the name of the test."""
    found = defaultdict(set)
    for path in folder.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            found[line["site"]].add((not line["inside"], line["test"], shown(line["text"])))
    return {site: [text for *_, text in sorted(texts)] for site, texts in found.items()}


def read(page: str) -> Iterator[tuple[str, list[str]]]:
    """Entries of the page: the message, and the keys of its sites."""
    for text, keys in re.findall(r"^\* (.*?)\s*<!-- (.*?) -->$", page, re.DOTALL | re.MULTILINE):
        yield " ".join(text.split()).strip("`").strip(), re.split(r",\s+", keys)


def write(texts: Mapping[str, str]) -> str:
    """Return the page with the text of each site."""
    parts: dict[str, dict[str, list[str]]] = {title: {} for title in GROUPS}
    for site in all_sites():
        if site in texts:
            parts[_group(site)].setdefault(texts[site], []).append(site)
    return "\n".join([TITLE, *(line for title, part in parts.items() if part for line in _section(title, part))])


def _group(site: str) -> str:
    module = site.partition(":")[0]
    fitting = [
        (len(name), title) for title, names in GROUPS.items() for name in names if f"{module}.".startswith(f"{name}.")
    ]
    return max(fitting, default=(0, next(iter(GROUPS))))[1]


def _section(title: str, part: Mapping[str, list[str]]) -> Iterator[str]:
    yield f"## {title}\n"
    if title in BEFORE:
        yield f"{textwrap.fill(BEFORE[title], 120)}\n"
    for text, keys in part.items():
        quote = "`" if "`" not in text else "``"
        pad = " " if quote == "``" or text[0] == "`" else ""
        whole = f"* {quote}{pad}{text}{pad}{quote}"
        yield textwrap.fill(whole, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        yield f"  <!-- {', '.join(keys)} -->"
    yield ""


def check() -> list[str]:
    """Sites that the page lacks, and entries of sites that are gone."""
    there = {key for _, keys in read(PAGE.read_text()) for key in keys}
    now = all_sites()
    lacking = [key for key in now if key not in there and key not in EXEMPT]
    gone = [key for key in sorted(there) if key not in now]
    needless = [key for key in EXEMPT if key in there or key not in now]
    return [
        *(f"{key}: no test provokes this error, or `make messages` has not run since" for key in lacking),
        *(f"{key}: on the page, and no longer in the package; run `make messages`" for key in gone),
        *(f"{key}: exempt, and on the page or no longer in the package" for key in needless),
    ]


def main(arguments: list[str]) -> int:
    """`FOLDER`: add what tests recorded there to the page; `--anew FOLDER`: nothing else stays on it; no argument: say
    what the page lacks."""
    if arguments:
        before = {key: text for text, keys in read(PAGE.read_text()) for key in keys} if PAGE.exists() else {}
        texts = {} if arguments[0] == "--anew" else dict(before)
        for site, found in recorded(Path(arguments[-1])).items():
            texts[site] = before[site] if before.get(site) in found else found[0]
        PAGE.write_text(write(texts))
    wrong = check()
    for line in wrong:
        print(line)
    if wrong:
        print(f"{len(wrong)} of {len(all_sites())} error sites; see CONTRIBUTING.md, Messages")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
