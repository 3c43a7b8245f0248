"""`pipeline prepare statistics WORKFLOW`: computes, once, the statistics of the training data that features need.

Means, standard deviations and edges are written to the JSON file named by `data.statistics`, value counts to the files
of the rules for rare values. Nothing else is written. Runs read the files unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.files import InputColumn, plain, with_derived
from pipeline.errors import PipelineError, system_text
from pipeline.features.bucket import are_missing
from pipeline.features.settings import AnyFeature, Bucket, Rare, Standardize
from pipeline.features.side_files import COLUMNS, COUNT, VALUE, doubles, expect
from pipeline.features.standardize import scaled
from pipeline.files.description import Description
from pipeline.files.find import DataFile, find, place_of, typed
from pipeline.files.flat import open_file
from pipeline.files.stores import is_remote
from pipeline.files.types import has_no_values, type_of_all
from pipeline.prepare.arguments import statistics_arguments
from pipeline.prepare.draft import WIDEST, Draft, suffixes
from pipeline.prepare.values import by_key, counted, summed
from pipeline.settings import SPLITS
from pipeline.storage.durable import replacing
from pipeline.storage.files import Files
from pipeline.workflow import Category, Data, load

MOST_VALUES = 1 << 22
"""Maximum number of values for computing quantiles; of longer columns, every second, third, ... value is used."""
ROWS_AT_ONCE = 1 << 18


def statistics_command(argv: Sequence[str]) -> int:
    """Return the exit code: 0 on success, 2 after an error. Errors print one message."""
    args = statistics_arguments().parse_args(argv)
    try:
        for line in write_statistics(load(args.workflow).data):
            print(line)
        return 0
    except (ValueError, OSError, PipelineError, pa.ArrowException) as error:
        print(f"error: {system_text(error) or error}", file=sys.stderr)
        return 2


def write_statistics(data: Data) -> Iterator[str]:
    """Compute the statistics of all features, even if some already exist, and write the files. Yields lines
    that report the results. Raises ValueError, with the feature, if the data provide none."""
    # Imported here, since it compiles kernels.
    from pipeline.data.synthetic import ensure

    ensure(data)
    written = [rule.counts for rule in data.features if isinstance(rule, Rare)]
    if any(isinstance(feature, Bucket | Standardize) and _is_computed(feature) for feature in data.features):
        if not data.statistics:
            raise ValueError("data.statistics names no file for what will be computed; set it to one, as features.json")
        written.append(str(data.statistics))
    if remote := [name for name in written if is_remote(place_of(name, data.root))]:
        raise ValueError(
            f"{remote[0]} is in an object store, and statistics are written to a local disk; name one there"
        )
    found, known = dict[str, dict[str, Any]](), list[AnyFeature]()
    for n, feature in enumerate(data.features):
        where = f"data.features[{n}] ({feature.kind}): "
        if isinstance(feature, Bucket | Standardize) and _is_computed(feature):
            values = _of_numbers(feature, data, known, where)
            if not values:
                raise ValueError(f"{where}column {feature.column!r} has fewer than two values; leave the feature out")
            found[feature.name] = values
            feature = feature.model_copy(update=values)
            yield f"{feature.name}: {', '.join(f'{name} {_shown(value)}' for name, value in values.items())}"
        known.append(feature)
    if found:
        assert data.statistics is not None
        path = Path(place_of(str(data.statistics), data.root))
        _write(path, found)
        yield f"written to {path}"
    yield from _counts(data, known)


def write_numbers(draft: Draft, root: Path, path: Path) -> list[str]:
    """Compute the statistics of both forms of a draft's numbers, and write them to `path`, if there are any. Return the
    numbers with statistics: a number with fewer than two values has none. `root`: the data's folder or address."""
    data = data_of_numbers(draft, root)
    found = {f.name: _of_numbers(f, data, (), "") for f in data.features if isinstance(f, Bucket | Standardize)}
    columns = {f.reads[0]: [g for g in data.features if g.reads == f.reads] for f in data.features}
    known = {column: of for column, of in columns.items() if all(found[f.makes[0]] for f in of)}
    if known:
        _write(path, {f.makes[0]: found[f.makes[0]] for of in known.values() for f in of})
    return list(known)


def data_of_numbers(draft: Draft, root: Path) -> Data:
    """Data of the training rows with the two features of each number, for computing the draft's statistics."""
    scaled, bucket = suffixes(draft.columns)
    numbers = [Standardize(column=name, name=name + scaled, log1p=True, clip=WIDEST) for name in draft.numbers]
    buckets = [Bucket(column=name, name=name + bucket, quantiles=draft.num_buckets) for name in draft.numbers]
    return Data(
        root=root,
        train=tuple(draft.splits["train"]),
        labels=tuple(draft.labels),
        features=(*numbers, *buckets),
        categories=tuple(Category(name=feature.name) for feature in buckets),
    )


def _write(path: Path, found: dict[str, dict[str, Any]]) -> None:
    Files().replace(path, [(json.dumps(found, indent=1) + "\n").encode()])


def _is_computed(feature: Bucket | Standardize) -> bool:
    """True for a feature whose statistics the user did not provide."""
    return feature.computed or feature.lacks is not None


def _shown(value: Any) -> str:
    return f"{len(value)}, {value[0]:g} to {value[-1]:g}" if isinstance(value, list) else f"{value:g}"


