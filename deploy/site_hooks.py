"""Fits our documents into the site: lists of pages, the OpenAPI document, no link into the code."""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from deploy.docs_reference import openapi

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_LISTS = {"DECISIONS": "decisions", "PROBLEMS": "reference/problems"}
_OPENAPI = "openapi.json"  # too long for the documents: written into the site alone
_TOLD_AT = "reference/http.md"


def on_config(config: Any) -> Any:
    """Put the pages of folders where the navigation has a placeholder."""
    config["nav"] = _filled(config["nav"], Path(config["docs_dir"]))
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the document that a gateway serves to machines."""
    files.append(File.generated(config, _OPENAPI, content=json.dumps(openapi())))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links that leave the documents lead nowhere on the site: their text stays."""
    del config, files
    fitted = without_links_outside(markdown, page.file.src_uri)
    if page.file.src_uri == _TOLD_AT:
        head, line, rest = fitted.partition("\n## ")
        fitted = f"{head}\nHere it is too: [{_OPENAPI}](../{_OPENAPI}).\n{line}{rest}"
    return fitted


def without_links_outside(markdown: str, path: str) -> str:
    """The page without links to files beside the documents.

    Args:
        path: Of the page, below the folder of documents.
    """

    def fitted(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        if target.startswith(".."):
            return match[1]
        if not posixpath.splitext(target)[1]:  # a folder: its first page
            return f"[{match[1]}]({match[2].rstrip('/')}/README.md{match[3] or ''})"
        return match[0]

    return _LINK.sub(fitted, markdown)


def _filled(nav: Any, docs: Path) -> Any:
    if isinstance(nav, list):
        return [_filled(item, docs) for item in nav]
    if isinstance(nav, dict):
        return {title: _filled(item, docs) for title, item in nav.items()}
    return _pages(docs, _LISTS[nav]) if nav in _LISTS else nav


def _pages(docs: Path, folder: str) -> list[str]:
    names = sorted(path.name for path in (docs / folder).glob("*.md") if path.name != "README.md")
    return [f"{folder}/{name}" for name in ("README.md", *names)]
