"""Faults strike whom they may, and are counted with what was waited for meanwhile."""

import pytest

from tests.sim.faults import OPERATIONS, Fault
from tests.sim.process import Process
from tests.sim.world import World


async def test_a_fault_is_counted_with_the_operations_that_were_waited_for() -> None:
    faults = [Fault("postgres", "refused", nth, 0.5) for nth in (1, 3)]
    world = World(1, faults)
    process = Process("ingestion.0", "ingestion", world)

    with world.during("cancel"), world.during("archive"):
        assert world.fault_of("postgres", process, "") == faults[0]
        assert world.fault_of("postgres", process, "") is None
    assert world.fault_of("postgres", process, "") == faults[1]

    assert world.struck == {"cancel/postgres": 1, "archive/postgres": 1}
    assert world.hits["postgres/refused"] == 2


@pytest.mark.parametrize(
    ("kind", "is_struck", "refused"),
    [("ingestion", True, 1), ("operator", False, 2), ("client", False, None)],
)
async def test_only_services_crash_and_only_clients_are_spared(
    kind: str, refused: int | None, *, is_struck: bool
) -> None:
    faults = [
        Fault("process", "crash", 1, 0.5),
        Fault("postgres", "refused", 1, 0.5),
        Fault("operating", "refused", 1, 0.5),
    ]
    world = World(1, faults)
    struck: list[Fault] = []
    world.strike = lambda fault, _process: struck.append(fault)

    found = world.fault_of("postgres", Process("somebody", kind, world), "")

    assert struck == (faults[:1] if is_struck else [])
    assert found == (None if refused is None else faults[refused])


def test_every_operation_is_named_once() -> None:
    assert len(set(OPERATIONS)) == len(OPERATIONS)
