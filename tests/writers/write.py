"""Write the rows of a Parquet file as other programs do: python write.py WRITER SOURCE FOLDER.

Runs in the environment that `make test-writers` makes. FOLDER gets `one` (a file), `day` (folders by a day) and `site`
(folders by a text, of which some are null), and `frame.arrow`, the rows as the program holds them."""

import sys
from pathlib import Path
from typing import Any

NULL = "__HIVE_DEFAULT_PARTITION__"
LAYOUTS = ("one", "day", "site")


def pandas(source: str, out: Path, by: str | None) -> Any:
    import pandas

    frame = pandas.read_parquet(source)
    frame.to_parquet(out if by else out / "a.parquet", partition_cols=[by] if by else None)
    return frame


def fastparquet(source: str, out: Path, by: str | None) -> Any:
    import fastparquet
    import pandas

    frame = pandas.read_parquet(source)
    frame["day"] = frame["day"].astype(str)  # It writes no dates.
    if by == "site":  # It leaves out rows of a null partition.
        frame["site"] = frame["site"].fillna(NULL)
    form = {"file_scheme": "hive", "partition_on": [by]} if by else {}
    fastparquet.write(str(out if by else out / "a.parquet"), frame, write_index=False, **form)
    return frame


def polars(source: str, out: Path, by: str | None) -> Any:
    import polars

    frame = polars.read_parquet(source)
    frame.write_parquet(out if by else out / "a.parquet", partition_by=by)
    return frame


def duckdb(source: str, out: Path, by: str | None) -> Any:
    import duckdb

    form = f"(FORMAT parquet, PARTITION_BY ({by}), OVERWRITE_OR_IGNORE)" if by else "(FORMAT parquet)"
    duckdb.sql(f"COPY (FROM '{source}') TO '{out if by else out / 'a.parquet'}' {form}")
    return duckdb.sql(f"FROM '{source}'")


def clickhouse(source: str, out: Path, by: str | None) -> Any:
    import chdb

    rows = f"FROM file('{source}', Parquet)"
    values = chdb.query(f"SELECT DISTINCT {by} {rows} FORMAT TSV").data().splitlines() if by else [""]
    for value in values:
        where = f"WHERE {by} IS NULL" if value == r"\N" else f"WHERE toString({by}) = '{value}'" if by else ""
        file = out / (f"{by}={value}".replace(r"\N", NULL) if by else "") / "a.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        chdb.query(f"SELECT * {f'EXCEPT {by}' if by else ''} {rows} {where} INTO OUTFILE '{file}' FORMAT Parquet")
    return chdb.query(f"SELECT * {rows}", "ArrowTable")


def deltalake(source: str, out: Path, by: str | None) -> Any:
    import deltalake
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(source)
    deltalake.write_deltalake(str(out), table, partition_by=by)
    return table


def daft(source: str, out: Path, by: str | None) -> Any:
    import daft

    frame = daft.read_parquet(source)
    frame.write_parquet(str(out), partition_cols=[daft.col(by)] if by else None)
    return frame.to_arrow()


def datafusion(source: str, out: Path, by: str | None) -> Any:
    import datafusion

    session = datafusion.SessionContext()
    session.register_parquet("source", source)
    form = f"STORED AS PARQUET PARTITIONED BY ({by})" if by else "STORED AS PARQUET"
    # It writes rows of a null partition to those of other values.
    columns = f"* EXCLUDE (site), coalesce(site, '{NULL}') AS site" if by == "site" else "*"
    session.sql(f"COPY (SELECT {columns} FROM source) TO '{out}/' {form}").collect()
    return session.table("source")


WRITERS = {
    made.__name__: made for made in (pandas, polars, duckdb, clickhouse, deltalake, fastparquet, daft, datafusion)
}

if __name__ == "__main__":
    for layout in LAYOUTS:
        folder = Path(sys.argv[3]) / layout
        folder.mkdir(parents=True)
        frame = WRITERS[sys.argv[1]](sys.argv[2], folder, None if layout == "one" else layout)
    import pyarrow

    rows = pyarrow.table(frame)
    with pyarrow.ipc.new_file(str(Path(sys.argv[3]) / "frame.arrow"), rows.schema) as file:
        file.write_table(rows)
