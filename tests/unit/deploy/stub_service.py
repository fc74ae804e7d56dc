"""A process that behaves like a service: answers /readyz on its ops port until it is ended.

``TURNWIRE_STUB__MODE``: ``crash`` ends at once with code 3; ``deaf`` never becomes ready;
``once`` ends with code 4 when ``/crash`` is asked.
"""

import http.server
import os
import signal
import sys
from types import FrameType


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/crash":
            os._exit(4)
        status = 503 if os.environ.get("TURNWIRE_STUB__MODE") == "deaf" else 200
        body = os.environ.get("TURNWIRE_STUB__WORD", "").encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        sys.stdout.write(f"asked for {self.path}\n")


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    if os.environ.get("TURNWIRE_STUB__MODE") == "crash":
        sys.stdout.write("cannot start: no model in the settings\n")
        sys.exit(3)
    signal.signal(signal.SIGTERM, _leave)
    address = ("127.0.0.1", int(os.environ["TURNWIRE_STUB__OPS_PORT"]))
    http.server.HTTPServer(address, _Handler).serve_forever()
