"""A policy text that no prompt could hold within its section is refused at start."""

from pathlib import Path

import pytest

from libs.catalogue import DEFAULT_PATH, Catalogue
from libs.errors import MisconfiguredSettings
from services.context_assembly.app import check_policy, limits_from
from services.context_assembly.core.budget import Sampling
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.planner import Planner
from services.context_assembly.settings import ContextSettings
from services.frontend_gateway.http.operating import FRAMES_TOKENS


def settings(text: str) -> ContextSettings:
    return ContextSettings(database_url="postgresql://unused", system_policy_text=text)


@pytest.mark.parametrize("model", ["gpt-4o", "unlisted"])
def test_a_policy_text_over_the_ceiling_of_a_model_is_refused_with_both_numbers(
    tmp_path: Path, model: str
) -> None:
    table = "unlisted" if model == "unlisted" else f'models."{model}"'
    shipped = DEFAULT_PATH.read_text(encoding="utf-8")
    file = tmp_path / "models.toml"
    small = f"[{table}.sections.system]\nceiling = 50\n"
    file.write_text(f"{shipped}\n{small}", encoding="utf-8")
    catalogue = Catalogue.load(file)

    check_policy(settings("word " * 30), catalogue)
    check_policy(settings(""), catalogue)
    with pytest.raises(MisconfiguredSettings, match=r"takes \d+ tokens.* allows 50"):
        check_policy(settings("word " * 60), catalogue)


def test_what_is_kept_free_for_the_sentence_about_frames_is_enough_for_every_model() -> None:
    catalogue = Catalogue.load()
    for name in (*catalogue.names, "of nobody"):
        limits = limits_from(catalogue.model(name), catalogue.sections(name))
        planner = Planner(limits, SystemPolicy("Be kind.", "1"), Sampling(limits.max_output))
        costs = planner.frame_costs({"summary", "tools"})
        assert costs.framing + 2 * costs.noted <= FRAMES_TOKENS
