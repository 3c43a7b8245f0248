"""Changes to any part of a run directory, with checksums corrected afterwards, and the outcome of a run on it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from pipeline import verify
from pipeline.kernels import config
from pipeline.run import main
from pipeline.storage.durable import own_checksum
from pipeline.storage.files import checksum

DEEP = "[" * 5000 + "]" * 5000
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 10**12, 2**63, 10**30, 0.5, -1e300, 1e308, "", "x", "../x", "/etc/passwd", "\ud800",
    "payload.X", "os.path.join", "best", "train", [], {}, [[]], [0, 1], {"a": 1}, "0" * 16, "g" * 16, "a" * 100_000,
)  # fmt: skip
RAW = ("NaN", "Infinity", DEEP, "1" * 5000, "nul")
"""Replacements of a JSON value that are invalid, or too large or too deep to be represented."""


class Forger:
    """Random changes to a run directory, one at a time, drawn from one generator."""

    def __init__(self, run_dir: Path, rng: random.Random) -> None:
        self.run_dir, self.rng = run_dir, rng
        self.manifests = sorted((run_dir / "commits").glob("*.json"))

    def change(self, kind: str) -> str:
        """Change a file of this kind; return a description of the change."""
        return str(getattr(self, kind)())

    def manifest(self) -> str:
        """Change a manifest; the newest one more often than older ones."""
        file = self.manifests[-1] if self.rng.random() < 0.8 else self.rng.choice(self.manifests)
        if self.rng.random() < 0.1:
            return f"{file.name}: {self.bytes_of(file)}"
        commit = json.loads(file.read_bytes())["commit"]
        said, text = self.values(commit, {"chunks": 0.05, "data": 0.1})
        self.seal(file, text)
        return f"{file.name}: {said}"

    def dense(self) -> str:
        """Change a file of the dense part. Any data of the right shape would be valid, so with a correct checksum only
        the header is changed."""
        file = self.manifests[-1].with_suffix(".safetensors")
        content = file.read_bytes()
        length = 8 + int.from_bytes(content[:8], "little")
        if self.rng.random() < 0.3:
            return f"{file.name}: {self.bytes_of(file)}"
        if self.rng.random() < 0.5:
            said, text = self.values(json.loads(content[8:length]), {})
            header = text.encode("utf-8", "surrogatepass")
            file.write_bytes(len(header).to_bytes(8, "little") + header + content[length:])
        else:
            at, said = self.rng.randrange(length), "a byte of the header"
            file.write_bytes(content[:at] + bytes([self.rng.randrange(256)]) + content[at + 1 :])
        self.follow(lambda commit: commit.update(dense=[checksum(file.read_bytes())]))
        return f"{file.name}: {said}"

    def rows(self) -> str:
        """Change rows, but not their tags: with a correct tag, the row would be valid."""
        return self.chunk("rows", 2)

    def keys(self) -> str:
        return self.chunk("keys", 3)

    def chunk(self, folder: str, at: int) -> str:
        file = self.rng.choice(sorted((self.run_dir / "table.zarr" / folder).glob("c.*")))
        said = self.bytes_of(file)
        if file.is_file() and self.rng.random() < 0.8:
            number = int(file.name.split(".")[1])

            def update(commit: dict[str, Any]) -> None:
                for chunk in commit["chunks"]:
                    if chunk[0] == number:
                        chunk[at] = checksum(file.read_bytes())

            self.follow(update)
            said += ", checksums made right"
        return f"{folder}/{file.name}: {said}"

    def zarr(self) -> str:
        file = self.rng.choice(sorted((self.run_dir / "table.zarr").rglob("zarr.json")))
        said = self.json_file(file)
        if file.is_file() and self.rng.random() < 0.5:
            name = str(file.relative_to(self.run_dir / "table.zarr"))
            self.follow(lambda commit: commit["metadata"].update({name: checksum(file.read_bytes())}))
        return f"{name_of(file)}: {said}"

    def workflow(self) -> str:
        return self.json_file(self.run_dir / "workflow.json")

    def metrics(self) -> str:
        return self.bytes_of(self.run_dir / "metrics.jsonl")

    def model(self) -> str:
        return self.bytes_of(self.run_dir / "model.safetensors")

    def result(self) -> str:
        file = self.run_dir / "result.json"
        if self.rng.random() < 0.3:
            return self.bytes_of(file)
        # A finished run is not recomputed: the same command trusts a fingerprint with a correct checksum.
        said, text = self.values(json.loads(file.read_bytes()), {"data": 0.1, "fingerprint": 0})
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            result = json.loads(text)
            text = json.dumps(result | {"checksum": own_checksum(result)})
        file.write_text(text, errors="surrogatepass")
        return said

    def reserve(self) -> str:
        return self.bytes_of(self.run_dir / "reserve")

    def json_file(self, file: Path) -> str:
        if self.rng.random() < 0.3:
            return self.bytes_of(file)
        said, text = self.values(json.loads(file.read_bytes()), {})
        file.write_text(text, errors="surrogatepass")
        return said

    def values(self, tree: Any, shares: dict[str, float]) -> tuple[str, str]:
        """Change one value anywhere in a tree of JSON values; return a description, and the tree as text. `shares`:
        probability of a change within the named branches, which contain most of the values."""
        mark, at, path = "\x00here\x00", tree, []
        while True:
            names = list(at) if isinstance(at, dict) else list(range(len(at)))
            name = self.rng.choice([n for n in names if self.rng.random() < shares.get(str(n), 1)] or names)
            path.append(name)
            if isinstance(at[name], (dict, list)) and at[name] and self.rng.random() < 0.85:
                at = at[name]
                continue
            break
        before, how = at[name], self.rng.randrange(10)
        if how == 0:
            del at[name]
            return f"{path} deleted", json.dumps(tree)
        if how == 1 and isinstance(at, dict):
            at[self.rng.choice(["more", "../x", ""])] = before
            return f"{path} there twice", json.dumps(tree)
        if how == 2 and isinstance(at, list):
            at.insert(0, before)
            return f"{path} there twice", json.dumps(tree)
        if how <= 5 and isinstance(before, (int, float)) and not isinstance(before, bool):
            at[name] = self.rng.choice([before + 1, before - 1, 2 * before, -before, before / 2, 0])
        elif how == 6:
            raw = self.rng.choice(RAW)
            at[name] = mark
            return f"{path} = {raw[:9]}", json.dumps(tree).replace(json.dumps(mark), raw)
        else:
            at[name] = self.rng.choice(VALUES)
        return f"{path} = {str(at[name])[:30]!r}", json.dumps(tree)

    def bytes_of(self, file: Path) -> str:
        content = file.read_bytes()
        how, at = self.rng.randrange(8), self.rng.randrange(len(content) or 1)
        if how <= 2:
            bit = self.rng.randrange(8)
            file.write_bytes(content[:at] + bytes(b ^ (1 << bit) for b in content[at : at + 1]) + content[at + 1 :])
            return f"bit {bit} of byte {at} flipped"
        if how == 3:
            file.write_bytes(content[:at])
            return f"cut at {at}"
        if how == 4:
            file.write_bytes(content + bytes(self.rng.randrange(1, 99)))
            return "longer"
        if how == 5:
            size = self.rng.randrange(1, 256)
            file.write_bytes(content[:at] + self.rng.randbytes(len(content[at : at + size])) + content[at + size :])
            return f"{size} bytes at {at} replaced"
        file.unlink()
        if how == 6:
            return "deleted"
        file.symlink_to(self.run_dir.parent / "outside" / "notes.txt")
        return "a link to a file outside"

    def follow(self, update: Callable[[dict[str, Any]], None]) -> None:
        """Update all manifests to the current state of a file, with correct checksums."""
        for file in self.manifests:
            commit = json.loads(file.read_bytes())["commit"]
            update(commit)
            self.seal(file, json.dumps(commit))

    @staticmethod
    def seal(file: Path, text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")
        file.write_bytes(b'{"checksum": "%s", "commit": %s}\n' % (checksum(content).encode(), content))


def name_of(file: Path) -> str:
    return "/".join(file.parts[-2:])


KINDS = ("manifest", "dense", "rows", "keys", "zarr", "workflow", "metrics", "model", "result", "reserve")


class Imports(MetaPathFinder):
    """Import finder that finds nothing but records the names of the requested modules."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self.names.append(name)


