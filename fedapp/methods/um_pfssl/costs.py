"""What the paper allows to be sent (Eqs. 27 and 28), in models: |w| = 1."""


def cost_greedy(*, num_clients: int, sample_rate: float, num_rounds: int) -> float:
    """Return Cost_1 = tau K^2 n (Eq. 27), in models.

    Every sampled site uploads its model and downloads those of all K - 1 others, every round.
    """
    return sample_rate * num_clients**2 * num_rounds


def cost_bound(
    *,
    num_clients: int,
    sample_rate: float,
    num_rounds: int,
    helper_list_size: int,
    num_replaced: int,
    search_rounds: int,
    update_every: int,
) -> float:
    """Return Cost_2 = K M n / nu + F R K + tau K n (Eq. 28), in models, downloads and uploads.

    The paper leaves out the first models (w_0), the warm-up's uploads and the models that fill a
    list which is not full. A run shorter than F searches in its n rounds only.
    """
    refreshed = num_clients * helper_list_size * num_rounds / update_every
    searched = min(search_rounds, num_rounds) * num_replaced * num_clients
    uploaded = sample_rate * num_clients * num_rounds
    return refreshed + searched + uploaded
