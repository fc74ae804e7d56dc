"""Reads the topic files: who writes a topic, who reads it, what it carries, how it is kept."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.registry import DEAD_LETTER_SUFFIX

TOPICS_FOLDER = Path(__file__).parent / "topics"

Profile = Literal["local", "production"]
Party = Literal["frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops", "door"]
"""Who may stand in a topic file: a service by its folder; ``door`` is any other front end."""


class _Strict(BaseModel):
    """A topic file is written by people: an unknown or misspelt key is an error, not a wish."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PerProfile(_Strict):
    """A number that differs between one machine and a cluster."""

    local: int = Field(gt=0)
    production: int = Field(gt=0)

    def of(self, profile: Profile) -> int:
        """The number for one profile."""
        return self.local if profile == "local" else self.production


class EventRef(_Strict):
    """One version of one event that may travel on the topic."""

    type: str = Field(pattern=r"^[a-z_]+\.[a-z_]+$")
    version: int = Field(gt=0)


class DeadLetters(_Strict):
    """The mirror of the dead letters of a topic; truth is the table of the consuming service."""

    producers: tuple[Party, ...] = Field(strict=False)
    consumers: tuple[Party, ...] = Field(strict=False)
    config: Mapping[str, str]


class TopicFile(_Strict):
    """One file of ``schemas/topics``.

    Attributes:
        topic: Name on the broker; the file is called after it.
        owner: The service that decides what the topic's records mean, and that may create it.
        key: What the record key is; records of one key keep their order.
        carries_text: Whether a value may hold what a person wrote.
        readers: Who looks into it now and then, in no consumer group: nothing waits for them, and
            nothing that they cannot read is set aside.
        config: Settings of the broker for this topic, as text; the whole set, since altering
            replaces all of them.
    """

    topic: str = Field(pattern=r"^[a-z]+\.[a-z]+$")
    description: str = Field(min_length=20)
    owner: Party
    key: Literal["conversation_id"]
    carries_text: bool
    producers: tuple[Party, ...] = Field(min_length=1, strict=False)
    consumers: tuple[Party, ...] = Field(min_length=1, strict=False)
    readers: tuple[Party, ...] = Field(default=(), strict=False)
    events: tuple[EventRef, ...] = Field(min_length=1, strict=False)
    compatibility: Literal["additive", "none"]
    partitions: PerProfile
    replication: PerProfile
    min_insync_replicas: PerProfile
    config: Mapping[str, str]
    dead_letters: DeadLetters

    @model_validator(mode="after")
    def _dead_letters_come_from_consumers(self) -> "TopicFile":
        if set(self.dead_letters.producers) != set(self.consumers):
            msg = f"{self.topic}: its consumers, and nobody else, write its dead letters"
            raise ValueError(msg)
        return self

    def concerns(self, party: str) -> tuple[bool, bool]:
        """Whether a party owns, writes or reads the topic, and the same for its dead letters."""
        letters = self.dead_letters
        return (
            party in (self.owner, *self.producers, *self.consumers, *self.readers),
            party in (self.owner, *letters.producers, *letters.consumers),
        )

    @property
    def dead_letter_topic(self) -> str:
        """Name of the topic that mirrors this topic's dead letters."""
        return self.topic + DEAD_LETTER_SUFFIX


def load_topic(path: Path) -> TopicFile:
    """Read one topic file.

    Raises:
        ValueError: The file breaks a rule of ``TopicFile``, or is not called after its topic.
    """
    topic = TopicFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    if path.name != f"{topic.topic}.yaml":
        msg = f"{path.name} describes {topic.topic}; call the file {topic.topic}.yaml"
        raise ValueError(msg)
    return topic


def load_topics(folder: Path = TOPICS_FOLDER) -> tuple[TopicFile, ...]:
    """All topic files of a folder, by name.

    Raises:
        ValueError: A file breaks a rule, or the folder holds none.
    """
    topics = tuple(load_topic(path) for path in sorted(folder.glob("*.yaml")))
    if not topics:
        msg = f"no topic file in {folder}; the package is incomplete, install it again"
        raise ValueError(msg)
    return topics


def topics_of(topics: Iterable[TopicFile], owner: str) -> tuple[TopicFile, ...]:
    """The topics that one service owns and may create."""
    return tuple(topic for topic in topics if topic.owner == owner)
