"""The loader of named statements."""

import pytest

from libs.postgres.queries import load_queries, parse_queries


def test_blocks_are_found_by_name_and_keep_their_comments() -> None:
    text = "-- name: one\n-- why\nselect 1;\n\n-- name: two\nselect 2\n"

    assert parse_queries(text) == {"one": "-- why\nselect 1", "two": "select 2"}


@pytest.mark.parametrize(
    "text", ["-- name: one\nselect 1;\n-- name: one\nselect 2;", "-- name: one\n;"]
)
def test_a_repeated_or_empty_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one"):
        parse_queries(text)


@pytest.mark.parametrize("package", ["libs.outbox", "libs.inbox", "libs.leases", "libs.kafka"])
def test_the_mechanics_have_their_statements(package: str) -> None:
    assert load_queries(package)
