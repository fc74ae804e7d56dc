"""Counts the tokens of a text, offline, with the tokenizers the model catalogue names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final, Protocol, cast

from libs.errors import Terminal

CONSERVATIVE: Final = "conservative"
"""For a model whose own tokenizer is not at hand: never below any encoding that is."""

_ENCODINGS: Final = ("cl100k_base", "o200k_base")

TOKENIZERS: Final = frozenset({*_ENCODINGS, CONSERVATIVE})
"""The tokenizers a model card may name; all come with the package, nothing is downloaded."""

# Small vocabularies have few whole characters of these scripts, and no emoji in one piece.
_IDEOGRAPHS: Final = re.compile(
    "[\u1100-\u11ff\u2e80-\u30ff\u3130-\u318f\u31f0-\u4dbf\u4e00-\ua4cf\uac00-\ud7ff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)
_EMOJI: Final = re.compile("[\u2600-\u27bf\u2b50-\u2b55\U0001f000-\U0001faff]")

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class UnknownTokenizer(Terminal):
    """A tokenizer was asked for that this build cannot count with."""

    code = "tokens.unknown_tokenizer"

    def __init__(self, name: str) -> None:
        known = ", ".join(sorted(TOKENIZERS))
        super().__init__(
            f"no tokenizer named {name!r}: known are {known}; "
            "name one of them, with a safety factor, in the model's card"
        )
        self.name = name


class Tokenizer(Protocol):
    """Counts tokens; the same text has the same count in every process."""

    def count(self, text: str) -> int:
        """Tokens of ``text`` as plain text.

        Control-token look-alikes such as ``<|endoftext|>`` are ordinary characters here: they
        are counted as the text they are. Never raises; an empty text has 0 tokens.
        """


class _Backend(Protocol):
    """The part of the compiled tokenizer that is used."""

    def count(self, text: str) -> int: ...


class BpeTokenizer:
    """A byte-pair encoding of ``bpe-openai``; about 4 ms for 256 KiB, whatever the text."""

    def __init__(self, backend: _Backend) -> None:
        self._backend = backend

    def count(self, text: str) -> int:
        """Tokens of ``text``; an unpaired surrogate counts as U+FFFD, which is what is stored."""
        try:
            return self._backend.count(text)
        except UnicodeEncodeError:
            return self._backend.count(_SURROGATE.sub("\ufffd", text))


class ConservativeTokenizer:
    """The most that any encoding at hand makes of a text, and by script at least so much.

    An ideograph or a syllable of Hangul counts at least 1, an emoji at least 2.
    """

    def __init__(self, encodings: Sequence[Tokenizer]) -> None:
        self._encodings = encodings

    def count(self, text: str) -> int:
        """Tokens of ``text``; an unpaired surrogate counts as U+FFFD."""
        most = max(encoding.count(text) for encoding in self._encodings)
        if text.isascii():
            return most
        return max(most, len(_IDEOGRAPHS.findall(text)) + 2 * len(_EMOJI.findall(text)))


@lru_cache(maxsize=len(TOKENIZERS))
def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name, loaded at its first use (50 ms, 30 to 65 MB).

    Raises:
        UnknownTokenizer: ``name`` is not one of ``TOKENIZERS``.
    """
    if name not in TOKENIZERS:
        raise UnknownTokenizer(name)
    if name == CONSERVATIVE:
        return ConservativeTokenizer([tokenizer(encoding) for encoding in _ENCODINGS])
    return BpeTokenizer(_encoding_loader()(name))


def count(text: str, tokenizer_name: str) -> int:
    """Tokens of ``text`` in the encoding ``tokenizer_name``, control-token look-alikes as text.

    Raises:
        UnknownTokenizer: The name is not one of ``TOKENIZERS``.
    """
    return tokenizer(tokenizer_name).count(text)


@lru_cache(maxsize=1)
def _encoding_loader() -> Callable[[str], _Backend]:
    """Load the compiled half of ``bpe_openai`` alone.

    Importing the package itself builds every vocabulary a second time as Python dictionaries:
    0.6 s and 70 MB a process for functions that are not used here, and a deprecation warning.
    """
    package = find_spec("bpe_openai")
    folders = package.submodule_search_locations if package is not None else None
    library = next((file for folder in folders or () for file in _libraries(folder)), None)
    spec = None
    if library is not None:
        spec = spec_from_file_location("bpe_openai._bindings", library)
    if spec is None or spec.loader is None:
        raise ImportError("bpe-openai has no compiled tokenizer here: install its wheel again")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    members = cast("Mapping[str, object]", vars(module))
    return cast("Callable[[str], _Backend]", members["tokenizer_for_encoding"])


def _libraries(folder: str) -> list[Path]:
    found = [*Path(folder).glob("_bindings*.so"), *Path(folder).glob("_bindings*.pyd")]
    return sorted(found)
