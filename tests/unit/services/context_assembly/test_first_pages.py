"""How much of a long history is read at once."""

from uuid import UUID

from services.context_assembly.ports import PAGE_ROWS
from services.context_assembly.reading import MAX_PAGES_AT_ONCE, MAX_REMEMBERED, FirstPages


def branch(number: int) -> UUID:
    return UUID(int=number)


def test_a_branch_nobody_planned_is_read_by_one_page() -> None:
    assert FirstPages().rows_of(branch(1)) == PAGE_ROWS


def test_the_next_plan_reads_what_the_last_one_showed_and_a_row_beyond() -> None:
    pages = FirstPages()
    for kept in (PAGE_ROWS - 1, PAGE_ROWS, 3 * PAGE_ROWS + 7, 40 * PAGE_ROWS):
        pages.shown(branch(1), kept)
        expected = min(kept // PAGE_ROWS + 1, MAX_PAGES_AT_ONCE) * PAGE_ROWS
        assert pages.rows_of(branch(1)) == expected
        assert expected > kept or expected == MAX_PAGES_AT_ONCE * PAGE_ROWS


def test_a_history_that_became_short_is_read_by_one_page_again() -> None:
    pages = FirstPages()
    pages.shown(branch(1), 5 * PAGE_ROWS)
    pages.shown(branch(1), 3)
    assert pages.rows_of(branch(1)) == PAGE_ROWS


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    pages = FirstPages()
    for number in range(MAX_REMEMBERED + 1):
        pages.shown(branch(number), 2 * PAGE_ROWS)
    assert pages.rows_of(branch(0)) == PAGE_ROWS
    assert pages.rows_of(branch(1)) == pages.rows_of(branch(MAX_REMEMBERED)) == 3 * PAGE_ROWS
