"""A plain row of layers as a network that can be cut at its dropout and its head."""

from torch import Tensor, nn

from fedapp.learn.networks.base import Draw, Features, Network, drop


def ends_in_head(layers: nn.Sequential) -> bool:
    """Whether the last two layers are a dropout and a linear head."""
    return [type(layer) for layer in layers][-2:] == [nn.Dropout, nn.Linear]


class InRow(Network):
    """layers: a row that `ends_in_head`. Its answers are the row's own."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        *trunk, dropout, head = layers
        assert isinstance(dropout, nn.Dropout) and isinstance(head, nn.Linear)
        self.layers = nn.Sequential(*trunk)
        self.dropout, self.head, self.features = dropout, head, head.in_features

    def trunk(self, x: Tensor) -> Features:
        """Run all layers but the last two."""
        with self.in_compute_type(x.device):
            return (self.layers(x),)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Drop values of what the layers gave: [n, d]."""
        return drop(self.dropout, features[0], dropout)
