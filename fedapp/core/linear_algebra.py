"""Linear algebra that also succeeds where a library's usual routine fails."""

import torch
from torch import Tensor


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues, ascending, [d], and eigenvectors as columns, [d, d].

    matrix: real and symmetric, float64 [d, d], all finite.

    torch calls LAPACK's divide and conquer, which does not converge on rare matrices; covariances
    of few images over an encoder were such. QR iteration, which is slower, then takes its place.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not export it
        from scipy.linalg import eigh as scipy_eigh

        found = scipy_eigh(matrix.cpu().numpy(), driver="ev")
        values, vectors = (torch.from_numpy(of).to(matrix.device) for of in found)
    return values, vectors
