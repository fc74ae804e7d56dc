from pathlib import Path

import pytest

from libs.catalogue import DEFAULT_PATH, Catalogue, CatalogueInvalid

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
