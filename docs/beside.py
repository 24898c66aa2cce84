"""For the site: pages beside ``docs/`` become part of it, and links to files of the project lead somewhere.

The pages of ``docs/`` link to files of the project, as a reader of the repository wants it: to its README, to pages of
bundles and studies, to source files. A site has only what is in ``docs/``. So each linked file becomes a page below
``beside/``: Markdown as it is, anything else as text. All links are bent accordingly. Tutorials become notebooks, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BESIDE = "beside/"
"""Where on the site the pages from outside ``docs/`` are."""

LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")
"""The path in a Markdown link to a file: no address on the web, no part of the same page."""

FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)
"""Code, in which there are no links."""

SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme would fetch so that a page opened as a file can be searched; the site brings its own instead."""

OWN_SHIM = "assets/file_search.js"

LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
"""What a browser fetches from elsewhere when it shows a page."""

KERNEL = "---\njupyter:\n  kernelspec: {display_name: Python 3, language: python, name: python3}\n---\n\n"
"""In front of a tutorial that becomes a notebook: Python runs it; blocks of the shell begin with a line of magic."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}

# ---- what can be checked without a site


def linked(page: Path) -> Iterator[Path]:
    """Yield the files that a page links to; for a folder, its README.md.

    Args:
        page: A Markdown file, absolute.

    Yields:
        Absolute paths, which need not exist.
    """
    for number, part in enumerate(FENCED.split(page.read_text(encoding="utf-8"))):
        if number % 2 == 0:
            for target in LINK.findall(part):
                yield _target(page, target)


def outside(pages: Iterable[Path]) -> list[Path]:
    """Files of the project outside ``docs/`` that these pages link to, and those that they link to in turn."""
    waiting, reached = list(pages), set()
    while waiting:
        for path in linked(waiting.pop()):
            if path not in reached and not path.is_relative_to(DOCS) and path.is_relative_to(ROOT):
                reached.add(path)
                if path.suffix == ".md":
                    waiting.append(path)
    return sorted(reached)


def in_nav(nav: Any) -> list[str]:
    """All pages that a ``nav`` names, in its order; titles are left out."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in in_nav(part)]


def spelt_out(nav: list[Any]) -> list[Any]:
    """Return a ``nav`` with pages in place of patterns.

    ``folder/*.md`` are the pages of a folder of ``docs/`` but its README.md, ``beside/*`` all pages from outside
    ``docs/`` that are named nowhere else.
    """
    named = set(in_nav(nav))

    def fill(part: Any) -> list[Any]:
        if isinstance(part, dict):
            return [{title: inner if isinstance(inner, str) else fill_all(inner) for title, inner in part.items()}]
        if part == BESIDE + "*":
            return [place(path) for path in outside(DOCS.rglob("*.md")) if place(path) not in named]
        if "*" in part:
            return [place(path) for path in sorted(DOCS.glob(part)) if path.name != "README.md"]
        return [part]

    def fill_all(parts: list[Any]) -> list[Any]:
        return [entry for part in parts for entry in fill(part)]

    return fill_all(nav)


def place(path: Path) -> str:
    """Where on the site the source of a page lies, for a file of the project."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return BESIDE + path.relative_to(ROOT).as_posix() + ("" if path.suffix == ".md" else ".md")


def bent(markdown: str, page: Path) -> str:
    """Return a page's text with links to files rewritten for the site.

    Args:
        markdown: The text.
        page: Where it is in the project, absolute.
    """
    folder = os.path.dirname(place(page))

    def bend(match: re.Match[str]) -> str:
        return os.path.relpath(place(_target(page, match[1])), folder or ".")

    parts = FENCED.split(markdown)
    return "".join(part if number % 2 else LINK.sub(bend, part) for number, part in enumerate(parts))


def _target(page: Path, link: str) -> Path:
    path = Path(os.path.normpath(page.parent / link))
    return path / "README.md" if path.is_dir() else path


# ---- what mkdocs calls


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages in place of patterns in the navigation."""
    config.nav = spelt_out(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs/``, and a notebook for each tutorial."""
    import jupytext
    from mkdocs.structure.files import File

    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    for path in outside(pages):
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".md":
            name = path.relative_to(ROOT).as_posix()
            text = f"# {name}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{text}```\n"
        files.append(File.generated(config, place(path), content=text))
    for path in pages:
        if path.parent.name == "tutorials" and path.name != "README.md":
            notebook = jupytext.writes(jupytext.reads(KERNEL + path.read_text(encoding="utf-8"), fmt="md"), fmt="ipynb")
            files.append(File.generated(config, place(path.with_suffix(".ipynb")), content=notebook))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bend the links of a page."""
    uri = page.file.src_uri
    if not uri.startswith(BESIDE):
        path = DOCS / uri
    elif (ROOT / uri.removeprefix(BESIDE)).is_file():
        path = ROOT / uri.removeprefix(BESIDE)
    else:
        return markdown  # a source file, shown as text
    markdown = bent(markdown, path)
    if path.parent.name == "tutorials" and path.name != "README.md":
        markdown += f"\n\n[This page as a notebook]({path.stem}.ipynb)\n"
    return markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Put the site's own script in place of the only address elsewhere that the theme loads."""
    return output.replace(SHIM, os.path.relpath(OWN_SHIM, os.path.dirname(page.file.dest_uri) or "."))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Rewrite the page of addresses that don't exist in the same way."""
    return output_content.replace(SHIM, f"/{OWN_SHIM}")


def on_post_build(config: MkDocsConfig) -> None:
    """See that no page loads anything from elsewhere.

    Raises:
        PluginError: If one does.
    """
    from mkdocs.exceptions import PluginError

    for path in sorted(Path(config.site_dir).rglob("*.html")):
        loads = LOADED.search(path.read_text(encoding="utf-8"))
        if loads:
            raise PluginError(f"{path.relative_to(config.site_dir)} loads {loads[1]}; nothing may come from elsewhere")
