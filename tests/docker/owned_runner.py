"""A runner that is killed in mid-run: `python owned_runner.py URL IMAGE` never ends by itself."""

import sys

from docker import DockerClient
from small_task import CANDIDATES, SMALL

from branchrt_gym.evaluation import Attempt
from branchrt_gym.evaluation.docker import DockerTask, DockerVerifier

if __name__ == "__main__":
    url, image = sys.argv[1:]
    task = DockerTask(image=image, command=("python", "-c", "import adder"))
    given = {"limits": SMALL, "seconds": 900.0, "workers": 2, "warm": 1}
    verifier = DockerVerifier(
        [task], [[CANDIDATES["hangs"]] * 2], client=DockerClient(base_url=url), **given
    )
    verifier.submit([Attempt(0, 0), Attempt(0, 1)])
    verifier.poll(None)
