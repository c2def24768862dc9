"""From bytes to a checked JSON object and the text that is stored.

The text is the caller's own wherever possible, so that key order and the spelling of numbers survive; what jsonb
could not hold, or would silently change the meaning of, is refused.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from taskgate.api.problems import Problem, escape, invalid

MAX_DEPTH = 100
MAX_EXPONENT = 400  # jsonb writes numbers out in full: 1e100000 would become 100 kB
JOINED = (
    ". Another value follows the first: send one object a line as `Content-Type: application/x-ndjson`; "
    "curl keeps the line breaks of a file with `--data-binary @FILE`, not with `-d`"
)

_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_EXPONENT = re.compile(r"[eE]([+-]?\d+)$")
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_SPACE = " \t\r\n"


@dataclass(slots=True)
class Body:
    """A JSON object: its value, its text, and whether jsonb would change that text's meaning to a reader."""

    value: dict[str, Any]
    text: str
    keep_order: bool


class _Numbers(threading.local):
    """A thread's decoder, and what it noticed of the numbers of the last body. (A decoder costs more than its use.)"""

    def __init__(self) -> None:
        self.exponents = False
        self.out_of_range = False
        self.decoder = msgspec.json.Decoder(float_hook=self._float)

    def _float(self, text: str) -> float:
        match = _EXPONENT.search(text)
        if match is not None:
            self.exponents = True
            if abs(int(match[1][:12])) > MAX_EXPONENT:
                self.out_of_range = True  # an exception would come out as one of the decoder's own
        value = float(text)
        if value in (float("inf"), float("-inf")):
            self.exponents = True
        return value


_numbers = _Numbers()


class _Scan:
    """One walk over a decoded value, counting what tells whether the text holds anything that it lost."""

    __slots__ = ("colons", "in_order", "keys")

    def __init__(self) -> None:
        self.keys = 0
        self.colons = 0
        self.in_order = True

    def walk(self, value: Any, path: tuple[str | int, ...] = ()) -> None:
        if type(value) is str:
            if "\x00" in value:
                _refuse_nul(path)
            self.colons += value.count(":")
            return
        if len(path) >= MAX_DEPTH:
            _too_deep()
        if type(value) is dict:
            self.keys += len(value)
            before: tuple[int, bytes] = (-1, b"")
            for key, item in value.items():
                if "\x00" in key:
                    _refuse_nul((*path, key))
                self.colons += key.count(":")
                if self.in_order and len(value) > 1:
                    encoded = key.encode()
                    place = (len(encoded), encoded)
                    self.in_order = place > before
                    before = place
                if type(item) is str or type(item) is dict or type(item) is list:
                    self.walk(item, (*path, key))
        elif type(value) is list:
            for index, item in enumerate(value):
                if type(item) is str or type(item) is dict or type(item) is list:
                    self.walk(item, (*path, index))


def parse_object(raw: bytes) -> Body:
    """The object of a request body. Raises Problem for anything that is not one we can store faithfully."""
    text = _decode(raw)
    value = _parse(raw, text)
    if type(value) is not dict:
        raise invalid("not_an_object", f"the request must be a JSON object, not {_kind(value)}")
    exponents = _numbers.exponents
    scan = _Scan()
    scan.walk(value)
    if scan.keys + scan.colons != text.count(":") or "\\u003" in text:
        _refuse_duplicates(text)
    return Body(value, text.strip(_JSON_SPACE), not scan.in_order or exponents)


def split_array(raw: bytes) -> list[msgspec.Raw]:
    """The items of a JSON array, unparsed. Raises Problem unless it is one."""
    try:
        return _RAW_ARRAY.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        _parse(raw, _decode(raw))  # says what is wrong, and where
        raise


def raw_member(text: str, name: str) -> msgspec.Raw:
    """One member of the object as the caller wrote it. Raises KeyError."""
    return _RAW_OBJECT.decode(text)[name]


def without_key(text: str, name: str) -> str:
    """The object's text without one of its keys; everything else as the caller wrote it."""
    parts = _RAW_OBJECT.decode(text)
    kept = [f"{msgspec.json.encode(key).decode()}:{bytes(part).decode()}" for key, part in parts.items() if key != name]
    return "{" + ",".join(kept) + "}"


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid("invalid_utf8", f"the body is not UTF-8: byte {error.start} cannot be read", status=400) from None


def _parse(raw: bytes, text: str) -> Any:
    numbers = _numbers
    numbers.exponents = numbers.out_of_range = False
    try:
        value = numbers.decoder.decode(raw)
    except RecursionError:
        _too_deep()
    except (msgspec.MsgspecError, ValueError) as error:
        _explain(text, error)
    if numbers.out_of_range:
        raise invalid("number_out_of_range", f"a number's exponent is beyond ±{MAX_EXPONENT}")
    return value


def _explain(text: str, error: Exception) -> NoReturn:
    """The standard library's parser knows line and column, and takes lone surrogates, which we name."""
    if not text.strip(_JSON_SPACE):
        raise invalid("malformed_json", "the body is empty: send a JSON object", status=400)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as wrong:
        where = f"line {wrong.lineno} column {wrong.colno} (character {wrong.pos})"
        hint = JOINED if wrong.msg == "Extra data" and text[wrong.pos] in "{[" else ""
        raise invalid(
            "malformed_json", f"malformed JSON: {wrong.msg} at {where}{hint}", status=400, position=wrong.pos
        ) from None
    except RecursionError:
        _too_deep()
    except ValueError:
        raise invalid("number_out_of_range", "a number has too many digits") from None
    place = _find_surrogate(value, "")
    if place is not None:
        raise invalid("lone_surrogate", "half of a surrogate pair (\\ud800 to \\udfff) is no character", place)
    raise invalid("malformed_json", f"malformed JSON: {error}", status=400)


def _find_surrogate(value: Any, place: str) -> str | None:
    if isinstance(value, str):
        return place if _SURROGATE.search(value) else None
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        if isinstance(key, str) and _SURROGATE.search(key):
            return place
        found = _find_surrogate(item, f"{place}/{escape(key)}")
        if found is not None:
            return found
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise invalid("malformed_json", f"malformed JSON: {name} is not JSON; leave it out or send null", status=400)


def _refuse_duplicates(text: str) -> None:
    """Two equal keys: jsonb would keep the last one only, others the first."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    raise invalid("duplicate_key", f"the key {key[:100]!r} stands twice in one object")
                seen.add(key)
        return found

    json.loads(text, object_pairs_hook=pairs)


def _refuse_nul(path: tuple[str | int, ...]) -> NoReturn:
    place = "".join(f"/{escape(part)}" for part in path)
    raise invalid("nul_character", "PostgreSQL cannot store the character U+0000: take it out", place)


def _too_deep() -> NoReturn:
    raise invalid("too_deep", f"the JSON is nested deeper than {MAX_DEPTH} levels")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def item_problem(problem: Problem, index: int, line: int | None = None) -> Problem:
    """The same problem, as that of one item of many."""
    where = f"item {index}" if line is None else f"item {index} (line {line})"
    members = {**problem.members, "item": index, **({} if line is None else {"line": line})}
    errors = [(f"/{index}{place}", detail) for place, detail in problem.errors]
    return Problem(problem.status, problem.code, f"{where}: {problem.detail}", errors=errors, **members)
