"""`python -m bench.run`: all subjects in turn, in interleaved rounds, in one run on one machine."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from . import cost, growth, ingest, memory, plots, redelivery, report, todos
from .measurement import FULL, QUICK, BenchFailed, Measurement, Place
from .servers import started

_HERE = Path(__file__).parent
_SUBJECTS = {
    "ingest": ingest.measurements,
    "redelivery": redelivery.measurements,
    "todos": todos.measurements,
    "growth": growth.measurements,
    "memory": memory.measurements,
    "cost": cost.measurements,
}


def main() -> None:
    # Ended from outside it still ends its workers and servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arguments = _arguments()
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = dataclasses.replace(scale, rounds=arguments.rounds)
    if arguments.seconds:
        scale = dataclasses.replace(scale, seconds=arguments.seconds)
    chosen = [
        measurement
        for subject in arguments.only
        for measurement in _SUBJECTS[subject](quick=scale.quick)
        if arguments.match in f"{measurement.subject}: {measurement.name}"
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="switchboard-bench-") as name, started(Path(name)) as servers:
        results = _rounds(Place(servers, Path(name), scale), chosen)
        document = report.as_json(results, servers.versions(), quick=scale.quick, took_seconds=time.monotonic() - began)
    report.write(document, arguments.out / "results.json")
    plots.draw(results, arguments.out)
    print(report.show(results))
    print(f"\n{document['minutes']} minutes; {arguments.out / 'results.json'}")
    if results.failures:
        raise SystemExit(1)


def _rounds(place: Place, chosen: Iterable[Measurement]) -> report.Results:
    results = report.Results()
    chosen = list(chosen)
    for number in range(place.scale.rounds):
        for measurement in chosen:
            if measurement.once and number > 0:
                continue
            print(
                f"round {number + 1} of {place.scale.rounds}: {measurement.subject}: {measurement.name}",
                end="",
                flush=True,
            )
            try:
                figures = list(measurement.take(place))
            except BenchFailed as error:
                results.failures.append(f"{measurement.subject}: {measurement.name}: {error}")
                print(f"  FAILED: {error}", flush=True)
                continue
            results.add(figures)
            print("  " + ", ".join(f"{figure.value:,.4g} {figure.unit}" for figure in figures), flush=True)
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: one round, small sizes")
    parser.add_argument("--rounds", type=int, help="rounds, each of which measures everything once")
    parser.add_argument("--seconds", type=float, help="how long each rate is measured, about")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(_SUBJECTS), help=f"of {','.join(_SUBJECTS)}"
    )
    parser.add_argument("--match", default="", help="only measurements whose name holds this")
    parser.add_argument("--out", type=Path, help="folder for results.json and the plots")
    arguments = parser.parse_args()
    if arguments.out is None:
        # What the README shows is a full run's.
        arguments.out = _HERE.parent / "build" / "bench" if arguments.quick else _HERE
    return arguments


if __name__ == "__main__":
    main()
