"""The benchmarks run on the emulated driver, write the rows that are documented, and end."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FIELDS = {
    "name", "ranks", "bytes", "dtype", "mode", "us", "us_min", "spread", "launches", "samples",
    "peer", "peer_us", "ratio", "limit", "limit_us", "limit_ratio", "machine", "versions", "commit",
    "driver", "mps",
}  # fmt: skip


@pytest.fixture
def launcher(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import launcher

    return launcher


@pytest.fixture
def measurement(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import harness

    options = harness.Settings("emulated", [2], [4096], 1, 3, 60, False, None)
    return harness.Measurement(options)


def run(name, *arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), "--device", "emulated", *arguments],
        env=os.environ | {"PARALLEL_TENSOR_COMMIT": "0123abcd"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_creation_writes_a_row_per_figure(tmp_path):
    done = run("bench_create.py", "--sizes", "1,4096", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "create.jsonl")
    figures = {(row["name"], row["ranks"], row["bytes"], row["mode"]) for row in rows}
    assert figures == {
        (n, 2, b, "host") for n in ("create", "drop", "create_fresh", "close") for b in (1, 4096)
    }
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["us"] > 0
        assert row["limit_us"] > 0
        assert row["limit_ratio"] == pytest.approx(row["limit_us"] / row["us"], rel=1e-3)
        assert (row["commit"], row["driver"], row["mps"]) == ("0123abcd", "emulated", False)
        assert (row["peer_us"], row["ratio"]) == (None, None)  # torch has no part in it without GPU
    assert all(row["phases"] for row in rows if row["name"].startswith("create"))


def test_all_reduce_writes_a_row_per_figure(tmp_path):
    done = run("bench_all_reduce.py", "--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "all_reduce.jsonl")
    assert [(row["name"], row["bytes"]) for row in rows] == [("barrier", 0), ("all_reduce", 4096)]
    assert all(row.keys() >= FIELDS and row["us"] > 0 for row in rows)


def test_without_output_the_emulated_driver_leaves_no_rows():
    before = sorted(BENCHMARKS.glob("results/*"))
    done = run("bench_create.py", "--quick")
    assert done.returncode == 0, done.stderr
    assert "say nothing about a GPU" in done.stdout
    assert sorted(BENCHMARKS.glob("results/*")) == before


def test_a_figure_is_the_median_of_the_launches(measurement):
    measurement.samples[2, "create"] = [[5.0, 1.0, 3.0], [9.0, 7.0, 8.0], [4.0, 4.0, 4.0]]
    figure = measurement.figure(2, "create")
    assert figure.us == statistics.median([3.0, 8.0, 4.0])
    assert (figure.lowest, figure.launches, figure.samples) == (3.0, 3, 3)
    assert figure.spread == pytest.approx((8.0 - 3.0) / 4.0)
    assert measurement.figure(4, "create") is None


def test_a_figure_that_is_missing_fails_the_run(measurement, capsys):
    import harness

    rows = harness.Rows("create", measurement)
    key = {"ranks": 2, "nbytes": 1, "dtype": "uint8", "mode": "host"}
    rows.add("create", **key, ours=None, peer=(None, None), limit=(None, None))
    assert rows.finish() == 1
    assert "no figure for create host, 2 ranks, 1 bytes" in capsys.readouterr().err


def test_the_slowest_rank_counts(launcher, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(
        "import json, os\n"
        "rank = int(os.environ['RANK'])\n"
        "record = {'key': ['x', 1], 'samples': [1.0 + rank, 3.0 - rank]}\n"
        "extra = {'key': ['only rank 0'], 'samples': [1.0]}\n"
        "with open(os.environ['BENCHMARK_FOLDER'] + f'/rank{rank}', 'w') as out:\n"
        "    print(json.dumps(record), file=out)\n"
        "    if rank == 0:\n"
        "        print(json.dumps(extra), '{\"mps\": true}', '{\"cut', sep='\\n', file=out)\n"
    )
    done = launcher.launch(str(script), 2, {}, "emulated", 30)
    assert done.figures == {("x", 1): [2.0, 3.0]}
    assert done.facts == {"mps": True}
    assert (done.overran, done.failure) == (False, "")


def test_ranks_that_take_too_long_are_ended(launcher, tmp_path, monkeypatch):
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, signal\n"
        "with open(os.environ['PIDS'] + '/' + os.environ['RANK'], 'w') as out:\n"
        "    out.write(str(os.getpid()))\n"
        "signal.pause()\n"
    )
    monkeypatch.setenv("PIDS", str(tmp_path))
    done = launcher.launch(str(script), 3, {}, "emulated", 3)
    assert done.overran
    assert done.failure == ""
    for rank in range(3):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / str(rank)).read_text()), 0)


def test_a_failing_rank_ends_the_launch_and_is_quoted(launcher, tmp_path, monkeypatch):
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, signal\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise SystemExit('no such device')\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(launcher, "PATIENCE", 0.5)
    done = launcher.launch(str(script), 2, {}, "emulated", 60)
    assert not done.overran
    assert "rank 1 ended with 1:\n  no such device" in done.failure


def test_ranks_end_with_a_parent_that_is_asked_to_end(tmp_path):
    job = f"benchmarks-{os.getpid()}"
    parent = subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "bench_create.py"), "--device", "emulated"],
        env=os.environ | {"TMPDIR": str(tmp_path), "MARKER": job},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("benchmark-*/rank1")) and time.monotonic() < deadline:
        assert parent.poll() is None
        time.sleep(0.01)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 128 + signal.SIGTERM
    assert not [pid for pid, text in environments() if f"MARKER={job}" in text]
    assert not list(tmp_path.iterdir())


def environments():
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            yield int(path.parent.name), path.read_text(errors="replace")
        except OSError:  # gone, or another user's
            continue
