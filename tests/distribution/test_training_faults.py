"""A rank that fails while a model is trained: the job ends, its checkpoints are whole, and training goes on with other ranks."""

import pytest

from tests.distribution import faults
from tests.distribution.job import needs_mpi

pytestmark = needs_mpi


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    status, output, _ = faults.train(folder, 1, "reference")
    assert status == 0, output
    return folder / "reference.npz"


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_training_goes_on(reference, tmp_path, fault):
    folder = tmp_path / "disk"
    with faults.small_disk(folder) as mounted:
        if fault == "full disk" and not mounted:
            pytest.skip("only root may mount a small file system")
        faults.check(fault, folder, reference, moment=2, later=3 if fault == "saving" else 1)
