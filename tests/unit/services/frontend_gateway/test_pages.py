"""The pages' files: what is sent, how it is packed, and where the libraries among them are from."""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.context_assembly.core.invariants import INVARIANTS
from services.frontend_gateway.http.ui import PAGE_POLICY
from services.ingestion.core.turn import REASONS
from tests.browser.pictures import SIGNATURE, smaller
from tests.rig.gateway import GatewayRig, gateway_rig

STATIC = Path(__file__).parents[4] / "services" / "frontend_gateway" / "static"
VENDORED = STATIC / "vendor"
TEST_VENDORED = Path(__file__).parents[3] / "browser" / "vendor"
MOST_BYTES = 100_000
"""Of a page with all its files but pictures, before they are packed."""

TEXTS = sorted(path for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".html"))


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


@pytest.mark.parametrize("folder", [VENDORED, TEST_VENDORED], ids=["pages", "tests"])
def test_every_vendored_file_is_the_one_that_the_manifest_names(folder: Path) -> None:
    libraries = json.loads((folder / "manifest.json").read_text())["libraries"]
    named = {one["file"]: one["sha256"] for library in libraries for one in library["files"]}
    found = {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert found == set(named)
    for name, sha256 in named.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256, name
    for library in libraries:
        assert library["version"] in library["source"]
        licences = [name for name in named if name == f"{library['name']}.LICENSE.txt"]
        assert licences, f"{library['name']} has no licence beside it"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_file_of_ours_makes_markup_or_code_from_text(path: Path) -> None:
    text = path.read_text()
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
    )
    assert not re.search(forbidden, text)
    if path.suffix == ".html":
        assert not re.search(r"\son[a-z]+=|\sstyle=|<style|<script(?![^>]*\ssrc=)|https?://", text)


def test_every_reason_of_an_end_has_words_on_the_page() -> None:
    words = (STATIC / "words.js").read_text()
    for state, reasons in REASONS.items():
        for reason in reasons:
            assert f"\n  {reason}: " in words, f"{state.value}: {reason}"


def test_every_rule_of_plans_has_words_on_the_inspector() -> None:
    words = (STATIC / "turn_words.js").read_text()
    assert [name for name in INVARIANTS if f"\n  {name}: " not in words] == []


def modules_of(page: str) -> set[str]:
    """Every module that a page runs, by name."""
    wanted, found = {f"{page}.js"}, set[str]()
    while wanted:
        name = wanted.pop()
        found.add(name)
        imported = re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text())
        wanted |= set(imported) - found
    return found


@pytest.mark.parametrize("page", ["chat", "turn", "ops"])
def test_every_module_of_a_page_is_loaded_at_once(page: str) -> None:
    html = (STATIC / f"{page}.html").read_text()
    for name in modules_of(page) - {f"{page}.js"}:
        assert f'<link rel="modulepreload" href="/ui/{name}">' in html


@pytest.mark.parametrize("page", ["turn", "ops"])
def test_a_page_weighs_less_than_a_picture(page: str) -> None:
    files = modules_of(page) | {f"{page}.html", f"{page}.css", "tokens.css", "theme.js"}
    assert sum((STATIC / name).stat().st_size for name in files) < MOST_BYTES


def test_a_picture_keeps_a_colour_that_few_dots_of_it_have() -> None:
    """The documents' pictures have at most 256 colours; here one red dot stands among 400 greys."""
    greys = [bytes([n % 200] * 2 + [n // 200]) for n in range(400)]
    red = b"\xb3\x26\x1e"
    picture = png([*greys * 3, red])
    made = smaller(picture)
    assert len(made) < len(picture)
    at = made.index(b"PLTE") + 4
    assert red in {made[at + n : at + n + 3] for n in range(0, 3 * 256, 3)}


def png(row: list[bytes]) -> bytes:
    """A picture of one row."""
    parts = (
        (b"IHDR", len(row).to_bytes(4, "big") + b"\0\0\0\x01\x08\x02\0\0\0"),
        (b"IDAT", zlib.compress(b"\0" + b"".join(row), 0)),
        (b"IEND", b""),
    )
    return SIGNATURE + b"".join(
        len(body).to_bytes(4, "big") + name + body + bytes(4) for name, body in parts
    )


def test_the_policy_allows_this_server_and_nothing_else() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in PAGE_POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("script-src", "style-src", "img-src", "connect-src", "form-action"):
        assert rules[name] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == "'none'"


async def test_a_file_is_packed_for_whoever_takes_it(rig: GatewayRig) -> None:
    plain = await rig.client.get("/ui/chat.js", headers={"Accept-Encoding": "identity"})
    packed = await rig.client.get("/ui/chat.js", headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == (STATIC / "chat.js").read_bytes()
    assert int(packed.headers["content-length"]) < len(gzip.compress(plain.content)) + 50
    for answer in (plain, packed):
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-security-policy"] == PAGE_POLICY
    assert packed.headers["etag"] == plain.headers["etag"]


async def test_a_file_that_did_not_change_is_not_sent_again(rig: GatewayRig) -> None:
    first = await rig.client.get("/ui/vendor/marked.esm.js")
    again = await rig.client.get(
        "/ui/vendor/marked.esm.js", headers={"If-None-Match": first.headers["etag"]}
    )
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize(
    "path", ["nothing", "vendor/nothing.js", "ops/nothing/at/all", "chat.html", "%00"]
)
async def test_an_unknown_address_is_a_page_for_people_and_a_problem_for_programs(
    rig: GatewayRig, path: str
) -> None:
    page = await rig.client.get(f"/ui/{path}", headers={"Accept": "text/html,*/*"})
    told = await rig.client.get(f"/ui/{path}", headers={"Accept": "application/json"})
    assert (page.status_code, told.status_code) == (404, 404)
    assert told.headers["content-type"] == "application/problem+json"
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-store"
    assert b"There is nothing here" in page.content
