"""Tensors of a field: constants, unless they are parameters."""

from torch import Tensor, nn


def hold(field: nn.Module, **tensors: Tensor) -> None:
    """Keep tensors as they are: an `nn.Parameter` is trained, others move with the field."""
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            field.register_parameter(name, tensor)
        else:
            field.register_buffer(name, tensor)
