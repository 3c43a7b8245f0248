"""Values within structs and lists are read in parts of any size, also where Arrow reads row groups only as a whole."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.find import named
from pipeline.files.flat import FlatFile

TEXTS = ["a", "b", "a", "c", None]
CODES = pa.array(TEXTS).dictionary_encode()
COLUMNS = {
    "dictionary in a struct": (pa.StructArray.from_arrays([CODES, CODES], ["a", "b"]), "x.b", 2),
    "dictionary in a list": (pa.ListArray.from_arrays(range(6), CODES), "x", 2),
    "view in a struct": (pa.StructArray.from_arrays([pa.array(TEXTS, pa.string_view())], ["a"]), "x.a", 5),
}
"""Column, name of the flat column, and rows of a row group: Arrow writes structs of views in one alone."""


@pytest.mark.parametrize("case", COLUMNS)
def test_nested_values_are_read_in_parts_of_any_size(tmp_path, case):
    column, name, rows = COLUMNS[case]
    pq.write_table(pa.table({"x": column, "n": range(5)}), tmp_path / "a.parquet", row_group_size=rows)
    values = [[text] for text in TEXTS] if name == "x" else TEXTS
    with FlatFile(tmp_path / "a.parquet", named(tmp_path / "a.parquet")) as file:
        groups = range(file.num_row_groups)
        assert file.read_row_groups(groups, [name, "n"]).column(name).to_pylist() == values
        for size in (1, 3, 10):
            batches = list(file.iter_batches(size, columns=["n", name]))
            assert max(batch.num_rows for batch in batches) <= size
            assert pa.Table.from_batches(batches).to_pydict() == {"n": [*range(5)], name: values}
        (last,) = file.iter_batches(10, row_groups=[groups[-1]], columns=[name])
        assert last.column(0).to_pylist() == values[-1:] if rows == 2 else values
