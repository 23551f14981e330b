"""The examples run under torchrun, and say so when a result is wrong."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALL_REDUCE = EXAMPLES / "01_all_reduce" / "all_reduce.py"


def torchrun(ranks, script, timeout=100):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    process = subprocess.Popen(
        [*launcher, "--nproc-per-node", str(ranks), str(script)],
        env=os.environ | {"PARALLEL_TENSOR_DRIVER": "emulated", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            process.terminate()  # so that it ends the ranks, which are not in its process group
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()
            process.wait()
    return process.returncode, output, errors


def test_all_reduce_passes_all_its_checks():
    code, output, errors = torchrun(2, ALL_REDUCE)
    assert code == 0, errors
    assert "2 ranks on the emulated driver" in output
    assert "FAILED" not in output
    assert len(re.findall(r"  ok$", output, re.MULTILINE)) == 9
    accuracy = float(re.search(r"All checks passed\. .* ([0-9.]+)% of the digits", output)[1])
    assert accuracy > 95


def test_all_reduce_fails_when_the_sum_is_wrong(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import runpy\n"
        "import parallel_tensor as pt\n"
        "pt.all_reduce_ = lambda x: x\n"
        f"runpy.run_path({str(ALL_REDUCE)!r}, run_name='__main__')\n"
    )
    code, output, _ = torchrun(2, broken)
    assert code != 0
    assert re.search(r"all_reduce_ against a float64 sum .* FAILED$", output, re.MULTILINE)
    assert re.search(r"7 of 9 checks FAILED\.", output)


def test_the_page_quotes_lines_that_the_example_runs():
    page = ALL_REDUCE.with_name("README.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    source = ALL_REDUCE.read_text()
    for line in code.splitlines():
        statement = line.partition("#")[0].strip().replace("x.peer(1)", "x.peer(r)")
        assert statement in source
