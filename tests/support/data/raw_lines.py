"""Functions that make lines of each raw format, reproducible by seed: skewed values, empty fields, quotes, negative
counts."""

import numpy as np

CSV_COLUMNS = (
    "click:label",
    "price:number",
    "age:number:int32",
    "day:time:string",
    "city:category",
    "item:category:int64",
    "note:skip",
)
LIBFFM_FIELDS = tuple(range(1, 9))
LIBFFM_MANY = (8,)
LIBFFM_NUMBERS = (3,)
LIBSVM_NUMBERS = (7,)


def _texts(rng, n, values, empty=0.1):
    """Random picks from the values, skewed towards the first ones; some are empty."""
    picks = np.array(values)[(len(values) * rng.random(n) ** 3).astype(np.int64)]
    return np.where(rng.random(n) < empty, "", picks)


def _hex(rng, n, num_values, empty=0.1):
    return _texts(rng, n, [f"{v * 2654435761 % (1 << 32):08x}" for v in range(1, num_values + 1)], empty)


def _integers(rng, n, low, high, empty=0.0):
    values = (low + (high - low) * rng.random(n) ** 2).astype(np.int64).astype(str)
    return np.where(rng.random(n) < empty, "", values)


def _labels(rng, n):
    return (rng.random(n) < 0.25).astype(int).astype(str)


def _joined(columns, delimiter, header=None):
    lines = [delimiter.join(line) for line in zip(*(c.tolist() for c in columns), strict=True)]
    return "".join(f"{line}\n" for line in ([header] if header else []) + lines).encode()


def criteo_lines(n, seed=0):
    rng = np.random.default_rng(seed)
    numbers = [_integers(rng, n, -3 if i == 1 else 0, 10 ** (1 + i % 6), 0.2) for i in range(13)]
    return _joined([_labels(rng, n), *numbers, *(_hex(rng, n, 4 << i % 12) for i in range(26))], "\t")


def avazu_lines(n, seed=0):
    """Lines with a header. Hours are in order, as in Avazu's file: ten days from the 21st of October 2014."""
    rng = np.random.default_rng(seed)
    hours = [f"1410{21 + h // 24}{h % 24:02}" for h in np.sort((240 * rng.random(n)).astype(int))]
    small = [_integers(rng, n, low, high) for low, high in ((1001, 1012), (0, 7))]
    texts = [_hex(rng, n, 4 << i, 0) for i in range(9)]
    more = [_integers(rng, n, low, high) for low, high in ((0, 5), (0, 5), *((-1, 4 << i) for i in range(8)))]
    ids = np.array([str(10**18 + i) for i in range(n)])
    names = (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    )
    return _joined([ids, _labels(rng, n), np.array(hours), *small, *texts, *more], ",", names)


def csv_lines(n, seed=0):
    """Lines of CSV_COLUMNS with a header. Quoted values contain delimiters, quotes and non-ASCII characters."""
    rng = np.random.default_rng(seed)
    cities = ["Zürich", "東京", '"Washington, D.C."', '"the ""Big Apple"""', "O'Fallon", "La Paz"]
    prices = np.char.mod("%.2f", rng.exponential(20, n))
    days = np.char.mod("2024-02-%02d", np.sort((1 + 28 * rng.random(n)).astype(int)))
    items = _integers(rng, n, 10**12, 10**12 + 500, 0.1)
    columns = [_labels(rng, n), np.where(rng.random(n) < 0.2, "", prices), _integers(rng, n, 18, 90, 0.2), days]
    names = ",".join(column.split(":")[0] for column in CSV_COLUMNS)
    return _joined([*columns, _texts(rng, n, cities), items, _texts(rng, n, ["x", '"a,b"', "5'"])], ",", names)


def libsvm_lines(n, seed=0):
    """Lines with both kinds of labels, lists of any length, and values other than 1 for index 7 of LIBSVM_NUMBERS."""
    rng = np.random.default_rng(seed)
    lines = []
    for label, count in zip(rng.integers(0, 4, n), rng.integers(0, 12, n), strict=True):
        ids = sorted({int(v) for v in 8 + 500 * rng.random(count) ** 2})
        tokens = [f"{v}:{'1' if v % 2 else '1.0'}" for v in ids]
        if rng.random() < 0.8:
            tokens.insert(0, f"7:{rng.standard_normal():.4g}")
        lines.append(" ".join([("1", "0", "+1", "-1")[label], *tokens]))
    return "".join(f"{line}\n" for line in lines).encode()


def libffm_lines(n, seed=0):
    """Lines of LIBFFM_FIELDS; fields of LIBFFM_MANY occur several times in a line, those of LIBFFM_NUMBERS have
    values."""
    rng = np.random.default_rng(seed)
    lines = []
    for label in rng.integers(0, 2, n):
        tokens = []
        for field in LIBFFM_FIELDS:
            count = int(rng.integers(0, 4)) if field in LIBFFM_MANY else int(rng.random() < 0.9)
            ids = (1000 * field + 300 * rng.random(count) ** 2).astype(int)
            value = f"{rng.random():.3f}" if field in LIBFFM_NUMBERS else "1"
            tokens += [f"{field}:{v}:{value}" for v in ids]
        lines.append(" ".join([str(label), *tokens]))
    return "".join(f"{line}\n" for line in lines).encode()
