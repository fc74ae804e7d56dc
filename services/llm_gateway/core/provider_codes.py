"""Which words of a provider are surely the code of an error, and not a word of somebody's. Pure.

Codes go into logs and rows. A provider, or whoever poses as one, may write into them what it was
asked, or the key that it was sent: hence a closed vocabulary, not a pattern.
"""

import re
from typing import Final

MAX_CODE: Final = 64
"""Characters; the longest code in use has 36."""

_VOCABULARY = """
above access account api authentication authorization bad balance billing bytes closed connection
content context credit credits deactivated deadline disabled empty engine error errors exceed
exceeded exhausted expired failed failure filter filtered forbidden found gateway hard inactive
input insufficient internal invalid json key large length limit limits loading long max maximum
message messages minute missing model not object of on organization out output overloaded
parameter parse per permission policy project prompt quota rate reached refused region request
requests resource response safety server service size soft string temporarily temporary terminated
timeout token tokens too type unauthorized unavailable unknown unprocessable unsupported upstream
usage user value violation window
"""
_WORDS: Final = frozenset(_VOCABULARY.split())
_BREAKS: Final = re.compile(r"[_.\-]+|(?<=[a-z])(?=[A-Z])")
_HTTP_STATUS: Final = re.compile(r"[1-5][0-9]{2}")


def is_code(text: str) -> bool:
    """Whether a text is an HTTP status, or made of the words of codes alone."""
    if len(text) > MAX_CODE:
        return False
    if _HTTP_STATUS.fullmatch(text):
        return True
    return all(word.lower() in _WORDS for word in _BREAKS.split(text))
