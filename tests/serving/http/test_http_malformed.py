"""Malformed requests: each gets a 4xx, and the server goes on."""

import asyncio
import copy
import json
import struct

import numpy as np
import pytest
from depth import some
from fake_served import COLUMNS, TABLE, Fake, api_of
from oip import LENGTH, binary_request, call, json_request

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


def not_text(rng):
    body = json_request(TABLE, COLUMNS)
    at = rng.integers(len(body))
    return "POST", INFER, body[:at] + b"\xff" + body[at:], {}


def wrong_length(rng):
    length = int(rng.choice([0, 1, LENGTH_OF_JSON - 1, LENGTH_OF_JSON + 1, len(BINARY), len(BINARY) + 1, 10**12]))
    return "POST", INFER, BINARY, {LENGTH: length}


def changed_field(rng):
    """A field of an input that is of another type or absent."""
    document = copy.deepcopy(DOCUMENT)
    entry = document["inputs"][rng.integers(len(document["inputs"]))]
    name = str(rng.choice(["name", "datatype", "shape", "data"]))
    entry[name] = JUNK[rng.integers(len(JUNK))]
    if rng.random() < 0.2:
        del entry[name]
    return "POST", INFER, json.dumps(document).encode(), {}


def changed_value(rng):
    """An element of the data that is of another type, or too many or too few of them."""
    document = copy.deepcopy(DOCUMENT)
    entry = document["inputs"][rng.integers(len(document["inputs"]))]
    data = entry["data"]
    kind = rng.integers(3)
    if kind == 0:
        data.append(data[0])
    elif kind == 1:
        del data[0]
    else:
        data[rng.integers(len(data))] = [[], {}, True, [1], 1e999, -(2**65), 0.5 if entry["name"] != "price" else ""][
            rng.integers(7)
        ]
        if "BYTES" not in entry["datatype"]:
            data[0] = "1"
    return "POST", INFER, json.dumps(document).encode(), {}


def other_inputs(rng):
    document = copy.deepcopy(DOCUMENT)
    inputs = document["inputs"]
    n = int(rng.integers(len(inputs)))
    kind = rng.integers(3)
    if kind == 0:
        del inputs[n]
    elif kind == 1:
        inputs.append(inputs[n])
    else:
        inputs.append(inputs[n] | {"name": f"column{n}"})
    return "POST", INFER, json.dumps(document).encode(), {}


def other_request(rng):
    more = [{"id": 7}, {"id": []}, {"parameters": []}, {"parameters": {"a": None}}, {"parameters": {"timeout": 1.5}},
            {"outputs": {}}, {"outputs": [{"name": "none"}]}, {"outputs": ["click.logit"]}]  # fmt: skip
    return "POST", INFER, json_request(TABLE, COLUMNS, **more[rng.integers(len(more))]), {}


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


def other_place(rng):
    places = [("GET", INFER), ("PUT", INFER), ("GET", "/x"), ("GET", "/v2/models/\0"), ("\0", "/v2")]
    below = ("", "/x/infer", "//infer", "/fake", "/fake/infer/", "/fake/versions//infer", "/fake/versions/2/infer")
    places += [("POST", f"/v2/models{path}") for path in below]
    method, path = places[rng.integers(len(places))]
    return method, path, json_request(TABLE, COLUMNS), {}


def other_headers(rng):
    headers = [{"content-type": "text/html"}, {"content-type": "\xe9"}, {"content-encoding": "br"}, {LENGTH: "1.0"},
               {LENGTH: "9" * 99}, {"content-length": "-1"}]  # fmt: skip
    return "POST", INFER, json_request(TABLE, COLUMNS), headers[rng.integers(len(headers))]


MALFORMED = (cut, noise, not_text, wrong_length, changed_field, changed_value, other_inputs, other_request, other_size,
             bomb, other_place, other_headers)  # fmt: skip


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
        assert (api._admission.requests, api._admission.num_bytes) == (0, 0)
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


def test_lengths_of_texts_beyond_the_body_read_nothing(tmp_path):
    at = BINARY.index(struct.pack("<I", 5) + "\u00e9t\u00e9".encode())
    forged = [BINARY[:at] + struct.pack("<I", length) + BINARY[at + 4 :] for length in (6, 2**31 - 1, 2**31, 2**32 - 1)]
    for status, error in answers(tmp_path, [("POST", INFER, body, {LENGTH: LENGTH_OF_JSON}) for body in forged]):
        assert (status, "input 'country': text " in error) == (400, True)
