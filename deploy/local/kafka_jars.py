"""Kafka's jars by Maven coordinates; run as a program, since resolving takes 20 s of CPU once.

``python -m deploy.local.kafka_jars OUTPUT`` writes the class path, a JSON list, to OUTPUT and
prints one line for every jar it has downloaded.
"""

import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from deploy.local.cache import cache_path, locked
from deploy.local.child import Child, Launch, log_tail
from deploy.local.errors import PartFailed
from deploy.local.part import Note, local_module, module_environment
from deploy.local.waiting import until

KAFKA_VERSION = "4.3.1"
KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# Kafka speaks slf4j 1.7; without this binding it logs nothing at all. Resolved on its own and
# taken alone: resolved together with Kafka it would replace kafka-clients by an older one.
LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
LOG_BINDING_JAR = "log4j-slf4j-impl-2.25.4.jar"
DOWNLOADS = 49  # jars of both resolutions, for the progress line only
RESOLVE_BOUND_S = 600.0  # 46 MB over a slow line
NOTE_EVERY_S = 2.0
_FETCHED = "fetched "


def cache_folder() -> Path:
    """Where this version's class path and start-up caches are kept."""
    return cache_path() / f"kafka-{KAFKA_VERSION}"


async def class_path(note: Note) -> list[Path]:
    """The jars in class path order; resolved now if they never were, or one of them is gone.

    Raises:
        PartFailed: If they cannot be had, for instance without a network.
    """
    known = cache_folder() / "class-path.json"
    if jars := _stored(known):
        return jars
    await _resolve_in_a_child(known, note)
    if jars := _stored(known):
        return jars
    raise PartFailed(f"Kafka's jars were resolved, but not all that {known} names are there.")


def _stored(known: Path) -> list[Path]:
    """The recorded class path, or nothing if it cannot be used as it is."""
    try:
        names = json.loads(known.read_text())
    except (OSError, ValueError):
        return []
    jars = [Path(name) for name in names]
    return jars if all(jar.is_file() for jar in jars) else []


async def _resolve_in_a_child(known: Path, note: Note) -> None:
    log_path = known.with_name("resolve.log")
    log_path.unlink(missing_ok=True)
    note("fetching Kafka's jars, about 46 MB, once")
    child = Child(
        Launch(
            command=(sys.executable, "-m", "deploy.local.kafka_jars", str(known)),
            log_path=log_path,
            # All of ours: proxies, certificates and mirrors are set there.
            env={**os.environ, **module_environment()},
        )
    )
    last_note = monotonic()

    def ended() -> bool:
        nonlocal last_note
        if monotonic() - last_note >= NOTE_EVERY_S:
            last_note = monotonic()
            fetched = log_path.read_text().count(_FETCHED)
            note(f"fetching Kafka's jars: {fetched} of about {DOWNLOADS}")
        return not child.is_running()

    try:
        in_time = await until(ended, timeout_s=RESOLVE_BOUND_S, poll_s=0.1)
    finally:
        child.kill_now()
    if in_time and child.exit_code == 0:
        return
    why = f"code {child.exit_code}" if in_time else f"no end within {RESOLVE_BOUND_S:.0f} s"
    raise PartFailed(
        f"Kafka's jars could not be fetched ({why}). Look for the cause below, check the network, "
        "and start again: what was fetched is kept. Or set KAFKA_BOOTSTRAP_SERVERS. "
        f"The end of {log_path}:\n{log_tail(log_path)}"
    )


def main(output: Path) -> None:
    """Resolve, and write the class path unless another process was faster."""
    with locked(output.with_name("resolve.lock"), wait=True):
        if _stored(output):
            return
        jgo = local_module("jgo", instead="KAFKA_BOOTSTRAP_SERVERS")
        jars = sorted(_jars_of(jgo, KAFKA))
        binding = [jar for jar in _jars_of(jgo, LOG_BINDING) if jar.name == LOG_BINDING_JAR]
        draft = output.with_suffix(".new")
        draft.write_text(json.dumps([str(jar) for jar in (*jars, *binding)], indent=1))
        draft.replace(output)


def _jars_of(jgo: Any, coordinates: str) -> list[Path]:
    """All jars of one artifact; what an interrupted download left cut short is fetched again."""
    resolver = local_module("jgo.maven", instead="KAFKA_BOOTSTRAP_SERVERS").PythonResolver
    jars: list[Path] = jgo.build(
        coordinates, resolver=resolver(progress_callback=_announce)
    ).all_jars
    broken = [jar for jar in jars if not zipfile.is_zipfile(jar)]
    if not broken:
        return jars
    repository = Path(jgo.config.GlobalSettings.load().repo_cache)
    for jar in broken:
        jar.unlink()
        for stored in repository.rglob(jar.name):
            stored.unlink()
    rebuilt: list[Path] = jgo.build(
        coordinates, update=True, resolver=resolver(progress_callback=_announce)
    ).all_jars
    return rebuilt


@contextmanager
def _announce(filename: str, _size_bytes: int) -> Iterator[Callable[[int], None]]:
    yield lambda _received_bytes: None
    if filename.endswith(".jar"):
        sys.stdout.write(f"{_FETCHED}{filename}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
