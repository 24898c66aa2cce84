"""Hooks of mkdocs that make the pages of ``docs/`` and the files they link to one website.

The pages link to files outside ``docs/``: the project's README, pages of bundles and studies, source files. A site
contains only ``docs/``, so each linked file becomes a page below ``project/``: Markdown unchanged, other files as code.
Links are rewritten accordingly. Each tutorial is also written as a notebook.
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
PROJECT_PAGES = "project/"
"""Folder of the site for the pages from outside ``docs/``."""

LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")
"""Path in a Markdown link to a file. Web addresses and links within the page do not match."""

CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+(?:\n(?!\s*\n)[^`\n]+)*`)", re.M | re.S)
"""Code blocks and inline code, in which links are not rewritten. Inline code may continue on the next line."""

CODE_ELEMENT = re.compile(r"(<code\b[^>]*>)(.*?)(?=</code>)", re.S)
"""Code in the HTML of a page: its opening tag and its content."""

TAG_OR_WORD = re.compile(r"(<[^>]*>)|([^\s<]*[-/][^\s<]*)")
"""Tag, or word that a browser may break at a hyphen or a slash."""

MAX_UNBROKEN = 40
"""Maximum number of characters of a word that is kept on one line."""

EXTERNAL_SHIM = "https://unpkg.com/iframe-worker/shim"
"""Script that the theme loads from the web to make search work in pages opened as files."""

LOCAL_SHIM = "assets/file_search.js"
"""Script of the site that replaces `EXTERNAL_SHIM`."""

EXTERNAL_LINK = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
"""Resource that a browser would load from another host to show a page."""

NOTEBOOK_HEADER = "---\njupyter:\n  kernelspec: {display_name: Python 3, language: python, name: python3}\n---\n\n"
"""Metadata at the start of a tutorial that becomes a notebook: Python runs it."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
"""Maps each file ending to the language of a code block."""

# ---- links and navigation


def linked_files(page: Path) -> Iterator[Path]:
    """Yield the files that a page links to. A link to a folder counts as a link to its README.md.

    Args:
        page: Absolute path of a Markdown file.

    Yields:
        Absolute paths. The files may be missing.
    """
    for number, part in enumerate(CODE.split(page.read_text(encoding="utf-8"))):
        if number % 2 == 0:
            for target in LINK.findall(part):
                yield _target(page, target)


def files_outside_docs(pages: Iterable[Path]) -> list[Path]:
    """Return the project's files outside ``docs/`` that the pages link to, directly or through other such files."""
    waiting, reached = list(pages), set()
    while waiting:
        for path in linked_files(waiting.pop()):
            if path not in reached and not path.is_relative_to(DOCS) and path.is_relative_to(ROOT):
                reached.add(path)
                if path.suffix == ".md":
                    waiting.append(path)
    return sorted(reached)


def pages_in_nav(nav: Any) -> list[str]:
    """Return the pages of a navigation in order, without titles."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in_nav(part)]


def expand_patterns(nav: list[Any]) -> list[Any]:
    """Return a navigation in which patterns are replaced by pages.

    ``folder/*.md`` stands for the pages of a folder of ``docs/`` except its README.md, and ``project/*`` for all pages
    from outside ``docs/`` that the navigation does not list elsewhere.
    """
    named = set(pages_in_nav(nav))

    def fill(part: Any) -> list[Any]:
        if isinstance(part, dict):
            return [{title: inner if isinstance(inner, str) else fill_all(inner) for title, inner in part.items()}]
        if part == PROJECT_PAGES + "*":
            return [site_path(path) for path in files_outside_docs(DOCS.rglob("*.md")) if site_path(path) not in named]
        if "*" in part:
            return [site_path(path) for path in sorted(DOCS.glob(part)) if path.name != "README.md"]
        return [part]

    def fill_all(parts: list[Any]) -> list[Any]:
        return [entry for part in parts for entry in fill(part)]

    return fill_all(nav)


def site_path(path: Path) -> str:
    """Return the path on the site of the source of a project file's page."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return PROJECT_PAGES + path.relative_to(ROOT).as_posix() + ("" if path.suffix == ".md" else ".md")


def rewrite_links(markdown: str, page: Path) -> str:
    """Return a page's text with links to files rewritten for the site.

    Args:
        markdown: Text of the page.
        page: Absolute path of the page in the project.
    """
    folder = os.path.dirname(site_path(page))

    def rewrite(match: re.Match[str]) -> str:
        return os.path.relpath(site_path(_target(page, match[1])), folder or ".")

    parts = CODE.split(markdown)
    return "".join(part if number % 2 else LINK.sub(rewrite, part) for number, part in enumerate(parts))


def keep_words_whole(html: str) -> str:
    """Return a page's HTML in which words in code, such as options and paths, do not break at a hyphen or a slash.

    Args:
        html: HTML of the page's content. Its text stays the same, so that copied commands work.
    """

    def wrap(match: re.Match[str]) -> str:
        tag, word = match.groups()
        return tag or word if tag or len(word) > MAX_UNBROKEN else f'<span class="whole">{word}</span>'

    return CODE_ELEMENT.sub(lambda code: code[1] + TAG_OR_WORD.sub(wrap, code[2]), html)


def _target(page: Path, link: str) -> Path:
    path = Path(os.path.normpath(page.parent / link))
    return path / "README.md" if path.is_dir() else path


# ---- hooks that mkdocs calls


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace patterns in the navigation by pages."""
    config.nav = expand_patterns(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs/`` and a notebook for each tutorial."""
    import jupytext
    from mkdocs.structure.files import File

    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    for path in files_outside_docs(pages):
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".md":
            name = path.relative_to(ROOT).as_posix()
            text = f"# {name}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{text}```\n"
        files.append(File.generated(config, site_path(path), content=text))
    for path in pages:
        if path.parent.name == "tutorials" and path.name != "README.md":
            notebook = jupytext.writes(
                jupytext.reads(NOTEBOOK_HEADER + path.read_text(encoding="utf-8"), fmt="md"), fmt="ipynb"
            )
            files.append(File.generated(config, site_path(path.with_suffix(".ipynb")), content=notebook))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page, and link a tutorial to its notebook."""
    uri = page.file.src_uri
    if not uri.startswith(PROJECT_PAGES):
        path = DOCS / uri
    elif (ROOT / uri.removeprefix(PROJECT_PAGES)).is_file():
        path = ROOT / uri.removeprefix(PROJECT_PAGES)
    else:
        return markdown  # a source file, shown as text
    markdown = rewrite_links(markdown, path)
    if path.parent.name == "tutorials" and path.name != "README.md":
        markdown += f"\n\n[This page as a notebook]({path.stem}.ipynb)\n"
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep options and paths in code on one line."""
    return keep_words_whole(html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Replace the script that the theme loads from the web by the site's own script."""
    return output.replace(EXTERNAL_SHIM, os.path.relpath(LOCAL_SHIM, os.path.dirname(page.file.dest_uri) or "."))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Replace the script in the error page for missing addresses."""
    return output_content.replace(EXTERNAL_SHIM, f"/{LOCAL_SHIM}")


def on_post_build(config: MkDocsConfig) -> None:
    """Check that no page loads anything from another host.

    Raises:
        PluginError: If a page does.
    """
    from mkdocs.exceptions import PluginError

    for path in sorted(Path(config.site_dir).rglob("*.html")):
        loads = EXTERNAL_LINK.search(path.read_text(encoding="utf-8"))
        if loads:
            raise PluginError(f"{path.relative_to(config.site_dir)} loads {loads[1]}; expected only files of the site")
