"""A small repository with a bug, its hidden test, and candidates: right, wrong, hostile."""

import difflib

from branchrt_gym.evaluation.docker import Limits

WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TEST = """import unittest
from adder import add

class Test(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(2, 3), 5)

unittest.main()
"""
REPO = """mkdir /testbed && cd /testbed && mv /in/adder.py /in/README . && rm -r /in
git init -q . && git add . && git -c user.name=a -c user.email=b@c commit -qm start
"""
FILES = {"/in/adder.py": WRONG, "/in/README": "adds\n"}

SMALL = Limits(memory=192 << 20, pids=32, work=32 << 20, tmp=32 << 20, output=1 << 16)

HOG = "kept = []\nwhile True: kept.append(bytearray(1 << 20))\n"
FORKS = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
PRINTS = "for i in range(1000000): print('line', i)\n"
OUTSIDE = """import os
for path in ('/usr/bin/planted', '/etc/passwd', '/planted', '/proc/sys/kernel/hostname'):
    try: open(path, 'w').write('x'); print('WROTE', path)
    except OSError as error: print('kept out', path)
"""
NETWORK = """import os, socket
print('interfaces', os.listdir('/sys/class/net'))
places = (socket.AF_INET, ('192.0.2.1', 80)), (socket.AF_UNIX, '/var/run/docker.sock')
for family, place in places:
    try: socket.socket(family).connect(place); print('REACHED', place)
    except OSError as error: print('kept in', error)
"""


def patch(new, old=WRONG, path="adder.py"):
    lines = difflib.unified_diff(
        old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}"
    )
    return "".join(lines)


CANDIDATES = {
    "right": patch(RIGHT),
    "wrong": patch("def add(a, b):\n    return a * b\n"),
    "empty": "",
    "does not apply": patch(RIGHT, old="def other(x):\n    return x\n"),
    "hangs": patch("import time\ntime.sleep(1000)\n" + RIGHT),
    "will not die": patch(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n"
        + RIGHT
    ),
    "forks": patch(FORKS + RIGHT),
    "eats memory": patch(HOG + RIGHT),
    "prints": patch(PRINTS + RIGHT),
    "writes outside": patch(OUTSIDE + RIGHT),
    "network": patch(NETWORK + RIGHT),
    "deletes the test": patch("import os\nos.remove('test_adder.py')\nos._exit(3)\n" + RIGHT),
}
PASSES = {"right", "prints", "writes outside", "network"}


def drain(verifier, attempts):
    """Submits as capacity allows; returns the verdict of each, which came once."""
    waiting, found, held = list(attempts), {}, 0
    while waiting or held:
        free = min(verifier.capacity - held, len(waiting))
        verifier.submit(waiting[:free])
        held += free
        del waiting[:free]
        for attempt, verdict in verifier.poll(120.0):
            assert attempt not in found
            found[attempt] = verdict
            held -= 1
    return found
