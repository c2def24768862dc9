"""Which behaviour a request meets: its key's script, then its own marker, then the server's faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from taskgate.local.fake_provider.behaviour import MARKER, BadBehaviour, Behaviour, Rule, from_json, from_text

OK = Behaviour()
CROWDED = from_text("429 retry_after=1").behaviour


class Chooser:
    """The settable part of the fake provider. Everything is chosen in order of arrival."""

    def __init__(
        self,
        *,
        latency: float = 0.0,
        jitter: float = 0.0,
        limit: int | None = None,
        faults: Iterable[Rule] = (),
        seed: int | None = None,
    ) -> None:
        self.latency, self.jitter, self.limit = latency, jitter, limit
        self.faults = list(faults)
        self.scripts: dict[str, list[Rule]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._random = random.Random(seed)

    def choose(self, text: str, in_flight: int) -> tuple[Behaviour, str | None]:
        """The behaviour for a request with this text, and the script's key if one matched.

        Raises BadBehaviour for a marker that cannot be understood.
        """
        for key, rules in self.scripts.items():
            if rules and key in text:
                return self._timed(self._next_of(rules)), key
        behaviour, latency = self._marked(text)
        if behaviour is None:
            behaviour = self._fault(in_flight)
        if latency is not None and behaviour.latency is None:
            behaviour = replace(behaviour, latency=latency)
        return self._timed(behaviour), None

    def set_faults(self, spec: Any) -> None:
        """Takes any of latency, jitter, limit, seed, faults; what is not named stays. Raises BadBehaviour."""
        if not isinstance(spec, dict) or not spec.keys() <= {"latency", "jitter", "limit", "seed", "faults"}:
            raise BadBehaviour("send an object with any of latency, jitter, limit, seed, faults")
        faults = spec.get("faults", [])
        if not isinstance(faults, list):
            raise BadBehaviour("faults is a list of behaviours")
        rules = [from_json(each) for each in faults]
        numbers = {name: spec[name] for name in ("latency", "jitter", "limit") if name in spec}
        for name, value in numbers.items():
            if name == "limit" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise BadBehaviour(f"{name} is a number from 0")
        self.latency = float(numbers.get("latency", self.latency))
        self.jitter = float(numbers.get("jitter", self.jitter))
        self.limit = numbers.get("limit", self.limit)
        if "seed" in spec:
            self._random = random.Random(spec["seed"])
        if "faults" in spec:
            self.faults = rules

    def set_scripts(self, spec: Any) -> None:
        """Takes `{"KEY": [behaviour, …]}`, each key replacing its own script. Raises BadBehaviour."""
        if not isinstance(spec, dict) or not all(isinstance(rules, list) for rules in spec.values()):
            raise BadBehaviour('send an object of lists: {"KEY": [{"status": 429}, {"ok": "text"}]}')
        self.scripts.update({key: [from_json(each) for each in rules] for key, rules in spec.items()})

    def forget(self) -> None:
        """Start counting the `times` of markers from the beginning."""
        self._seen.clear()

    def _next_of(self, rules: list[Rule]) -> Behaviour:
        rule = rules[0]
        if rule.times is not None and rule.times > 1:
            rule.times -= 1
        else:
            rules.pop(0)
        return rule.behaviour

    def _marked(self, text: str) -> tuple[Behaviour | None, float | None]:
        found: Behaviour | None = None
        latency: float | None = None
        for match in MARKER.finditer(text) if "[[" in text else ():
            if match[1] == "latency":
                latency = from_json({"latency": match[2].strip()}).behaviour.latency
                continue
            rule = from_text(match[2])
            if rule.times is not None:
                counted = (match[0], text)
                if self._seen[counted] >= rule.times:
                    continue
                self._seen[counted] += 1
            elif rule.share < 1.0 and self._random.random() >= rule.share:
                continue
            found = found or rule.behaviour
        return found, latency

    def _fault(self, in_flight: int) -> Behaviour:
        if self.limit is not None and in_flight > self.limit:
            return CROWDED
        for rule in self.faults:
            if rule.times == 0 or (rule.share < 1.0 and self._random.random() >= rule.share):
                continue
            if rule.times is not None:
                rule.times -= 1
            return rule.behaviour
        return OK

    def _timed(self, behaviour: Behaviour) -> Behaviour:
        if behaviour.latency is not None or not (self.latency or self.jitter):
            return behaviour
        return replace(behaviour, latency=self.latency + self._random.random() * self.jitter)
