"""Malformed requests: each gets a 4xx, and the server answers the next one."""

import asyncio
import copy
import json

import numpy as np
import pytest
from support.depth import some
from support.http.file_servables import COLUMNS, TABLE, Fake, api_of
from support.http.oip import LENGTH, binary_request, call, json_request

INFER = "/v2/models/fake/infer"
JUNK = (None, True, -1, 0.5, 10**400, "", "\0", "x" * 1000, [], [[]], {}, {"name": "price"})
BINARY, LENGTH_OF_JSON = binary_request(TABLE, COLUMNS)
DOCUMENT = json.loads(json_request(TABLE, COLUMNS))


def cut(rng):
    """A body that ends before it is whole."""
    body, headers = [(json_request(TABLE, COLUMNS), {}), (BINARY, {LENGTH: LENGTH_OF_JSON})][rng.integers(2)]
    return "POST", INFER, body[: rng.integers(len(body))], headers


def noise(rng):
    return "POST", INFER, rng.bytes(rng.integers(200)), [{}, {LENGTH: 7}][rng.integers(2)]


def changed_field(rng):
    """A field of an input that is of another type or absent."""
    document = copy.deepcopy(DOCUMENT)
    entry = document["inputs"][rng.integers(len(document["inputs"]))]
    name = str(rng.choice(["name", "datatype", "shape", "data"]))
    entry[name] = JUNK[rng.integers(len(JUNK))]
    if rng.random() < 0.2:
        del entry[name]
    return "POST", INFER, json.dumps(document).encode(), {}


def other_size(rng):
    """A size of binary data that is not that of the tensor."""
    head = json.loads(BINARY[:LENGTH_OF_JSON])
    entry = head["inputs"][rng.integers(len(head["inputs"]))]
    before = entry["parameters"]["binary_data_size"]
    sizes = [before - 1, before + 1, -1, 2**63, 10**300, str(before), None, float(before)]
    entry["parameters"]["binary_data_size"] = sizes[rng.integers(len(sizes))]
    text = json.dumps(head).encode()
    return "POST", INFER, text + BINARY[LENGTH_OF_JSON:], {LENGTH: len(text)}


def bomb(rng):
    bombs = [b"[" * 100_000, b'{"a":' * 100_000, b'{"inputs":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
             b"9" * 100_000, b'{"inputs": [1e999]}', b'{"inputs": NaN}', b'"' + b"\\u0000" * 10_000]  # fmt: skip
    return "POST", INFER, bombs[rng.integers(len(bombs))], {}


MALFORMED = (cut, noise, changed_field, other_size, bomb)


def answers(tmp_path, requests):
    """(status, error) of each request, by an application that answers a good one afterwards."""
    found = []

    async def scenario(app):
        for method, path, body, headers in requests:
            reply = await call(app, method, path, body, headers)
            found.append((reply.status, reply.json.get("error") if reply.status != 200 else None))
        assert (await call(app, "POST", INFER, json_request(TABLE, COLUMNS))).status == 200

    with api_of(tmp_path, Fake()) as api:
        asyncio.run(scenario(api.app()))
        assert (api.admission.requests, api.admission.num_bytes) == (0, 0)
    return found


@pytest.mark.parametrize("count", some((20, 800), 20))
@pytest.mark.parametrize("make", MALFORMED)
def test_a_malformed_request_gets_a_4xx_with_a_reason(tmp_path, make, count):
    rng = np.random.default_rng(17)
    requests = [make(rng) for _ in range(count)]
    for request, (status, error) in zip(requests, answers(tmp_path, requests), strict=True):
        assert 400 <= status < 500, (status, request)
        assert error


@pytest.mark.parametrize("count", some((100, 20_000), 100))
def test_flipped_bits_give_a_4xx_or_other_values(tmp_path, count):
    rng = np.random.default_rng(18)

    def flipped():
        body = bytearray(BINARY)
        for at in rng.integers(len(body), size=rng.integers(1, 4)):
            body[at] ^= 1 << rng.integers(8)
        return "POST", INFER, bytes(body), {LENGTH: LENGTH_OF_JSON}

    statuses = [status for status, _ in answers(tmp_path, [flipped() for _ in range(count)])]
    assert set(statuses) == {200, 400}
