import pytest

from deploy.local.stack import with_login, without_login


def test_a_login_is_replaced_and_the_rest_of_the_url_stays() -> None:
    assert (
        with_login("postgresql://admin:x@db.example:5433/turnwire?sslmode=require", "me", "a/b@c")
        == "postgresql://me:a%2Fb%40c@db.example:5433/turnwire?sslmode=require"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hush@127.0.0.1:1/0", "redis://127.0.0.1:1/0"),
        ("postgresql://me:hush@db/x?password=hush", "postgresql://db/x"),
        ("one:9092,two:9092", "one:9092,two:9092"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert without_login(url) == shown
