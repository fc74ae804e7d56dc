"""What is printed when everything is up can be used as it stands."""

import subprocess
from pathlib import Path

from services.ops.running import Address
from services.ops.up import curl

FAKE_CURL = """#!/bin/sh
for argument in "$@"; do printf '%s\\n' "$argument" >> "$CURL_LOG"; done
printf -- '--\\n' >> "$CURL_LOG"
printf '%s' '{"id": "11111111-2222-3333-4444-555555555555", "title": null}'
"""
TIMEOUT_S = 20


def test_the_printed_curl_works_when_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    key_path = folder / "api-key"
    key_path.write_text("tw_secret\n", encoding="utf-8")
    fake = tmp_path / "bin" / "curl"
    fake.parent.mkdir()
    fake.write_text(FAKE_CURL, encoding="utf-8")
    fake.chmod(0o755)
    lines = curl(Address("http://127.0.0.1:8080", "tw_secret", key_path, key_is_new=True))

    assert "tw_secret" not in "\n".join(lines)
    log = tmp_path / "log"
    subprocess.run(
        ["/bin/sh", "-c", "\n".join(lines)],
        env={"PATH": f"{fake.parent}:/usr/bin:/bin", "CURL_LOG": str(log)},
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )

    made, asked, _ = log.read_text(encoding="utf-8").split("--\n")
    assert "http://127.0.0.1:8080/v1/conversations\n" in made
    assert "Authorization: Bearer tw_secret\n" in made
    path = "/v1/conversations/11111111-2222-3333-4444-555555555555/messages\n"
    assert f"http://127.0.0.1:8080{path}" in asked
    assert "Accept: text/event-stream\n" in asked
    assert '{"content": "' in asked
