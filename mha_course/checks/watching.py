"""A mode that sees every operation of PyTorch while it is on."""

from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """A `TorchDispatchMode` that loads no compiler, which would take seconds: nothing is compiled under it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
