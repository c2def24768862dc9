"""`python -m taskgate.local.fake_provider`: prints one line with its address when it is ready."""

from __future__ import annotations

import argparse
import sys

from taskgate.local.fake_provider import BadBehaviour, FakeProviderOptions, Rule, from_text, serve


def _fault(text: str) -> Rule:
    try:
        return from_text(text)
    except BadBehaviour as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fake-provider", description="An OpenAI-shaped provider for tests and load.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds until an answer begins")
    parser.add_argument("--jitter", type=float, default=0.0, help="up to so many random seconds more")
    parser.add_argument("--limit", type=int, default=None, help="answer 429 above so many calls in flight")
    parser.add_argument("--api-key", default="", help="answer 401 to everybody without this key")
    parser.add_argument("--log-size", type=int, default=10_000, help="requests kept for GET /log")
    parser.add_argument("--seed", type=int, default=None, help="makes random faults repeatable")
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="'NAME key=value …'",
        help="for example '429 share=0.1 retry_after=2' or 'hang times=3'; may be repeated",
    )
    given = parser.parse_args(arguments)
    options = FakeProviderOptions(
        host=given.host,
        port=given.port,
        latency=given.latency,
        jitter=given.jitter,
        limit=given.limit,
        faults=given.fault,
        api_key=given.api_key,
        log_size=given.log_size,
        seed=given.seed,
    )
    try:
        serve(options)
    except OSError as error:
        print(f"the fake provider cannot listen on {given.host}:{given.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
