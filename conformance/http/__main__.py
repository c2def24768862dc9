"""`python -m conformance.http --url http://127.0.0.1:8000 [--key a=SECRET --key b=SECRET --key admin=SECRET]`."""

from __future__ import annotations

import argparse
import sys

from conformance.http.runner import Target, load_cases, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.http", description=__doc__)
    parser.add_argument("--url", required=True, help="base URL of the API; no worker should take its tasks meanwhile")
    parser.add_argument("--key", action="append", default=[], metavar="NAME=SECRET", help="a, b (tenants) and admin")
    arguments = parser.parse_args()
    keys = dict(key.split("=", 1) for key in arguments.key)
    target = Target(arguments.url, keys)
    failed = passed = skipped = 0
    for case in load_cases():
        if case.keys != bool(keys):
            skipped += 1
            continue
        wrong = run(case, target)
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"FAILED {case.id}: {wrong}")
    why = "they need keys a, b and admin" if not keys else "they need an API without keys"
    print(f"{passed} passed, {failed} failed, {skipped} not run ({why})")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
