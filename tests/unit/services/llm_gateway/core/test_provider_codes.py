"""Codes of providers are kept, and nothing else that stands in their place."""

import pytest

from services.llm_gateway.core.failures import of_error_object


@pytest.mark.parametrize(
    "code",
    [
        "context_length_exceeded",
        "invalid_api_key",
        "insufficient_quota",
        "RESOURCE_EXHAUSTED",
        "overloaded_error",
        "rateLimitExceeded",
        "model_not_found",
        "429",
    ],
)
def test_the_code_of_a_provider_is_kept(code: str):
    failure = of_error_object({"code": code, "message": "m"})

    assert failure.code == code


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "my_password",
        "sk-abc123",
        "invalid_Nilo",
        "",
        "-",
        "12345",
        "error " * 20,
        "a" * 65,
    ],
)
def test_a_word_that_no_code_is_made_of_is_never_kept(text: str):
    failure = of_error_object({"code": text, "type": text})

    assert failure.code is None
