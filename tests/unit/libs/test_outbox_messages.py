"""What a transaction of a service writes last."""

from uuid import UUID

from libs.outbox import OutboxMessage, append_statement, closing_statements, delete_statement

MESSAGE = OutboxMessage(UUID(int=1), "turn.events", "key", "turn.ended", {}, b"{}")


def test_nothing_to_delete_and_nothing_to_tell_is_no_statement() -> None:
    assert closing_statements((), ()) == []


def test_acknowledged_rows_are_deleted_beside_a_transaction_that_tells_nothing() -> None:
    assert closing_statements((), [3, 4]) == [delete_statement([3, 4])]


def test_new_rows_are_the_very_last_statement() -> None:
    assert closing_statements([MESSAGE], ()) == [append_statement([MESSAGE])]
    assert closing_statements([MESSAGE], [3]) == [
        delete_statement([3]),
        append_statement([MESSAGE]),
    ]
