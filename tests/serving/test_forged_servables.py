"""Whatever a servable's manifest says, opening it ends in the scores or in one message, and reads nothing else."""

import copy
import json
import random
import re
import resource
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.depth import some
from support.faults.forging import Forger
from support.runs.evaluated_runs import bits_of
from test_servable import export, refuse

import pipeline
from pipeline import verify
from pipeline.kernels.read_pages import set_page_tags
from pipeline.serving import dense_files
from pipeline.serving.servable import FEATURES_FILE, FENCES_FILE, ROWS_FOLDER, SERVABLE_MANIFEST, ServableManifest
from pipeline.storage.files import Damaged, checksum
from pipeline.storage.layout import MAX_WIDTH, RowLayout

OUTSIDE = b"not of the servable"
HUGE = 1 << 40
MEMORY = 1 << 30
"""Bytes of addresses that an opening may take: far fewer than any forged size asks for."""


@pytest.fixture(scope="module")
def servable(trained, tmp_path_factory):
    """For torch alone, whose arguments the manifest has."""
    out = tmp_path_factory.mktemp("servables") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_files, "exported", refuse)
        assert export(trained, out) == 0
    return out


@pytest.fixture
def forged(servable, tmp_path):
    """A copy next to a file that does not belong to it."""
    (tmp_path / "outside").write_bytes(OUTSIDE)
    return Path(shutil.copytree(servable, tmp_path / "forged"))


class Opened:
    """Paths that this process opens within a block."""

    def __init__(self):
        self.paths = None
        # An audit hook cannot be removed; it does nothing outside of a block.
        sys.addaudithook(self._hear)

    def _hear(self, event, args):
        if self.paths is not None and event == "open" and isinstance(args[0], str | bytes | Path):
            self.paths.append(str(args[0]))

    @contextmanager
    def heard(self):
        self.paths = []
        try:
            yield self.paths
        finally:
            self.paths = None


OPENED = Opened()


