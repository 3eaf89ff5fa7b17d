"""The sampler beside a measurement goes on whatever an engine answers."""

import os
import time

import pytest

from lib.measure import telemetry


@pytest.mark.parametrize("trouble", [ConnectionRefusedError(), ValueError("not a number")])
def test_an_engine_that_answers_no_numbers_leaves_a_gap_and_ends_nothing(monkeypatch, trouble):
    monkeypatch.setattr(telemetry, "EVERY_S", 0.05)
    asked = []

    def gauges():
        asked.append(1)
        if len(asked) < 3:
            raise trouble
        return {"running": 2.0}

    sampler = telemetry.Sampler(gauges, os.getpid())
    sampler.start()
    until = time.monotonic() + 20
    while len(asked) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    samples = sampler.stop()
    names = [name for _, name, _ in samples]
    assert "running" in names and 0 not in [value for _, name, value in samples if name == "running"]
    assert names.count("host_cpu_percent") >= names.count("running") + 2
