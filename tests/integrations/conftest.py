"""What the tests of adapters share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The networks are small: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
