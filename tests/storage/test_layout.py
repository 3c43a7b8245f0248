"""Layouts of rows: sizes, descriptions that read back, parts that kernels take."""

import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from pipeline.kernels.narrow_rows import BFLOAT16, FULL_WORD
from pipeline.records import RESERVED
from pipeline.settings.optimizer import ROW_OPTIMIZERS, Adagrad, Adam, RowStorage, RowWiseAdagrad, Sgd
from pipeline.storage.layout import RowLayout, formats_of_rows, row_keys
from pipeline.storage.tier import widened, write_first_rows

STORED = ["float32", "bfloat16", "float16", {"weights": "bfloat16"}, {"state": "bfloat16"}]


def layout_of(rows, dim=16, first_order=True):
    return RowLayout(dim, first_order, rows.kind, formats_of_rows(rows))


def test_rows_have_the_sizes_that_the_documentation_tells():
    v_whole = RowStorage(weights="bfloat16", state="bfloat16", v="float32")
    sizes = {
        224: Adam(), 124: Adam(storage="bfloat16"), 156: Adam(storage=v_whole), 64: RowWiseAdagrad(storage="bfloat16"),
        56: Sgd(storage="float16"),
    }  # fmt: skip
    assert {layout_of(rows).num_bytes for rows in sizes.values()} == set(sizes)
    for size, rows in sizes.items():
        assert layout_of(rows).num_bytes == size


@pytest.mark.parametrize("kind", ROW_OPTIMIZERS)
def test_a_description_is_read_back_with_all_places(kind):
    for stored, dim, first_order in itertools.product(STORED, (0, 1, 7, 16), (False, True)):
        layout = layout_of(ROW_OPTIMIZERS[kind](storage=stored), dim, first_order)
        described = layout.describe()
        assert RowLayout.of(described) == layout
        assert ("formats" in described) == bool(layout.formats)
        taken = np.zeros(2 * layout.num_words, int)
        formats = described.pop("formats", {})
        for name, at in described.items():
            begin, end = at if isinstance(at, list) else (at, at + 1)
            halves = 2 if formats.get(name, "float32") == "float32" else 1
            taken[begin * halves : end * halves] += 1
        assert taken.max() == 1, "two parts share bytes"
        assert (taken == 0).sum() <= 1, "more than half a word is unused"


@pytest.mark.parametrize("kind", ROW_OPTIMIZERS)
def test_parts_for_kernels_cover_the_wide_row_once(kind):
    for stored, dim in itertools.product(STORED, (0, 1, 16)):
        layout = layout_of(ROW_OPTIMIZERS[kind](storage=stored), dim)
        covered = np.zeros(layout.wide.num_words, int)
        for _, _, size, wide_at in layout.widening().tolist():
            covered[wide_at : wide_at + size] += 1
        assert (covered == 1).all()


def test_parts_that_lie_together_are_one():
    parts = layout_of(Adam(storage="bfloat16")).widening()
    assert parts.tolist() == [[FULL_WORD, 0, 2, 0], [BFLOAT16, 4, 51, 2], [FULL_WORD, 28, 3, 53]]


@pytest.mark.parametrize(
    "change",
    [{"formats": {}}, {"formats": {"embedding": "int4", "first_order": "int4", "adam_m": "int4", "adam_v": "int4"}},
     {"formats": 3}, {"adam_m": [5, 22]}, {"tag": 31}],
)  # fmt: skip
def test_a_description_of_no_layout_is_refused(change):
    with pytest.raises(ValueError, match="row does not describe a row layout"):
        RowLayout.of(layout_of(Adam(storage="bfloat16")).describe() | change)


@pytest.mark.parametrize(("stored", "step"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_first_rows_are_those_of_float32_rounded_to_the_nearest(stored, step):
    keys = np.random.default_rng(0).integers(0, RESERVED, 3000, np.uint64)
    rows = []
    for layout in (layout_of(Adam()), layout_of(Adam(storage=stored))):
        stored_UW = np.full((len(keys), layout.num_words), 7, np.uint32)
        write_first_rows(layout, 5, 0.01, keys, stored_UW)
        assert (row_keys(stored_UW) == keys).all()
        rows.append(widened(layout, stored_UW).view(np.float32)[:, 2:])
    whole, rounded = rows
    assert (np.abs(rounded - whole) <= np.abs(whole) * step + 2.0**-25).all()
    assert (rounded[:, 17:] == 0).all()
    assert abs((rounded - whole).mean()) < 1e-7


def test_a_format_of_v_is_for_adam_alone():
    with pytest.raises(ValidationError, match=r"storage\.v is the format of Adam's v"):
        Adagrad(storage={"v": "bfloat16"})


def test_formats_that_nothing_is_stored_in_are_refused():
    with pytest.raises(ValidationError, match="must be 'float32', 'bfloat16', 'float16', or formats of"):
        Adam(storage="int8")
    with pytest.raises(ValidationError, match="Input should be 'float32' or 'bfloat16'"):
        Adam(storage={"state": "float16"})