class Watched:
    """Records the modules that this process imports, and the files outside a folder that it changes, within a `with`
    block."""

    EVENTS = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod",
              "shutil.rmtree", "subprocess.Popen", "os.system")  # fmt: skip

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.touched: list[str] = []
        self.imports = Imports()
        # An audit hook cannot be removed; this one does nothing outside `watching`.
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.inside is None:
            return
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in self.EVENTS) and isinstance(args[0], (str, bytes, os.PathLike)):
            path = Path(os.path.realpath(Path(os.fsdecode(args[0])).parent)) / Path(os.fsdecode(args[0])).name
            # A kernel that is compiled for the first time is written to the cache.
            allowed = (self.inside, config.CACHE_DIR, "/dev/null")
            if not any(path.is_relative_to(folder) for folder in allowed):
                self.touched.append(f"{event} {path}")

    @contextlib.contextmanager
    def watching(self, inside: Path) -> Iterator[None]:
        """Record until the end of the `with` block; changes below `inside` are allowed."""
        self.touched.clear()
        self.imports.names.clear()
        sys.meta_path.insert(0, self.imports)
        self.inside = Path(os.path.realpath(inside))
        try:
            yield
        finally:
            self.inside = None
            sys.meta_path.remove(self.imports)


def outcome(workflow_file: Path, run_dir: Path, expected: str) -> str:
    """Run the command on a run directory: "same", "refused", or a description of what went wrong."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(workflow_file), "--run-dir", str(run_dir), "--serial"])
    said = err.getvalue()
    if "Traceback" in said + out.getvalue():
        return f"a traceback: {said[-300:]}"
    if code == 0:
        found = json.loads((run_dir / "result.json").read_text())["fingerprint"]
        return "same" if found == expected else "another result"
    message = f"\n{said}".rpartition("\nerror: ")[2]
    if code in (1, 2) and 20 < len(message) < len(said) + 1:
        return "refused"
    return f"exit code {code}, {said[-300:]!r}"


def verified(run_dir: Path) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return verify.main([str(run_dir)])


def fresh_copy(original: Path, into: Path) -> Path:
    shutil.rmtree(into, ignore_errors=True)
    (into / "outside").mkdir(parents=True)
    (into / "outside" / "notes.txt").write_text("mine")
    return Path(shutil.copytree(original, into / "run"))
