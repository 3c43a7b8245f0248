"""Random schemas and values through `init`, `run` and `score`: each type trains and scores the bits of the plain type
that holds the same values (int64, double, string)."""

import contextlib
import datetime as dt
import io
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from support.data.drafts import init
from support.depth import examples

from pipeline.models import DeepFM
from pipeline.run import main as run
from pipeline.serving.score import main as score
from pipeline.workflow import Model, Schedule, Storage, load

FILES = ("train-9.parquet", "train-10.parquet", "test.parquet")
ROWS = 12
"""Number of rows of each file."""
SMALL = Storage(device=16 << 20, host=16 << 20, disk=1 << 30, read=64 << 20, map=64 << 20, chunk_rows=1024)
BEGIN = dt.datetime(2026, 11, 1)
SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
INTEGERS = (*SIGNED, pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
DECIMALS = (pa.decimal32(9, 0), pa.decimal64(18, 0), pa.decimal128(20, 0), pa.decimal128(38, 0))
WIDE = (pa.int64(), pa.uint64(), pa.decimal128(19, 0), pa.decimal128(20, 0), pa.decimal128(38, 0))
FRACTIONS = (pa.float32(), pa.float64(), pa.decimal64(18, 2), pa.decimal128(38, 9))
TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
         pa.dictionary(pa.int32(), pa.large_string()), pa.binary(), pa.large_binary())  # fmt: skip
