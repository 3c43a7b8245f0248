"""An error site keeps its key when lines move and loses it with its words; the page of messages is read back."""

import ast

import error_page
from error_sites import sites

CODE = """
def check(value):
    if value < 0:
        raise ValueError(f"{value} is too small; give at least {0}")
    raise {kind}(f"{value} is {'too' if value else 'quite'} large")
"""


def keys_of(code):
    return list(sites(ast.parse(code), "pipeline.storage.log"))


def test_a_key_stays_when_lines_move_and_changes_with_the_words():
    code = CODE.replace("{kind}", "OSError")
    small, large = keys_of(code)
    assert small.startswith("storage.log:check ")
    assert keys_of("import os\n\n" + code.replace("value", "number")) == [small, large]
    for words in ("give at least", "quite"):
        (changed,) = {*keys_of(code.replace(words, "at most"))} - {small, large}
        assert changed.startswith("storage.log:check ")


def test_equal_messages_of_a_function_are_sites_of_their_own():
    assert len({*keys_of("def f():\n    if g():\n        raise OSError('full')\n    raise OSError('full')\n")}) == 2


def test_mistakes_of_ours_and_errors_passed_on_are_no_sites():
    assert len(keys_of(CODE.replace("{kind}", "AssertionError"))) == 1
    assert keys_of("try:\n    f()\nexcept OSError as error:\n    raise ValueError(str(error)) from error\n") == []
    assert keys_of("raise self._error\n") == []


def test_a_message_is_shown_without_what_differs_between_machines(tmp_path):
    said = f"{tmp_path}/run/table.zarr: gone\n  from 127.0.0.1:4711, \x00 of process 17"
    assert error_page.shown(said) == "FOLDER/run/table.zarr: gone / from HOST:PORT, \\x00 of process 4321"
    assert len(error_page.shown("long " * 1000)) < 500


def test_the_page_is_read_back_as_it_was_written(monkeypatch):
    modules = ("workflow", "models.mlp", "data.files", "prepare.text", "serving.http.app", "serving.rows", "unheard.of")
    keys = [f"{module}:check {n:06}" for module in modules for n in range(20)]
    monkeypatch.setattr(error_page, "all_sites", lambda: keys)
    texts = {key: f"message `{n // 2}` {'of many words ' * (n % 40)}".strip() for n, key in enumerate(keys)}
    found = {key: text for text, of_text in error_page.read(error_page.write(texts)) for key in of_text}
    assert found == texts
