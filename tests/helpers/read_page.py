"""Taking a written report apart."""

from __future__ import annotations

import inspect
from html.parser import HTMLParser
from typing import Any

from medfl.plugins import load_plugins
from medfl_report.section import render_template

VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """A page taken apart: tables by the label of their region, text by section, tags; refuses unbalanced tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections = {"": ""}
        self._open: list[str] = []
        self._section, self._label = "", ""
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = attributes["id"]
            self.sections[self._section] = ""
        if "scroll" in attributes.get("class", "").split():
            self._label = attributes["aria-label"]
            self.tables[self._label] = []
        if tag == "tr":
            self.tables[self._label].append([])
        if tag == "br":
            self.handle_data(" ")
        if tag in ("td", "th"):
            self.tables[self._label][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._section = "" if tag == "section" else self._section

    def handle_data(self, data):
        self.sections[self._section] += data
        if {"td", "th"} & set(self._open):
            self.tables[self._label][-1][-1] += data


def words(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


def render_section(name: str, content: Any) -> str:
    """Return the page that a section's template makes of its content."""
    kind = load_plugins().report_section(name)
    return str(render_template(inspect.getfile(kind), kind.template, **{name: content}))


def section(name: str, content: Any) -> Page:
    """A section alone, which is written faster than a whole page; empty for None."""
    html = "" if content is None else render_section(name, content)
    return Page(f'<section id="{name}">{html}</section>')
