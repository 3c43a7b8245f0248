#!/usr/bin/env bash
# Arrow's strptime takes 30 February as 2 March: a day that its month does not have becomes one of the next month.
#
#     bash findings/arrow_strptime_day_31.sh
#
# Seen with pyarrow 26.0.1 (2026-11-28): `strptime(..., format="%Y-%m-%d", error_is_null=True)` gives 2026-03-02 for
# 2026-02-30 and 2025-03-01 for 2025-02-29, without a null or an error; day 32 and month 13 are null. A cast of the same
# text to timestamp or date32, and Python's datetime.strptime, refuse all four. Damaged dates thus pass a check that
# looks for nulls. Fails if strptime answers otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
"$folder/venv/bin/python" - <<'END'
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc


def accepts(parse, text):
    try:
        parse(text)
    except ValueError:
        return False
    return True


EXPECTED = {"2026-02-30": "2026-03-02", "2025-02-29": "2025-03-01", "2026-02-32": None, "2026-13-01": None}
print(f"pyarrow {pa.__version__}")
for text, expected in EXPECTED.items():
    got = pc.strptime(pa.array([text]), format="%Y-%m-%d", unit="s", error_is_null=True)[0].as_py()
    print(f"{text}: strptime gives {got and got.date()}")
    assert (got and str(got.date())) == expected, "another version: strptime answers otherwise"
    assert not accepts(lambda text: pa.array([text]).cast(pa.timestamp("s")), text)
    assert not accepts(lambda text: pa.array([text]).cast(pa.date32()), text)
    assert not accepts(lambda text: datetime.strptime(text, "%Y-%m-%d"), text)
END
