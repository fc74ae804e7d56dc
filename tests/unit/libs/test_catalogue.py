from pathlib import Path

import pytest

from libs.catalogue import DEFAULT_PATH, Catalogue, CatalogueInvalid, SectionCard
from libs.tokens import CONSERVATIVE
from schemas.prompt_plan import SECTIONS

SMALL = """
default = "one"
[unlisted]
window = 1000
max_output = 100
tokenizer = "o200k_base"
per_message_overhead = 8
reply_overhead = 32
safety_factor = 1.5
[models.one]
window = 4000
max_output = 500
tokenizer = "cl100k_base"
per_message_overhead = 4
reply_overhead = 3
[models.one.prices]
input_usd = 2.5
output_usd = 10.0
"""


def catalogue_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_catalogue_that_ships_holds_the_models_of_the_local_stack_and_of_the_tests() -> None:
    catalogue = Catalogue.load()

    demo, scripted = catalogue.model("smollm2-135m-instruct"), catalogue.model("scripted")
    assert catalogue.default == demo
    assert (demo.window, demo.max_output, demo.safety_factor) == (8192, 512, 1.5)
    assert (scripted.window, scripted.max_output, scripted.safety_factor) == (8192, 1024, 1.0)
    assert scripted.provider == "scripted"


def test_every_card_that_ships_leaves_room_for_a_prompt() -> None:
    catalogue = Catalogue.load(DEFAULT_PATH)

    assert len(catalogue.names) > 3
    for card in map(catalogue.model, catalogue.names):
        assert (card.window - card.max_output) / card.safety_factor > card.reply_overhead


def test_every_card_without_its_own_tokenizer_counts_by_script_and_keeps_a_margin() -> None:
    catalogue = Catalogue.load(DEFAULT_PATH)

    for name in (*catalogue.names, "a model that nobody listed"):
        card = catalogue.model(name)
        has_own = name == "scripted" or name.startswith("gpt-4")
        assert (card.tokenizer != CONSERVATIVE) == has_own, name
        assert (card.safety_factor == 1.0) == has_own, name


def test_prices_that_nobody_told_are_unknown_not_zero(tmp_path: Path) -> None:
    catalogue = Catalogue.load(catalogue_of(tmp_path, SMALL))

    assert catalogue.model("one").prices.input_usd == 2.5
    assert catalogue.model("one").prices.cached_input_usd is None
    assert catalogue.model("else").prices.output_usd is None


def test_a_model_that_is_not_listed_gets_the_conservative_card_under_its_own_name(
    tmp_path: Path,
) -> None:
    catalogue = Catalogue.load(catalogue_of(tmp_path, SMALL), default="my/own-model")

    assert catalogue.default.name == "my/own-model"
    assert catalogue.default.window == 1000
    assert catalogue.default.safety_factor == 1.5


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (('tokenizer = "cl100k_base"', 'tokenizer = "gpt2"'), "models.one.tokenizer"),
        (("window = 4000", "window = 0"), "models.one.window"),
        (("window = 4000", "windoww = 4000"), "models.one.window"),
        (("max_output = 500", "max_output = 4000"), "models.one"),
        (("safety_factor = 1.5", "safety_factor = 0.5"), "unlisted.safety_factor"),
        (('default = "one"', 'default = "two"'), "the file"),
        (("input_usd = 2.5", "input_usd = -1"), "models.one.prices.input_usd"),
    ],
)
def test_a_wrong_entry_is_named_with_its_file_and_key(
    tmp_path: Path, change: tuple[str, str], key: str
) -> None:
    path = catalogue_of(tmp_path, SMALL.replace(*change, 1))

    with pytest.raises(CatalogueInvalid) as caught:
        Catalogue.load(path)

    assert str(path) in str(caught.value)
    assert f": {key}: " in str(caught.value)


