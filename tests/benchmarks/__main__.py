"""`python -m tests.benchmarks`: every figure beside its budget. Prints; the tests decide nothing by it."""

from __future__ import annotations

from tests.benchmarks import bench_cold_start, bench_search, bench_sweep, bench_warm_plan

ROW = "{:<26}{:>9}{:>9}{:>9} {:<4}{:>7}  {}"


def main() -> None:
    print(ROW.format("", "median", "min", "max", "", "budget", ""))
    for bench in (bench_cold_start, bench_warm_plan, bench_sweep, bench_search):  # cold first: see bench_cold_start
        for figure in bench.measure():
            numbers = [f"{value:.2f}" for value in (figure.value, figure.low, figure.high)]
            budget = "" if figure.budget is None else f"{figure.budget:g}"
            print(ROW.format(figure.name, *numbers, figure.unit, budget, figure.verdict), flush=True)


if __name__ == "__main__":
    main()
