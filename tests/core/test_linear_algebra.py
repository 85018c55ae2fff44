"""Eigenvalues by hand, and the same where the usual routine does not converge."""

import pytest
import torch

from fedapp.core.linear_algebra import eigh


def refused(matrix):
    raise torch.linalg.LinAlgError("the algorithm failed to converge")


@pytest.mark.parametrize("fails", [False, True])
def test_eigenvalues_by_hand_and_of_a_singular_matrix(fails, monkeypatch):
    if fails:
        monkeypatch.setattr(torch.linalg, "eigh", refused)
    values, vectors = eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(values, torch.tensor([1.0, 3.0]).double())
    torch.testing.assert_close(vectors.abs(), torch.full((2, 2), 0.5).sqrt().double())
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, vectors = eigh(rows.T @ rows)
    torch.testing.assert_close((vectors * values) @ vectors.T, rows.T @ rows)
    torch.testing.assert_close(values[:5], torch.zeros(5).double(), atol=1e-12, rtol=0)
