"""Names of users are text in every document, whatever they hold, and no document asks the network for anything."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from bokeh.models import Div, Model
from support.faults.hostile_names import NAMES, RESULT, write_hostile

from pipeline.monitor.page import compare
from pipeline.monitor.page.page import page
from pipeline.monitor.page.report import write_report

TAGS = {"b", "br", "div", "h1", "h3", "i", "li", "p", "span", "table", "td", "th", "time", "tr", "ul"}


class Markup(HTMLParser):
    """Tags and attributes of a document, its text, and the text of its scripts by their ids."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts, self._script = [], [], "", {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self._script = dict(attributes).get("id") if tag == "script" else None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        self.text += data

    def handle_endtag(self, tag):
        self._script = None


def check_texts(texts):
    """No name has become a tag or an attribute, and each is there as it is."""
    found = ""
    for text in texts:
        markup = Markup(text)
        assert {*markup.tags} <= TAGS, text
        assert {name for name, _ in markup.attributes} <= {"class", "style"}, text
        found += markup.text
    for name in NAMES:
        assert name.replace("\r", "") in found.replace("\r", "")


def check_file(path):
    text = path.read_text()
    # Bokeh's own scripts, which are long.
    markup = Markup(re.sub(r'<script type="text/javascript">.*?</script>', "", text, flags=re.DOTALL))
    # What begins a comment within a script hides the rest of the document from a browser.
    assert not re.search(r"<!--\s*<script", text)
    assert "img" not in markup.tags
    assert any(str(value).startswith("default-src 'self'") for _, value in markup.attributes)
    for name, value in markup.attributes:
        assert name not in ("src", "href") or value.startswith("data:"), value
        assert not name.startswith("on")
    (models,) = (json.loads(unescape(script)) for name, script in markup.scripts.items() if name != "result")
    (document,) = models.values()
    return markup, document


def parts(value, name):
    """Values of all entries of this name in a tree of JSON."""
    if isinstance(value, dict):
        yield from [value[name]] if name in value else []
        for inner in value.values():
            yield from parts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from parts(inner, name)


@pytest.fixture
def folder(tmp_path):
    return write_hostile(tmp_path)


def test_the_page_of_a_run_shows_names_as_text(folder):
    document = page(folder)
    divs = list(document.select({"type": Div}))
    assert len(divs) >= 15
    assert all(div.disable_math for div in divs)
    check_texts(div.text for div in divs)
    for model in document.select({"type": Model}):
        for value in model.properties_with_values().values():
            assert not (isinstance(value, str) and "$$" in value) or isinstance(model, Div)


def test_a_report_shows_names_as_text_and_asks_for_nothing(folder):
    markup, document = check_file(write_report(folder))
    assert json.loads(markup.scripts["result"]) == RESULT
    check_texts(text for text in parts(document, "text") if isinstance(text, str) and "<" in text)


def test_a_comparison_shows_names_as_text_and_asks_for_nothing(tmp_path, folder):
    out = tmp_path / "compare.html"
    assert compare.main([str(folder), str(write_hostile(tmp_path, 1)), "--out", str(out)]) == 0
    _, document = check_file(out)
    texts = [text for text in parts(document, "text") if isinstance(text, str) and "<" in text]
    assert any("onerror=alert(6)" in text for text in texts)
    for text in texts:
        assert {*Markup(text).tags} <= TAGS
    tooltips = [tips for tips in parts(document, "tooltips") if tips]
    assert tooltips
    # Bokeh takes them for HTML, unlike the values that they name.
    assert "onerror" not in json.dumps(tooltips)