def test_a_missing_file_and_a_broken_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CatalogueInvalid, match="TURNWIRE_MODELS_FILE"):
        Catalogue.load(tmp_path / "nothing.toml")
    with pytest.raises(CatalogueInvalid, match="not TOML"):
        Catalogue.load(catalogue_of(tmp_path, "default ="))


def test_sections_are_inherited_from_the_file_and_overridden_by_a_model(tmp_path: Path) -> None:
    text = SMALL.replace(
        "[unlisted]", "[sections.summary]\nfloor = 10\nceiling = 200\n[unlisted]", 1
    )
    text += "[models.one.sections.summary]\nceiling = 90\npriority = 7\n"
    catalogue = Catalogue.load(catalogue_of(tmp_path, text))

    one, other = catalogue.sections("one"), catalogue.sections("unheard of")
    assert list(one) == list(SECTIONS)
    assert one["summary"] == SectionCard(floor=10, ceiling=90, priority=7)
    assert other["summary"] == SectionCard(floor=10, ceiling=200, priority=1)
    assert one["history"] == SectionCard(priority=5)


def test_floors_that_do_not_fit_a_window_are_refused_with_their_sum(tmp_path: Path) -> None:
    def load(floor: int) -> Catalogue:
        sections = (
            f"[sections.history]\nfloor = {floor}\n[sections.summary]\nfloor = 100\n[unlisted]"
        )
        return Catalogue.load(catalogue_of(tmp_path, SMALL.replace("[unlisted]", sections, 1)))

    # The unlisted card: (floors + 32) x 1.5 + 100 <= 1000, so floors of 568 fit and 569 do not.
    assert load(468).sections("x")["history"].floor == 468
    with pytest.raises(CatalogueInvalid) as caught:
        load(469)
    assert str(tmp_path / "models.toml") in str(caught.value)
    for part in ("floors (569)", "add up to 1002", "window of 1000"):
        assert part in str(caught.value)


@pytest.mark.parametrize("section", ["system", "workspace"])
def test_ceilings_of_what_is_never_trimmed_count_with_the_floors_of_the_rest(
    tmp_path: Path, section: str
) -> None:
    def load(ceiling: int) -> Catalogue:
        sections = (
            f"[sections.{section}]\nceiling = {ceiling}\n"
            "[sections.history]\nfloor = 100\n[sections.tools]\nceiling = 90000\n[unlisted]"
        )
        return Catalogue.load(catalogue_of(tmp_path, SMALL.replace("[unlisted]", sections, 1)))

    assert load(468).sections("x")["tools"].ceiling == 90000
    with pytest.raises(CatalogueInvalid, match=r"ceilings .*\(469\).* add up to 1002 tokens"):
        load(469)


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("[sections.history]\nfloor = 30\nceiling = 20", "floor 30 is above ceiling 20"),
        ("[sections.history]\nfloor = -1", "sections.history"),
        ("[sections.histery]\nfloor = 1", "sections.histery"),
        ("[sections.history]\nflor = 1", "sections.history.flor"),
        ("[models.one.sections.tools]\nceiling = 1\nfloor = 2", "floor 2 is above ceiling 1"),
    ],
)
def test_impossible_sections_are_refused(tmp_path: Path, lines: str, part: str) -> None:
    with pytest.raises(CatalogueInvalid, match=part):
        Catalogue.load(catalogue_of(tmp_path, f"{SMALL}{lines}\n"))


def test_a_model_that_needs_alternating_roles_cannot_continue(tmp_path: Path) -> None:
    both = SMALL.replace("[models.one]", "[models.one]\ncan_continue = true", 1)
    assert Catalogue.load(catalogue_of(tmp_path, both)).model("one").can_continue

    refused = both.replace("can_continue = true", "can_continue = true\nalternate_roles = true", 1)
    with pytest.raises(CatalogueInvalid, match="alternate_roles"):
        Catalogue.load(catalogue_of(tmp_path, refused))