def _batches(data: Data, features: Sequence[AnyFeature], names: Sequence[str]) -> Iterator[tuple[DataFile, pa.Table]]:
    """Yield columns of the training data, original or derived by features, in batches of rows. Raises ValueError if no
    file has a column."""
    of_values = data.model_copy(update={"features": tuple(f for f in features if not isinstance(f, Rare))})
    lacking = {*names}
    for path in with_derived(_files(data), of_values, Description()):
        with open_file(path) as file:
            lacking -= {*file.schema_arrow.names}
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=names, use_threads=False):
                yield path, pa.Table.from_batches([batch])
    if lacking:
        raise ValueError(f"{path}: has no column {sorted(lacking)[0]!r}; it has {', '.join(file.schema_arrow.names)}")


def _files(data: Data) -> list[DataFile]:
    """Training files. Columns from their paths have the same types as in a run, which depend on all splits."""
    found = {split: find(getattr(data, split), data.root, f"data.{split}", "Parquet").files for split in SPLITS}
    return typed([file for files in found.values() for file in files], {})[: len(found["train"])]


def _of_numbers(feature: Bucket | Standardize, data: Data, known: Sequence[AnyFeature], where: str) -> dict[str, Any]:
    """Edges, or mean and standard deviation, of a column; empty if it has fewer than two distinct values."""
    num_rows = 0
    for path in _files(data):
        with open_file(path) as file:
            num_rows += file.metadata.num_rows
    step, row, taken = max(1, -(-num_rows // MOST_VALUES)), 0, list[Any]()
    mean, squares, count = 0.0, 0.0, 0
    for path, table in _batches(data, known, [feature.column]):
        array = table.column(0).combine_chunks()
        expect(feature.column, array.type, "integers", "numbers")
        x_N = scaled(feature, array) if isinstance(feature, Standardize) else doubles(array)
        if np.isinf(x_N).any():
            raise ValueError(f"{path}: {where}column {feature.column!r} has infinite values; correct the data")
        if isinstance(feature, Bucket):
            some_N = x_N[(-row) % step :: step]
            taken.append(some_N[~are_missing(feature, some_N)])
            row += len(x_N)
        elif len(x_N := x_N[~np.isnan(x_N)]):
            # Chan, Golub and LeVeque, 1979: combine the sums of squared deviations of parts.
            there, difference = x_N.mean(), x_N.mean() - mean
            squares += ((x_N - there) ** 2).sum() + difference**2 * count * len(x_N) / (count + len(x_N))
            mean += difference * len(x_N) / (count + len(x_N))
            count += len(x_N)
    if isinstance(feature, Bucket):
        assert feature.quantiles is not None
        edges = quantile_edges(np.concatenate([np.empty(0), *taken]), feature.quantiles)
        return {"edges": edges} if edges else {}
    return {"mean": float(mean), "std": float(np.sqrt(squares / count))} if squares else {}


def quantile_edges(x_N: Any, num: int) -> list[float]:
    """Edges that divide numbers into at most `num` buckets of about equal size. If the most frequent value alone would
    fill a bucket, it gets a separate one, and the others are divided among the rest: if most values are 0, for example,
    nearly all quantiles would be 0."""
    values_U, counts_U = np.unique(x_N, return_counts=True)
    if len(values_U) < 2:
        return []
    top = int(counts_U.argmax())
    if counts_U[top] * num < len(x_N):
        return _inner(x_N, num)
    own = values_U[top : top + 2].tolist()
    return sorted({*own[0 if top else 1 :], *_inner(x_N[x_N != values_U[top]], num - 1)})


def _inner(x_N: Any, num: int) -> list[float]:
    """Quantiles 1/num, 2/num, ..., rounded up to a value, without the smallest value, since nothing is below it."""
    found = np.quantile(x_N, np.arange(1, num) / num, method="higher") if num > 1 and len(x_N) else np.empty(0)
    return [float(edge) for edge in np.unique(found) if edge > x_N.min()]


def _counts(data: Data, known: Sequence[AnyFeature]) -> Iterator[str]:
    """Count the values of all categories with a rule for rare values. Rules that name the same file share it."""
    rules, in_all = [feature for feature in data.features if isinstance(feature, Rare)], 0
    for name in dict.fromkeys(rule.counts for rule in rules):
        of_file = [rule for rule in rules if rule.counts == name]
        columns, total = [rule.column for rule in of_file], list[pa.Table]()
        for path, table in _batches(data, known, columns):
            for column in columns:
                spec = InputColumn(column, "data.categories", table=name)
                if not has_no_values(table.column(column).type):
                    total.append(counted(plain(table.column(column), spec, None, str(path))))
            into = type_of_all([part.column(VALUE) for part in total])
            if into is None:
                raise ValueError(f"{path}: {', '.join(columns)}: integers and text; name a file of counts for each")
            same = pa.schema([(VALUE, into), (COUNT, pa.int64())])
            total = [summed(pa.concat_tables([part.cast(same) for part in total]))] if total else []
        if not total:
            raise ValueError(f"{', '.join(columns)}: the training files have no values to count")
        made, place = by_key(total[0], name), Path(place_of(name, data.root))
        Files().make_folder(place.parent)
        with replacing(place) as out:
            pq.write_table(made.replace_schema_metadata({COLUMNS: json.dumps(columns)}), out)
        for rule in of_file:
            often = int((made.column(COUNT).to_numpy() >= rule.at_least).sum())
            in_all += often
            yield f"{rule.column}: {made.num_rows:,} values, {often:,} of them {rule.at_least:,} times or more: {place}"
    if rules:
        yield f"{in_all:,} values of {len(rules):,} categories have keys of their own"
