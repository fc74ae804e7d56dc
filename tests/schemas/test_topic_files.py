"""The topic files agree with the events, with each other and with the rules for topics."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from schemas.registry import EVENTS_OF_TOPIC
from schemas.topic_files import TOPICS_FOLDER, TopicFile, load_topic, load_topics, topics_of
from schemas.topics_page import duration

DAY_MS = 24 * 60 * 60 * 1000
TOPICS = load_topics()


def by_name(topic: TopicFile) -> str:
    return topic.topic


def test_files_and_registry_name_the_same_events() -> None:
    from_files = {t.topic: {(e.type, e.version) for e in t.events} for t in TOPICS}
    from_registry = {
        topic: {(event.TYPE, event.VERSION) for event in events}
        for topic, events in EVENTS_OF_TOPIC.items()
    }
    assert from_files == from_registry


def test_an_event_travels_on_one_topic_but_a_cancel_is_a_wish_and_then_a_fact() -> None:
    topics: dict[str, list[str]] = {}
    for topic in TOPICS:
        for event in topic.events:
            topics.setdefault(event.type, []).append(topic.topic)

    assert {event: where for event, where in topics.items() if len(where) > 1} == {
        "turn.cancel_requested": ["turn.events", "turn.requests"]
    }


@pytest.mark.parametrize("topic", TOPICS, ids=by_name)
def test_only_the_door_has_more_than_one_producer(topic: TopicFile) -> None:
    assert len(topic.producers) == (2 if topic.topic == "turn.requests" else 1)
    if topic.topic != "turn.requests":
        assert topic.producers == (topic.owner,)


@pytest.mark.parametrize("topic", TOPICS, ids=by_name)
def test_text_is_kept_a_day_and_facts_a_week(topic: TopicFile) -> None:
    days = 1 if topic.carries_text else 7
    assert int(topic.config["retention.ms"]) == days * DAY_MS
    if topic.carries_text:
        assert int(topic.dead_letters.config["retention.ms"]) == DAY_MS


@pytest.mark.parametrize("topic", TOPICS, ids=by_name)
def test_segments_close_often_enough_for_the_retention_to_hold(topic: TopicFile) -> None:
    for config in (topic.config, topic.dead_letters.config):
        assert int(config["segment.ms"]) * 7 <= int(config["retention.ms"])


@pytest.mark.parametrize("topic", TOPICS, ids=by_name)
def test_the_broker_stamps_the_time_and_takes_what_we_may_publish(topic: TopicFile) -> None:
    assert topic.config["message.timestamp.type"] == "LogAppendTime"
    assert int(topic.config["max.message.bytes"]) >= 1024 * 1024
    assert (topic.partitions.local, topic.partitions.production) == (4, 24)
    assert topic.min_insync_replicas.production < topic.replication.production


def test_text_travels_in_one_topic() -> None:
    assert [topic.topic for topic in TOPICS if topic.carries_text] == ["turn.requests"]


def test_every_service_that_writes_events_owns_their_topic() -> None:
    assert [t.topic for t in topics_of(TOPICS, "ingestion")] == ["turn.events", "turn.requests"]
    assert [t.topic for t in topics_of(TOPICS, "llm_gateway")] == ["generation.events"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"aditional": True}, "Extra inputs are not permitted"),
        ({"partitions": {"local": "4", "production": 24}}, "valid integer"),
        ({"producers": ["somebody"]}, "Input should be"),
        ({"consumers": ["ops"]}, "write its dead letters"),
        ({"key": "turn_id"}, "Input should be 'conversation_id'"),
        ({"topic": "turn.wishes"}, "call the file turn.wishes.yaml"),
    ],
)
def test_a_wrong_topic_file_is_refused(tmp_path: Path, edit: dict[str, object], said: str) -> None:
    raw = yaml.safe_load((TOPICS_FOLDER / "turn.requests.yaml").read_text())
    path = tmp_path / "turn.requests.yaml"
    path.write_text(yaml.safe_dump({**raw, **edit}))

    with pytest.raises((ValidationError, ValueError), match=said):
        load_topic(path)


def test_a_folder_without_topics_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no topic file"):
        load_topics(tmp_path)


def test_a_retention_is_written_for_people() -> None:
    assert [duration(ms) for ms in ("86400000", "604800000", "3600000")] == [
        "24 hours",
        "7 days",
        "1 hours",
    ]