TIMES = (*(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("us", "UTC"), pa.date32(), pa.date64())
NAMES = ("user_id", "price", "c1", "ad.id", "a b", "Größe", "x=y", "it's", 'q"', "tags", "weight", "n", "count", "é[0]")
KINDS = {
    "naturals": (st.integers(0, 9), (*INTEGERS, *DECIMALS, pa.float16(), pa.float64(),
                 pa.dictionary(pa.int8(), pa.int32()))),
    "integers": (st.integers(-100, 100), (*SIGNED, *DECIMALS, pa.float16(), pa.float64())),
    "wide": (st.integers(0, (1 << 63) - 1), WIDE),
    "fractions": (st.integers(-(10**6), 10**6).map(lambda n: n / 100), FRACTIONS),
    "texts": (st.sampled_from(["", "a", "00", "7", "NA", "é", "long text of more than twelve bytes"]), TEXTS),
    "booleans": (st.integers(0, 1), (pa.bool_(),)),
    "nothing": (st.none(), (pa.null(), pa.int64(), pa.string(), pa.float64())),
    "times": (st.integers(0, 20).map(lambda n: BEGIN + dt.timedelta(days=n)), TIMES),
    "lists": (st.lists(st.integers(0, 9), max_size=3), (pa.list_(pa.int8()), pa.large_list(pa.uint32()),
              pa.list_(pa.int64()), pa.list_(pa.float64()))),
    "lists of text": (st.lists(st.sampled_from(["a", "", "7"]), max_size=3), (pa.list_(pa.string()),
                      pa.large_list(pa.large_string()), pa.list_(pa.string_view()))),
    "pairs": (st.lists(st.integers(0, 9), min_size=2, max_size=2), (pa.list_(pa.int16(), 2), pa.list_(pa.int64()))),
}  # fmt: skip
"""Values of columns, and the types that hold them."""
PLAIN = {"texts": pa.string(), "fractions": pa.float64(), "lists": pa.list_(pa.int64()), "pairs": pa.list_(pa.int64()),
         "lists of text": pa.list_(pa.string())}  # fmt: skip
LABELS = (*INTEGERS, *DECIMALS, pa.float32(), pa.float64(), pa.bool_())


def array(values, kind):
    """Values in a type, as other programs would write them."""
    if pa.types.is_decimal(kind):
        step = Decimal(1).scaleb(-min(2, kind.scale))
        return pa.array([None if v is None else Decimal(str(v)).quantize(step) for v in values], kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_date(kind):
        return pa.array([None if v is None else v.date() for v in values], kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if v is None else bool(v) for v in values], kind)
    return pa.array([v and v.encode() for v in values] if "binary" in str(kind) else values, kind)


@st.composite
def logs(draw):
    """Columns of each file as foreign programs write them, and in plain types; and the partition values of each."""
    files, plain = [dict() for _ in FILES], [dict() for _ in FILES]
    partitions = [[] for _ in FILES]
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    for name in names:
        kind = draw(st.sampled_from([*KINDS, "partition", "struct"]))
        if kind == "partition":
            texts = draw(st.sampled_from([("1", "2", "3"), ("007", "7", "-1"), ("a/b", "c d", "é"), (None, "4", "4")]))
            is_whole = all(text is None or str(int(text)) == text for text in texts if "a/b" not in texts)
            is_whole = is_whole and "a/b" not in texts
            for n, text in enumerate(texts):
                partitions[n].append((name, text))
                value = None if text is None else int(text) if is_whole else text
                plain[n][name] = pa.array([value] * ROWS, pa.int64() if is_whole else pa.string())
            continue
        inner = draw(st.sampled_from(["naturals", "texts", "fractions"])) if kind == "struct" else kind
        values, types = KINDS[inner]
        values = values | st.none() if draw(st.booleans()) else values
        if kind == "nothing":
            # Text does not become integers, even if all of it is null.
            types = (pa.null(), draw(st.sampled_from(types)))
        if kind == "times":
            # Dates, and times with and without a zone, are not one column.
            types = draw(st.sampled_from([TIMES[:4], TIMES[4:5], TIMES[5:]]))
        if kind == "struct":
            # Arrow does not write structs of views in parts.
            types = [one for one in types if "view" not in str(one)]
        lacks = draw(st.sampled_from([None, None, 0, 2]))
        for n in range(len(FILES)):
            found = draw(st.lists(values, min_size=ROWS, max_size=ROWS))
            written = array(found, draw(st.sampled_from(types)))
            if inner in ("times", "nothing"):
                plain[n][name] = array([None] * ROWS, pa.int64())
            elif n == lacks:
                plain[n][name] = array([None] * ROWS, PLAIN.get(inner, pa.int64()))
            else:
                shown = f"{name}.f" if kind == "struct" else name
                plain[n][shown] = array(found, PLAIN.get(inner, pa.int64()))
            if n != lacks:
                files[n][name] = pa.StructArray.from_arrays([written], ["f"]) if kind == "struct" else written
    # Both labels, and a category that does not say which: `init` needs both.
    labels = st.lists(st.integers(0, 1), min_size=ROWS - 4, max_size=ROWS - 4).map(lambda some: [0, 1, 0, 1, *some])
    sites = st.lists(st.sampled_from("abc"), min_size=ROWS - 4, max_size=ROWS - 4).map(lambda some: [*"abba", *some])
    for n in range(len(FILES)):
        label, site = draw(labels), draw(sites)
        plain[n] |= {"click": pa.array(label), "site": pa.array(site)}
        files[n] |= {"click": array(label, draw(st.sampled_from(LABELS))), "site": pa.array(site)}
    return files, plain, partitions


def called(command, *argv):
    """Exit code and all lines of a command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = command([str(word) for word in argv])
    return code, said.getvalue()


def trained_and_scored(folder, workflow, tests):
    """Fingerprint of a run, and the bits of its scores of each file."""
    file = folder / "w.json"
    file.write_text(workflow.model_dump_json())
    code, said = called(run, file, "--serial", "--run-dir", folder / "run")
    assert code == 0, said
    result = json.loads((folder / "run/result.json").read_bytes())
    scores = []
    for number, test in enumerate(tests):
        code, said = called(score, folder / "run", test, "--out", folder / f"scores {number}")
        assert code == 0, said
        (found,) = (folder / f"scores {number}").rglob("*.parquet")
        scores.append([value.hex() for column in pq.read_table(found).columns for value in column.to_pylist()])
    return result["fingerprint"], scores


@given(logs())
@examples(3, 40)
def test_any_schema_trains_and_scores_the_bits_of_plain_types(log):
    files, plain, partitions = log
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for n, file in enumerate(FILES):
            texts = [(name, "__HIVE_DEFAULT_PARTITION__" if text is None else text) for name, text in partitions[n]]
            folder = root / "log" / "/".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in texts)
            for place, columns in ((folder, files[n]), (root / "plain", plain[n])):
                place.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.table(columns), place / file, row_group_size=5)
        code, said = called(init, root / "log", "--out", root / "my.py")
        assert code == 0, said
        drafted = load(root / "my.py")
        small = drafted.model_copy(
            update={
                "model": Model(kind=DeepFM, embedding_dim=2, args={"hidden": (2,)}), "storage": SMALL, "device": "cpu",
                "schedule": Schedule(batch_size=6, epochs=1, block_batches=2, threads=1),
            }
        )  # fmt: skip
        splits = {split: tuple(Path(one).name for one in getattr(small.data, split)) for split in ("train", "test")}
        data = small.data.model_copy(update={"root": root / "plain", **splits})
        (root / "a").mkdir()
        (root / "b").mkdir()
        tests = [folder / FILES[-1], root / "plain" / FILES[-1]]
        of_types = trained_and_scored(root / "a", small, tests)
        of_plain = trained_and_scored(root / "b", small.model_copy(update={"data": data}), tests[1:])
        assert of_types == (of_plain[0], of_plain[1] * 2), said
