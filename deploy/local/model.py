"""The demo's model, SmolLM2-135M-Instruct, served by llama.cpp in a process of its own."""

import sys
from pathlib import Path

from deploy.local import openmp
from deploy.local.child import Launch
from deploy.local.part import Note, Server, module_environment, silent
from deploy.local.waiting import http_status

MODEL = "smollm2-135m-instruct"
CONTEXT_TOKENS = 8_192  # what the model was trained for
SLOTS = 4  # answers at once; each keeps its own context, about 190 MB
API_KEY_VARIABLE = "TURNWIRE_MODEL_API_KEY"
_HTTP_OK = 200


class ModelServer(Server):
    """An OpenAI-compatible endpoint.

    Args:
        api_key: What a client has to send as its bearer token.
    """

    name = "model"
    STOP_BOUND_S = 5.0
    START_BOUND_S = 90.0  # 0.6 s; up to 3 s with a cold disk, more on a busy one

    def __init__(self, folder: Path, *, port: int, api_key: str, note: Note = silent) -> None:
        super().__init__(folder, port=port, note=note)
        self._api_key = api_key

    @property
    def url(self) -> str:
        """The base URL; the key travels separately."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def public_url(self) -> str:
        """The base URL."""
        return self.url

    def _launch(self) -> Launch:
        return Launch(
            command=(sys.executable, "-m", "deploy.local.model_server", "--port", str(self.port)),
            log_path=self.log_path,
            env={
                **module_environment(),
                **self._loader_environment(),
                API_KEY_VARIABLE: self._api_key,
            },
            cwd=self.folder,
        )

    def _loader_environment(self) -> dict[str, str]:
        if openmp.machine_has_it():
            return {}
        return {"LD_LIBRARY_PATH": str(openmp.linked_in(self.folder / "openmp"))}

    async def _is_ready(self) -> bool:
        return await http_status(self.port, "/health") == _HTTP_OK
