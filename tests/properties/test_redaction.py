"""Whatever a log line is given, a denied field never keeps its value."""

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.telemetry.redaction import redacted

CANARY = "canary-4f1c"

harmless = st.sampled_from(["turn_id", "seq", "reason", "fields", "conversation_id", "spans"])
denied = st.sampled_from(["text", "api_key", "apiKey", "door-mac", "Authorization", "prompt"])
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
wrappings = st.lists(st.sampled_from(["list", "tuple", "mapping"]), max_size=8)


def wrapped(value: Any, wrapping: list[str]) -> Any:
    for kind in wrapping:
        value = {"list": [value], "tuple": (1, value), "mapping": {"fields": value}}[kind]
    return value


@given(denied, wrappings, harmless)
@settings(deadline=None)
def test_nothing_denied_is_left_however_deep_it_lies(name, wrapping, outer):
    fields = {outer: wrapped({name: CANARY}, wrapping), name: wrapped(CANARY, wrapping)}

    assert CANARY.encode() not in orjson.dumps(redacted(fields))


@given(st.dictionaries(harmless, plain, max_size=6))
@settings(deadline=None)
def test_harmless_fields_stay_as_they_are(fields):
    assert redacted(fields) == fields
