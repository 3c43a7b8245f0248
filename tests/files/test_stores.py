"""Object stores: what is in a real S3 server on loopback is read as on a disk, and its faults are named."""

import re
import time
from secrets import token_hex

import pytest
from support.stores.faulty_proxy import proxying
from support.stores.s3_server import CACHE_SECONDS, SECRET, environment, serving_s3

from pipeline.files import stores
from pipeline.messages.uris import is_remote, join, name_below, parse, refuse_keys

CONTENT = bytes(range(256)) * 512


@pytest.fixture(scope="module")
def bucket():
    with serving_s3() as bucket:
        yield bucket


@pytest.fixture
def store(bucket, monkeypatch):
    """Folder of the bucket `b`, and a proxy in front of its server, which the environment names."""
    monkeypatch.setattr(stores, "PAUSES", (0.01, 0.02))
    monkeypatch.setattr(stores, "TRIES", 1)
    folder, port = bucket
    with proxying(port) as proxy:
        for name, value in environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield folder, proxy


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("s3://b", ("s3", "b", "", {})),
        ("s3a://b/day=1/x%20y.parquet", ("s3", "b", "day=1/x%20y.parquet", {})),
        ("s3:/b/part-?.parquet", ("s3", "b", "part-?.parquet", {})),
        ("s3://b/a/*?region=eu-west-1&scheme=http", ("s3", "b", "a/*", {"region": "eu-west-1", "scheme": "http"})),
        ("s3://b?endpoint_override=http://h:1/", ("s3", "b", "", {"endpoint_override": "http://h:1/"})),
        ("abfs://c@account.dfs.core.windows.net/k", ("abfs", "c@account.dfs.core.windows.net", "k", {})),
        ("gcs://b/k?anonymous=true", ("gs", "b", "k", {"anonymous": "true"})),
        ("hdfs://name:9000/k?user=me", ("hdfs", "name:9000", "k", {"user": "me"})),
    ],
)
def test_an_address_has_its_parts_and_joins_with_names(place, parts):
    assert parse(place) == parts
    file = join(place, "x/y.parquet")
    assert name_below(file, place) == "x/y.parquet"
    assert parse(file)[3] == parts[3]
    assert is_remote(place)
    assert not any(map(is_remote, ("a/s3", "s3", "/s3:/x", "http://h/x", "folder/s3://b")))


@pytest.mark.parametrize(
    "place",
    [
        f"s3://key:{SECRET}@b/log", f"s3://{SECRET}@b/log", f"s3:/key:{SECRET}@b/log",
        f"s3://b/log?access_key=K&secret_key={SECRET}", f"s3://b/log?X-Amz-Signature={SECRET}",
        f"gs://b/log?access_token={SECRET}", f"abfs://c:{SECRET}@account.dfs.core.windows.net/log",
        f"abfs://c@account.dfs.core.windows.net/log?sv=1&sig={SECRET}", f"hdfs://me:{SECRET}@host/log",
    ],
)  # fmt: skip
def test_keys_in_an_address_are_refused_and_not_shown(place):
    for refuse in (parse, lambda place: refuse_keys("data.root", place), stores.file_system, stores.stamp_of):
        with pytest.raises(ValueError, match="no keys; ") as caught:
            refuse(place)
        assert SECRET not in str(caught.value)
        assert "key" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "path"),
    [("abfs://c@account.dfs.core.windows.net/k/x", "c/k/x"),
     ("abfs://account@127.0.0.1:10000/c/k/x?enable_tls=false", "c/k/x")],
    ids=["service", "emulator"],
)  # fmt: skip
def test_an_account_key_of_azure_comes_from_the_environment(monkeypatch, place, path):
    made = []
    monkeypatch.setattr(stores.pafs, "AzureFileSystem", lambda **options: made.append(options))
    # A new one each time, since a file system is made once for a key.
    key = token_hex()
    monkeypatch.setenv("AZURE_STORAGE_KEY", key)
    assert stores.file_system(place)[1] == path
    assert (made[0]["account_name"], made[0]["account_key"]) == ("account", key)
    is_emulator = "127" in place
    assert made[0]["blob_storage_scheme"] == ("http" if is_emulator else "https")
    assert made[0].get("blob_storage_authority") == ("127.0.0.1:10000" if is_emulator else None)


def test_files_are_listed_read_and_stamped(store):
    folder, _ = store
    names = {"list/a.bin", "list/day=1 %2F/b.bin", "list/_x/c.bin"}
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(CONTENT)
    for place in ("s3://b/list", "s3://b/list/?region=us-east-1"):
        found = list(stores.files_below(place))
        assert {f"list/{name_below(one, place)}" for one in found} == names
        for one in found:
            with stores.open_to_read(one) as file:
                stamp = stores.stamp_of(one, file)
                assert file.read_at(1000, 777) == CONTENT[777:1777]
            assert stamp == stores.stamp_of(one)
            assert stamp.size == len(CONTENT)
    before = stores.stamp_of("s3://b/list/a.bin")
    (folder / "list/a.bin").write_bytes(CONTENT[::-1])
    time.sleep(3 * CACHE_SECONDS)
    after = stores.stamp_of("s3://b/list/a.bin")
    assert (after.size, after.version) == (before.size, after.version) != (before.size, before.version)
    with pytest.raises(FileNotFoundError):
        stores.stamp_of("s3://b/list/none")
    assert list(stores.files_below("s3://b/none")) == []


@pytest.mark.parametrize("fault", ["503", "cut", "late cut", "stall"])
def test_what_fails_for_a_moment_is_tried_again_in_sight(store, capsys, monkeypatch, fault):
    folder, proxy = store
    if fault == "stall":
        monkeypatch.setattr(stores, "REQUEST_SECONDS", 1)
    (folder / "x.bin").write_bytes(CONTENT)
    time.sleep(3 * CACHE_SECONDS)
    with stores.open_to_read("s3://b/x.bin") as file:
        # curl itself repeats a request whose connection, used before, ends without an answer.
        last = len(proxy.requests) + (2 if fault == "cut" else 1)
        proxy.fault = lambda number, method, path: fault if number <= last else None
        assert stores.retried("read it", "s3://b/x.bin", file.readall) == CONTENT
        said = capsys.readouterr().err
        assert re.fullmatch(r"s3://b/x\.bin: could not read it, try 1 of 3 \(.+\); trying again in 0 s\n", said)
        proxy.fault = lambda number, method, path: fault
        with pytest.raises(OSError, match=r"s3://b/x\.bin: could not read it \(.+\); tried 3 times; check the netw"):
            stores.retried("read it", "s3://b/x.bin", lambda: file.read_at(9, 0))
        proxy.fault = lambda number, method, path: None
    assert capsys.readouterr().err.count("\n") == 2


def test_a_key_that_is_wrong_is_refused_at_once(store, monkeypatch, capsys):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET[::-1])
    with pytest.raises(OSError, match="correct the address, or the credentials and the region") as caught:
        list(stores.files_below("s3://b/list?scheme=http"))
    assert capsys.readouterr().err == ""
    assert SECRET[::-1] not in str(caught.value)
