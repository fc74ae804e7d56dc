"""Reads the metrics of a running process, as Prometheus would."""

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT = aiohttp.ClientTimeout(total=10)


async def counted(url: str, name: str, **labels: str) -> float:
    """A counter's value, summed over the samples with these labels; 0 where it never counted.

    Args:
        url: Of the process's second port.
        name: Without the prefix ``turnwire_``.
    """
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT) as session,
        session.get(f"{url}/metrics") as response,
    ):
        text = await response.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"turnwire_{name}" and labels.items() <= sample.labels.items()
    )
