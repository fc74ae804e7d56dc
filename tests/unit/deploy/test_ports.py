import os
import socket

import pytest

from deploy.local.errors import PortBusy
from deploy.local.ports import FIRST_PORT, LAST_PORT, is_free, pick_port, require_free


def test_a_picked_port_is_free_and_below_the_range_of_outgoing_connections() -> None:
    port = pick_port()
    assert FIRST_PORT <= port < LAST_PORT < 32_768
    assert is_free(port)


def test_a_busy_port_is_reported_with_the_process_that_holds_it_and_what_to_do() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortBusy) as refusal:
            require_free(port, purpose="the chat page", remedy="Or give another --port.")
    text = str(refusal.value)
    assert f"Port {port} is needed for the chat page" in text
    assert f"(process {os.getpid()})" in text
    assert text.endswith("Or give another --port.")


def test_a_free_port_is_no_error() -> None:
    require_free(pick_port(), purpose="the chat page")


def test_no_port_is_given_twice_before_its_server_listens() -> None:
    ports = [pick_port() for _ in range(400)]  # drawn afresh, 400 of 12,000 would hold a pair

    assert len(set(ports)) == len(ports)
