#!/usr/bin/env bash
# Text that DataFusion writes to Parquet comes back in pyarrow as string_view, of which Arrow counts nulls as empty text,
# and which it can neither take, filter nor sort.
#
#     bash findings/datafusion_string_views.sh
#
# Seen with datafusion 55.0.0 and pyarrow 26.0.1 (2026-11-28): a table of plain strings, copied by DataFusion from one
# Parquet file to another, is read by pyarrow as string_view, the Arrow type that DataFusion keeps in the file's
# metadata. `Table.take`, `Table.filter` and `Table.sort_by` then raise errors. `unique` and `value_counts` give "" in
# place of a null, without an error, and twice where the column has empty text too; `to_pylist`, `is_null` and
# `dictionary_encode` are right, and so is everything after a cast to string. Fails if one of these changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datafusion==55.0.0 pyarrow==26.0.1
cat > "$folder/write.py" <<'END'
import sys
from importlib.metadata import version
from pathlib import Path

import datafusion
import pyarrow as pa
import pyarrow.parquet as pq

folder = Path(sys.argv[1])
pq.write_table(pa.table({"site": ["b", "", None, None]}), folder / "plain.parquet")
session = datafusion.SessionContext()
session.register_parquet("rows", str(folder / "plain.parquet"))
session.sql(f"COPY (SELECT * FROM rows) TO '{folder}/copied.parquet' STORED AS PARQUET").collect()
plain, copied = pq.read_table(folder / "plain.parquet"), pq.read_table(folder / "copied.parquet")
print(f"datafusion {version('datafusion')}, pyarrow {pa.__version__}: {plain.schema.types} is now {copied.schema.types}")
assert copied.schema.types == [pa.string_view()], "another version: another type"
assert copied["site"].cast(pa.string()).equals(plain["site"]) and copied["site"].null_count == 2
counts = [[(one["values"], one["counts"]) for one in t["site"].value_counts().to_pylist()] for t in (plain, copied)]
print(f"value_counts: {counts[0]} as string, {counts[1]} as string_view")
assert plain["site"].unique().to_pylist() == ["b", "", None]
assert counts[0] == [("b", 1), ("", 1), (None, 2)]
assert copied["site"].unique().to_pylist() == ["b", "", ""], "another version: unique answers otherwise"
assert counts[1] == [("b", 1), ("", 1), ("", 2)], "another version: value_counts answers otherwise"
for name, call in {
    "take": lambda table: table.take([1, 0]),
    "filter": lambda table: table.filter(pa.array([True, False, True, True])),
    "sort_by": lambda table: table.sort_by("site"),
}.items():
    call(plain)
    try:
        call(copied)
    except (pa.ArrowNotImplementedError, TypeError) as error:
        print(f"Table.{name}: {str(error).splitlines()[0]}")
    else:
        raise SystemExit(f"another version: Table.{name} works")
END
"$folder/venv/bin/python" "$folder/write.py" "$folder"
