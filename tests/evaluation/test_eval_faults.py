"""kill -9 at random moments; 200 of them with BRANCHRT_KILL_MOMENTS=200."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOMENTS = int(os.environ.get("BRANCHRT_KILL_MOMENTS", "8"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_no_verdict_is_lost_or_paid_twice_by_a_kill(tmp_path):
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, str(MOMENTS), "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["attempts"] > 10_000
    assert found["killed"] >= MOMENTS * 3 // 4  # others may have been over by then
    assert any(0 < known < found["attempts"] for known in found["known"])
