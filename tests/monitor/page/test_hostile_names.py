"""Names of users are text in a report, whatever they hold, and no report asks the network for anything."""

from html.parser import HTMLParser

from support.faults.hostile_names import NAMES, write_hostile

from pipeline.monitor.page.page import write_report


class Markup(HTMLParser):
    """Tags and attributes of a document, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_data(self, data):
        self.text += data


def test_a_report_shows_names_as_text_and_asks_for_nothing(tmp_path):
    markup = Markup(write_report(write_hostile(tmp_path)).read_bytes().decode())
    assert not markup.tags & {"a", "img", "script", "iframe", "object", "form", "use", "image", "foreignobject"}
    assert {tag: value for tag, name, value in markup.attributes if name in ("src", "href")} == {"link": "data:,"}
    assert not [name for _, name, _ in markup.attributes if name.startswith("on") or name == "srcdoc"]
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'") in (
        markup.attributes
    )
    assert "url(" not in markup.text
    for name in NAMES:
        assert markup.text.count(name) >= 5, "run, device, message, label, setting"
