"""Lists within a text: values between separators, or an array as JSON or Python writes it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pipeline.prepare.lines import RefusedLine
from pipeline.prepare.values import whole_numbers

JSON = "json"


def lists_of(texts: pa.ChunkedArray, separator: str, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """[N] lists of each text's values, null where the text is. `kind`: type of a value; `separator`: JSON, or what is
    between two values. Raises RefusedLine if a text is no such list."""
    if separator == JSON:
        return _of_json(texts, kind, name)
    lists = pc.split_pattern(texts, separator)
    if pa.types.is_integer(kind):
        whole_numbers(pc.list_flatten(lists), kind, name)
    return lists.cast(pa.list_(kind))


def _of_json(texts: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    # Python's repr has single quotes, which JSON has not.
    single = pc.and_(pc.match_substring(texts, "'"), pc.invert(pc.match_substring(texts, '"')))
    texts = pc.if_else(single, pc.replace_substring(texts, "'", '"'), texts)
    if not len(texts):
        return pa.chunked_array([], pa.list_(kind))
    rows = pc.binary_join_element_wise('{"v":', pc.fill_null(texts, "null"), "}\n", "").combine_chunks()
    shown = (texts.drop_null().to_pylist() or [""])[0][:80] if len(texts) == 1 else ""
    try:
        found = pj.read_json(
            pa.BufferReader(rows.buffers()[2]),
            read_options=pj.ReadOptions(use_threads=False, block_size=rows.nbytes),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema({"v": pa.list_(kind)}), unexpected_field_behavior="error"
            ),
        )
    except pa.ArrowInvalid as error:
        raise RefusedLine(f"column {name!r}: {shown!r} is no list of {kind} as JSON writes it") from error
    if len(found) != len(texts):
        raise RefusedLine(f"column {name!r}: {shown!r} is more than one list as JSON writes it")
    return found["v"]