@contextmanager
def little_memory():
    """A larger allocation is a MemoryError, even of memory that nobody touches."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def manifest_of(folder):
    return json.loads((folder / SERVABLE_MANIFEST).read_bytes().partition(b"\n")[2])


def write_manifest(folder, text):
    """Write a manifest with the right checksum, as the package writes it if it is valid."""
    try:
        content = ServableManifest.model_validate_json(text).content
    except ValueError:
        content = f'{{"checksum": "{checksum(text.encode())}"}}\n{text}\n'.encode(errors="surrogatepass")
    (folder / SERVABLE_MANIFEST).write_bytes(content)


def set_at(path, *value):
    """A change of one field, or, without a value, its removal."""

    def change(manifest):
        *names, last = path.split("/")
        for name in names:
            manifest = manifest[name]
        manifest.pop(last, None)
        if value:
            (manifest[last],) = value

    return change


def name_a_file(name):
    return lambda manifest: manifest["files"].update({name: checksum(OUTSIDE)})


def wide_rows(manifest):
    manifest["row"] = RowLayout(MAX_WIDTH, True).describe()


CHANGES = {
    "a file above": (name_a_file("../outside"), r"files\.\.\./outside"),
    "an absolute file": (name_a_file("/etc/passwd"), r"files\./etc/passwd"),
    "a file in a folder": (name_a_file("rows/0000"), "files.rows/0000"),
    "no features": (set_at(f"files/{FEATURES_FILE}"), "files: it does not name features.json"),
    "fewer rows than none": (set_at("num_rows", -1), "num_rows"),
    "fewer rows than pages": (set_at("num_rows", 0), "num_rows: it is 0, and 2 pages have 2 to "),
    "more rows than pages hold": (set_at("num_rows", HUGE), "num_rows: it is 1,099,511,627,776, and 2 pages"),
    "no commit": (set_at("commit", -1), "commit"),
    "steps back": (set_at("step", -1), "step"),
    "empty pages": (set_at("page_bytes", 0), "page_bytes: it is 0"),
    "an unknown precision": (set_at("precision", "float64"), "precision"),
    "a part that is a path": (set_at("parts", ["../outside"]), r"parts\.0"),
    "no layout": (set_at("row", {}), "row"),
    "wide rows": (wide_rows, "row: it is .*embedding_dim=1048576"),
    "another rule's rows": (set_at("row", RowLayout(3, True, "adagrad").describe()), "row: it is .*adagrad"),
    "no workflow": (set_at("workflow", {}), "workflow"),
    "a huge batch": (set_at("workflow/schedule/batch_size", HUGE), "workflow: .*schedule.batch_size"),
    "another seed": (set_at("workflow/seed", 8), "workflow: its seed"),
    "other numbers": (set_at("workflow/data/numbers"), "workflow: its numbers"),
    "another width": (set_at("workflow/model/embedding_dim", HUGE), "workflow: its embedding_dim"),
    "a huge layer": (set_at("workflow/model/args", {"hidden": [HUGE]}), "workflow: its model is not that of model.saf"),
    "an unknown argument": (set_at("workflow/model/args", {"wings": 2}), "workflow: its model .* model.args"),
    "a share above all": (set_at("negatives", 2.0), "negatives"),
    "a field more": (set_at("more", 1), "more"),
    "a format to come": (set_at("format", 2), "format"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_forged_manifest_is_refused_with_its_field(forged, what, capsys):
    change, said = CHANGES[what]
    manifest = manifest_of(forged)
    change(manifest)
    write_manifest(forged, json.dumps(manifest))
    with (
        little_memory(), OPENED.heard() as paths,
        pytest.raises((ValueError, OSError), match=f"{re.escape(str(forged / SERVABLE_MANIFEST))}: .*{said}"),
    ):  # fmt: skip
        pipeline.open_servable(forged, memory="8 MiB")
    with little_memory(), OPENED.heard() as again:
        assert verify.main([str(forged)]) == 1
    assert re.search(said, capsys.readouterr().out)
    near = [path for path in paths + again if path.startswith((str(forged.parent), "/etc/passwd"))]
    assert near
    assert all(path.startswith(f"{forged}/") for path in near), near


def swap_keys(words):
    words[[2, 3]] = words[[3, 2]]


def fill_free_room(words):
    words[511] = 7


@pytest.mark.parametrize(
    ("change", "said"),
    [(swap_keys, "its keys do not ascend"), (fill_free_room, "what its rows leave free is not zero")],
)
def test_a_page_of_wrong_rows_under_a_right_tag_is_found(forged, change, said, capsys):
    """Checksums do not show that somebody wrote a page in another way than an export."""
    part = forged / ROWS_FOLDER / "0000"
    words = np.frombuffer(bytearray(part.read_bytes()), np.uint64)
    change(words)
    pages = words.view(np.uint32).reshape(-1, 1024)
    set_page_tags(pages, np.arange(len(pages), dtype=np.uint32))
    part.write_bytes(words.tobytes())
    manifest = manifest_of(forged)
    manifest["parts"] = [checksum(part.read_bytes())]
    write_manifest(forged, json.dumps(manifest))
    assert verify.main([str(forged)]) == 1
    assert f"page 0 is damaged: {said}" in capsys.readouterr().out


@pytest.mark.parametrize(("parts", "said"), [(0, "its files have 0 bytes"), (2, "rows/0001")])
def test_more_or_fewer_parts_than_there_are_are_refused(forged, parts, said):
    manifest = manifest_of(forged)
    manifest["parts"] = ["0" * 16] * parts
    write_manifest(forged, json.dumps(manifest))
    with pytest.raises(OSError, match=f"{forged / ROWS_FOLDER}.*|.*{said}"):
        pipeline.open_servable(forged)
    assert verify.main([str(forged)]) == 1


@pytest.mark.prove
def test_a_large_batch_takes_no_memory_before_its_examples_come(trained, forged):
    manifest = manifest_of(forged)
    manifest["workflow"]["schedule"]["batch_size"] = 1 << 31
    write_manifest(forged, json.dumps(manifest))
    with little_memory(), pipeline.open_servable(forged, memory="8 MiB") as opened:
        found = opened.predict(trained.test).column("click.logit").to_numpy()
    assert np.abs(found - trained.logits_NT[:, 0]).max() <= 1e-5


@pytest.mark.parametrize("count", some((50, 400), 50))
def test_any_changed_manifest_ends_in_scores_or_one_message(trained, forged, count, capsys):
    whole, ends, unsaid = manifest_of(forged), {"scored": 0, "refused": 0}, []
    for number in range(count):
        forger = Forger(forged, random.Random(f"manifest {number}"))
        change, text = forger.values(copy.deepcopy(whole), {"files": 0.3, "workflow": 0.6})
        write_manifest(forged, text)
        where = f"case {number}: {change}"
        try:
            with little_memory(), pipeline.open_servable(forged, memory="8 MiB") as opened:
                scores = opened.predict(trained.test)
        except (ValueError, OSError) as error:
            unsaid += [] if str(forged) in str(error) or "--workflow" in str(error) else [f"{where}: {error}"]
            ends["refused"] += 1
        except BaseException as error:
            raise AssertionError(where) from error
        else:
            assert np.isfinite(bits_of(scores).view(np.float32)).all(), where
            ends["scored"] += 1
        assert verify.main([str(forged)]) in (0, 1, 2), where
    assert not unsaid
    assert min(ends.values()) > 0, ends
    assert (forged.parent / "outside").read_bytes() == OUTSIDE


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [(FEATURES_FILE, b"{", "content: Invalid JSON"), (FENCES_FILE, b"123", "3 bytes are not a whole number of fences")],
)
def test_a_bad_file_with_a_right_checksum_is_refused(forged, name, content, said):
    manifest = manifest_of(forged)
    manifest["files"][name] = checksum(content)
    (forged / name).write_bytes(content)
    write_manifest(forged, json.dumps(manifest))
    with pytest.raises(Damaged, match=f"{re.escape(str(forged / name))}: {said}.*; export the servable again"):
        pipeline.open_servable(forged)
