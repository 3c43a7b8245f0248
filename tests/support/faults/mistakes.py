"""User mistakes in a workflow file or with --set, drawn by seed, and the repair of each from the message that it
causes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GOOD = """from pipeline.models import DeepFM
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Commit, Data, Model, Number, Schedule, Storage, Workflow

workflow = Workflow(
    name="ml1m",
    data=Data(
        root="{root}",
        train=("train.parquet",),
        validation=("validation.parquet",),
        labels=("clicked",),
        numbers=(
            Number(name="age", fill=0.5),
            Number(name="price", log1p=True),
        ),
        categories=(
            Category(name="user"),
            Category(name="movie", table="items"),
            Category(name="genres", pooling="mean"),
        ),
        shuffle_window=16,
    ),
    model=Model(
        kind=DeepFM,
        embedding_dim=2, init_std=0.01,
        args={{"hidden": [4], "dropout": 0.1}},
    ),
    optimizer=Optimizer(
        rows=Adam(lr=1e-3, l2=1e-5, beta1=0.9),
        dense=DenseAdam(lr=1e-3),
    ),
    storage=Storage(
        device="1 MiB",
        host="2 MiB",
        disk="64 MiB",
        read="4 MiB", map="1 MiB", chunk_rows=1024,
    ),
    schedule=Schedule(
        batch_size=8,
        epochs=2, block_batches=2, look_ahead=1, threads=1,
    ),
    commit=Commit(keep=2, every_blocks=4),
    seed=7,
)
"""
COLUMNS = ("clicked", "age", "price", "user", "movie", "genres")


@dataclass(frozen=True)
class Case:
    """Text of a workflow file and arguments of --set."""

    text: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """One mistake: what a good message about it must contain, and its repair, which uses only the message."""

    name: str
    make: Callable[[Case], Case]
    expected: tuple[str, ...]
    repair: Callable[[Case, str], Case]
    line: int | None = None
    """Line of the file with the mistake; None: the mistake is in --set."""


def write_data(folder: Path) -> None:
    """Write the Parquet files that the good workflow reads."""
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 9, 40) for name in COLUMNS} | {"clicked": rng.integers(0, 2, 40)}
    columns |= {"age": rng.random(40), "price": rng.random(40)}
    for split in ("train", "validation"):
        pq.write_table(pa.table(columns), folder / f"{split}.parquet")


def good(folder: Path) -> Case:
    return Case(GOOD.format(root=folder))


def draw(seed: int, folder: Path) -> list[Mistake]:
    """Draw a mistake and, for every fifth seed, a second one on another line."""
    rng = random.Random(seed)
    text = good(folder).text
    kinds = (field_name, value, missing, column, size, model, argument, setting, whole_setting)
    first = kinds[seed % len(kinds)](rng, text)
    if seed % 5:
        return [first]
    while (second := rng.choice((field_name, value, size))(rng, text)).line == first.line:
        pass
    return [first, second]


def typo(rng: random.Random, word: str) -> str:
    """The word with one letter lost, doubled, changed, or swapped with the next one."""
    while True:
        at = rng.randrange(1, len(word) - 1) if len(word) > 2 else 0
        parts = {
            "lost": word[:at] + word[at + 1 :],
            "doubled": word[: at + 1] + word[at:],
            "changed": word[:at] + rng.choice("aeiou") + word[at + 1 :],
            "swapped": word[:at] + word[at + 1] + word[at] + word[at + 2 :] if at + 1 < len(word) else word,
        }
        if len(word) < 4:
            return word + word[-1]
        if (wrong := rng.choice(list(parts.values()))) != word:
            return wrong


def field_name(rng: random.Random, text: str) -> Mistake:
    """A misspelt field or argument of a class."""
    found = [
        (number, name)
        for number, line in enumerate(text.splitlines(), 1)
        if number > 5
        for name in re.findall(r"(?<=[ (])([a-z_0-9]{4,})=", line)
    ]
    line, name = rng.choice(found)
    wrong = typo(rng, name)
    call = _line_of_call(text, line, f"{name}=")
    return _in_line(
        f"field {wrong}", line, f"{name}=", f"{wrong}=",
        (f"line {call}:", f"no field '{wrong}'", f"did you mean '{name}'"),
        lambda message: _group(rf"no field '{wrong}'; did you mean '(\w+)'", message) + "=",
    )  # fmt: skip


VALUES = (
    ("batch_size=8", 'batch_size="8"', "write 8"), ("epochs=2", "epochs=0", "at least 1"),
    ("epochs=2", "epochs=2.5", "write 2"), ("embedding_dim=2", "embedding_dim=-1", "at least 0"),
    ("embedding_dim=2", 'embedding_dim="2"', "write 2"), ("chunk_rows=1024", "chunk_rows=1000", "multiple of 1024"),
    ("log1p=True", "log1p=1", "write True"), ("log1p=True", 'log1p="true"', "write True"),
    ("lr=1e-3, l2", 'lr="1e-3", l2', "write 1e-3"), ("init_std=0.01", "init_std=-0.5", "at least 0"),
    ("beta1=0.9", "beta1=1.5", "less than 1"), ('pooling="mean"', 'pooling="maen"', "did you mean 'mean'"),
    ('pooling="mean"', 'pooling="average"', "'sum' or 'mean'"),
    ('labels=("clicked",)', 'labels="clicked"', "write ('clicked',)"),
    ('labels=("clicked",)', 'labels=["clicked"]', "write ('clicked',)"),
    ('Category(name="user"),', '"user",', "write Category(name='user')"),
    ('Category(name="user"),', 'Category("user"),', "Category(name='user')"), ("keep=2", "keep=99", "at most 16"),
    ('name="ml1m"', 'name="ml 1m"', "such as 'ml_1m'"), ('name="user"', "name=5", "write '5'"),
    ("seed=7", "seed=None", "a whole number"),
)  # fmt: skip
"""Right text, wrong text, and the advice that leads to the repair."""


def value(rng: random.Random, text: str) -> Mistake:
    """A value of the wrong type or out of range."""
    right, wrong, advice = rng.choice(VALUES)
    line = _line_of(text, right)
    same = (one == other for one, other in zip(right, wrong, strict=False))
    differs = next((n for n, equal in enumerate(same) if not equal), min(len(right), len(wrong)) - 1)
    said = (f"line {_line_of_call(text, line, right, differs)}:", advice)
    return _in_line(f"value {wrong}", line, right, wrong, said, lambda _: right)


def missing(rng: random.Random, text: str) -> Mistake:
    """An omitted required field; the message names the line of the class."""
    name, kind = rng.choice([
        ("name", "Workflow"), ("train", "Data"), ("labels", "Data"), ("kind", "Model"), ("device", "Storage"),
        ("host", "Storage"), ("disk", "Storage"), ("batch_size", "Schedule"),
    ])  # fmt: skip
    line = next(n for n, at in enumerate(text.splitlines(), 1) if at.lstrip().startswith(f"{name}="))
    of_class = _line_of(text, f"{kind}(\n")
    whole = text.splitlines()[line - 1].strip()
    said = (f"line {of_class}:", f"{kind} needs '{name}'", f"such as {name}=")
    return _in_line(f"missing {name}", line, whole, "", said, lambda _: whole)


def column(rng: random.Random, text: str) -> Mistake:
    """A misspelt column, or one that is not in the file."""
    name = rng.choice(COLUMNS)
    wrong = typo(rng, name)
    line = _line_of(text, f'"{name}"')
    said = (f"column '{wrong}'", "data.", "train.parquet", f"did you mean '{name}'")
    return _in_line(
        f"column {wrong}", line, f'"{name}"', f'"{wrong}"', said,
        lambda message: _quoted(_group(r"did you mean '(\w+)'", message)),
    )  # fmt: skip


SIZES = (
    ("64MB", 'such as "64 MiB"'), ("64", 'such as "64 MiB"'), ("2 GB", 'such as "2 GiB"'), ("-1 MiB", "such as"),
    ("lots", "such as"),
)  # fmt: skip
SMALL = ("0 B", "1 KiB", "20 KiB")


def size(rng: random.Random, text: str) -> Mistake:
    """A malformed size, or one that is far too small."""
    name, right = rng.choice([("device", "1 MiB"), ("host", "2 MiB"), ("disk", "64 MiB"), ("map", "1 MiB")])
    line = _line_of(text, f'{name}="{right}"')
    if rng.random() < 0.5:
        wrong, advice = rng.choice(SIZES)
        said = (f"line {_line_of_call(text, line, name)}:", f"Storage.{name}", advice)
        return _in_line(f"size {name} {wrong}", line, f'"{right}"', f'"{wrong}"', said, lambda _: f'"{right}"')
    wrong = rng.choice(SMALL if name != "device" else ("0 B", "100 B"))
    said = (f"storage.{name} is {wrong}", f'raise storage.{name} to "')

    def larger(case: Case, message: str) -> Case:
        found = _group(rf'raise storage\.{name} to "([\d.]+ \w+)"', message)
        return _replaced(case, line, re.compile(rf'{name}="[^"]*"'), f'{name}="{found}"')

    return Mistake(f"small {name} {wrong}", _edit(line, f'"{right}"', f'"{wrong}"'), said, larger, line)


def model(rng: random.Random, text: str) -> Mistake:
    """A misspelt model, class or kind of optimizer."""
    line, right, wrong, meant = rng.choice([
        (1, "import DeepFM", "import DeepFm", "DeepFM"), (1, "pipeline.models", "pipeline.model", "pipeline.models"),
        (_line_of(text, "kind=DeepFM"), "kind=DeepFM", "kind=DepFM", "DeepFM"),
        (_line_of(text, "kind=DeepFM"), "kind=DeepFM", 'kind="DeepFm"', "pipeline.models.DeepFM"),
        (_line_of(text, "rows="), "rows=Adam(lr=1e-3, l2=1e-5, beta1=0.9)", 'rows={"kind": "adm"}', "adam"),
        (_line_of(text, "rows="), "rows=Adam(", "rows=Adma(", "Adam"),
        (_line_of(text, 'name="user"'), "Category(", "Categry(", "Category"),
    ])  # fmt: skip

    # A name is looked up in its own line; pydantic refuses a value in the line of the call.
    at = line if '"' not in wrong else _line_of_call(text, line, right)
    said = (f"line {at}:", f"did you mean '{meant}'")
    return _in_line(f"model {wrong}", line, right, wrong, said, lambda _: right)


def argument(rng: random.Random, text: str) -> Mistake:
    """A misspelt key of model.args."""
    name = rng.choice(["hidden", "dropout"])
    wrong, line = typo(rng, name), _line_of(text, "args=")
    said = ("model.args", f"DeepFM has no '{wrong}'", f"did you mean '{name}'", "It takes hidden")
    return _in_line(
        f"argument {wrong}", line, f'"{name}"', f'"{wrong}"', said,
        lambda message: _quoted(_group(r"did you mean '(\w+)'", message)),
    )  # fmt: skip


PATHS = (
    ("schedule.batch_size", "16"), ("schedule.look_ahead", "2"), ("storage.device", "2 MiB"), ("storage.read", "8 MiB"),
    ("optimizer.rows.beta1", "0.8"), ("optimizer.dense.lr", "0.01"), ("model.embedding_dim", "4"), ("commit.keep", "3"),
    ("data.shuffle_window", "8"), ("model.kind", "DCNv2"), ("metrics.progressive", "true"),
)  # fmt: skip


def setting(rng: random.Random, text: str) -> Mistake:
    """A path of --set with one part misspelt."""
    path, content = rng.choice(PATHS)
    parts = path.split(".")
    at = rng.randrange(len(parts))
    wrong = ".".join([*parts[:at], typo(rng, parts[at]), *parts[at + 1 :]])

    def repaired(case: Case, message: str) -> Case:
        meant = _group(r"did you mean '([\w.]+)'", message)
        found = meant if "." in meant else f"{wrong.rpartition('.')[0]}.{meant}"
        return _set(case, f"{wrong}={content}", f"{found}={content}")

    said = (f"--set {wrong}", f"did you mean '{parts[-1] if at == len(parts) - 1 else path}'")
    return Mistake(f"--set {wrong}", _adding(f"{wrong}={content}"), said, repaired)


WHOLE = (
    ("model.kind=DCNV2", "did you mean 'pipeline.models.DCNv2'", "model.kind=DCNv2"),
    ("model.kind=DepFM", "did you mean 'pipeline.models.DeepFM'", "model.kind=DeepFM"),
    ("optimizer.rows.kind=adagrd", "did you mean 'adagrad'", "optimizer.rows.kind=adagrad"),
    ("storage.host=64MB", 'such as "64 MiB"', "storage.host=64 MiB"),
    ("storage.device=8 gib", 'such as "8 GiB"', None),
    ("schedule.epochs=many", "a whole number", "schedule.epochs=3"),
    ("schedule.epochs=0", "at least 1", "schedule.epochs=1"),
    ("schedule.epochs", "a.b=value", "schedule.epochs=1"),
    ('model.args={"hiden": [4]}', "did you mean 'hidden'", 'model.args={"hidden": [4]}'),
    ("data.labels=clicked", 'write ["clicked"]', 'data.labels=["clicked"]'),
    ('data.labels=["clickd"]', "did you mean 'clicked'", 'data.labels=["clicked"]'),
    ("device=gpu", "'auto', 'cpu' or 'cuda'", "device=cpu"),
    ("storage.disk=1 KiB", 'raise storage.disk to "', "storage.disk=64 MiB"),
    ("data.categories.0.name=user", "set data.categories as a whole", None),
    ("data.synthetic.seed=3", "set data.synthetic as a whole", None),
)  # fmt: skip
"""Wrong argument of --set, the advice, and the right argument; None: omit it."""


def whole_setting(rng: random.Random, text: str) -> Mistake:
    """A wrong value of --set."""
    wrong, advice, right = rng.choice(WHOLE)
    path = wrong.partition("=")[0]
    return Mistake(f"--set {wrong}", _adding(wrong), (path, advice), lambda case, _: _set(case, wrong, right))


def _in_line(
    name: str, line: int, right: str, wrong: str, expected: tuple[str, ...], found: Callable[[str], str]
) -> Mistake:
    def repair(case: Case, message: str) -> Case:
        lines = case.text.splitlines()
        if not wrong:
            lines[line - 1] = f"        {found(message)}"
            return Case("\n".join(lines) + "\n", case.settings)
        return _replaced(case, line, re.compile(re.escape(wrong)), found(message))

    return Mistake(name, _edit(line, right, wrong), expected, repair, line)


def _edit(line: int, right: str, wrong: str) -> Callable[[Case], Case]:
    return lambda case: _replaced(case, line, re.compile(re.escape(right)), wrong)


def _replaced(case: Case, line: int, before: re.Pattern[str], after: str) -> Case:
    lines = case.text.splitlines()
    assert before.search(lines[line - 1]), (before, lines[line - 1])
    lines[line - 1] = before.sub(lambda _: after, lines[line - 1], count=1)
    return Case("\n".join(lines) + "\n", case.settings)


def _adding(text: str) -> Callable[[Case], Case]:
    return lambda case: Case(case.text, (*case.settings, text))


def _set(case: Case, wrong: str, right: str | None) -> Case:
    settings = [right if text == wrong else text for text in case.settings]
    return Case(case.text, tuple(text for text in settings if text))


def _line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def _line_of_call(text: str, line: int, part: str, offset: int = 0) -> int:
    """Line where the call begins that has the character at `offset` of `part`, which is in `line`, as an argument."""
    lines = text.splitlines()
    at = lines[line - 1]
    if re.search(r"[A-Z]\w*\(", at[: at.index(part) + offset]):
        return line
    indent = len(at) - len(at.lstrip())
    return max(
        n for n, before in enumerate(lines[: line - 1], 1)
        if re.search(r"[A-Z]\w*\($", before) and len(before) - len(before.lstrip()) < indent
    )  # fmt: skip


def _quoted(name: str) -> str:
    return f'"{name}"'


def _group(pattern: str, message: str) -> str:
    found = re.search(pattern, message)
    assert found, f"{pattern} is not in {json.dumps(message)}"
    return found[1]
