"""What the benchmarks make of their figures: medians, percentiles, verdicts."""

from __future__ import annotations

import pytest

from bench.machine import Quiet
from bench.report import Measure, Report, number, percentile


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_the_median_is_what_a_target_is_held_to() -> None:
    assert Measure("m", [1, 9, 2], at_least=2).met
    assert not Measure("m", [1, 9, 2], at_least=2.1).met
    assert Measure("m", [1, 9, 2], at_most=2).met
    assert not Measure("m", [1, 9, 3], at_most=2).met
    assert Measure("m", [1, 9, 3]).met


def test_a_table_tells_median_lowest_highest_and_verdict() -> None:
    report = Report("Title", "")
    report.add("rate", [1000.0, 3000.0, 2000.0], "/s", at_least=2500)
    report.add("delay", 0.01234, "ms", at_most=1)
    header, _, rate, delay = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in report.table().splitlines()
    )
    assert header == ["measure", "median", "lowest", "highest", "unit", "target"]
    assert rate == ["rate", "2,000", "1,000", "3,000", "/s", "≥ 2,500 MISSED"]
    assert delay == ["delay", "0.0123", "0.0123", "0.0123", "ms", "≤ 1.00 met"]


def test_numbers_keep_three_digits() -> None:
    assert [number(value) for value in (0, 0.5, 9.876, 54.32, 999.6, 123456.7)] == [
        *("0", "0.500", "9.88", "54.3", "1,000", "123,457")
    ]


@pytest.mark.parametrize(
    ("load", "busy", "enough"), [(0.7, 1.0, True), (5.0, 0.05, True), (0.71, 0.06, False), (5.0, 1.0, False)]
)
def test_a_quiet_machine(load: float, busy: float, enough: bool) -> None:
    assert Quiet(load, busy).enough is enough
