"""Write the rows of a Parquet file as other programs do: python write.py WRITER SOURCE FOLDER.

Runs in the environment that `make test-writers` makes. FOLDER gets `one` (a file), `day` (folders by a day) and `site`
(folders by a text, of which some are null), and `frame.arrow`, the rows as the program holds them.

A writer is a function of its module, the source, the folder, the path (a file in the folder, or, with `by`, the folder
itself), and the column `by` that names folders."""

import sys
from importlib import import_module
from pathlib import Path

NULL = "__HIVE_DEFAULT_PARTITION__"


def pandas(module, source, folder, path, by):
    frame = module.read_parquet(source)
    frame.to_parquet(path, partition_cols=[by] if by else None)
    return frame


def fastparquet(module, source, folder, path, by):
    frame = import_module("pandas").read_parquet(source)
    frame["day"] = frame["day"].astype(str)  # It writes no dates.
    if by == "site":  # It leaves out rows of a null partition.
        frame["site"] = frame["site"].fillna(NULL)
    form = {"file_scheme": "hive", "partition_on": [by]} if by else {}
    module.write(str(path), frame, write_index=False, **form)
    return frame


def polars(module, source, folder, path, by):
    frame = module.read_parquet(source)
    frame.write_parquet(path, partition_by=by)
    return frame


def duckdb(module, source, folder, path, by):
    form = f"(FORMAT parquet, PARTITION_BY ({by}), OVERWRITE_OR_IGNORE)" if by else "(FORMAT parquet)"
    module.sql(f"COPY (FROM '{source}') TO '{path}' {form}")
    return module.sql(f"FROM '{source}'")


def chdb(module, source, folder, path, by):
    rows = f"FROM file('{source}', Parquet)"
    values = module.query(f"SELECT DISTINCT {by} {rows} FORMAT TSV").data().splitlines() if by else [""]
    for value in values:
        where = f"WHERE {by} IS NULL" if value == r"\N" else f"WHERE toString({by}) = '{value}'" if by else ""
        file = folder / (f"{by}={value}".replace(r"\N", NULL) if by else "") / "a.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        module.query(f"SELECT * {f'EXCEPT {by}' if by else ''} {rows} {where} INTO OUTFILE '{file}' FORMAT Parquet")
    return module.query(f"SELECT * {rows}", "ArrowTable")


def deltalake(module, source, folder, path, by):
    table = import_module("pyarrow.parquet").read_table(source)
    module.write_deltalake(str(folder), table, partition_by=by)
    return table


def daft(module, source, folder, path, by):
    frame = module.read_parquet(source)
    frame.write_parquet(str(folder), partition_cols=[module.col(by)] if by else None)
    return frame.to_arrow()


def datafusion(module, source, folder, path, by):
    session = module.SessionContext()
    session.register_parquet("source", source)
    form = f"STORED AS PARQUET PARTITIONED BY ({by})" if by else "STORED AS PARQUET"
    # It writes rows of a null partition to those of other values.
    columns = f"* EXCLUDE (site), coalesce(site, '{NULL}') AS site" if by == "site" else "*"
    session.sql(f"COPY (SELECT {columns} FROM source) TO '{folder}/' {form}").collect()
    return session.table("source")


if __name__ == "__main__":
    writer, source, out = sys.argv[1:]
    for by in (None, "day", "site"):
        (folder := Path(out) / (by or "one")).mkdir(parents=True)
        frame = globals()[writer](import_module(writer), source, folder, folder if by else folder / "a.parquet", by)
    pyarrow = import_module("pyarrow")
    rows = pyarrow.table(frame)
    with pyarrow.ipc.new_file(str(Path(out) / "frame.arrow"), rows.schema) as file:
        file.write_table(rows)
