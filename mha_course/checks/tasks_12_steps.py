"""Writing into a cache, the first exercise of notebook 12, in steps, and its cases."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha_course.checks.task import Case, by_steps, draw

Array = Tensor  # unchecked: a search for two faults calls the steps a thousand times
Slots = Callable[[int, int, int], Any]
Pair = tuple[Array, Array]


def _case(seed: int, sizes: tuple[int, int, int, int, int, int], note: str = "") -> Case:
    """Buffers whose unused slots hold numbers too, as after an earlier sequence."""
    B, H, room, length, T, D = sizes
    k_buffer, v_buffer, k, v = draw(seed, *((B, H, n, D) for n in (room, room, T, T)))
    named = {"B": B, "H": H, "room": room, "length": length, "T": T, "S": length + T, "D": D}
    return Case(named, (k_buffer, v_buffer, length, k, v), note)


def update_cases() -> tuple[Case, ...]:
    """New tokens that fit, exactly or with room to spare."""
    return (
        _case(0, (3, 4, 11, 5, 2, 13)),
        _case(1, (2, 3, 5, 0, 5, 7), "filled at once"),
        _case(2, (2, 5, 7, 5, 2, 3), "exactly full afterwards"),
        _case(3, (3, 7, 13, 3, 2, 11)),
        _case(4, (1, 2, 7, 4, 1, 3)),
        _case(5, (2, 1, 11, 2, 3, 7)),
        _case(6, (2, 3, 13, 11, 1, 5)),
    )


def refused_cases() -> tuple[Case, ...]:
    """New tokens that do not fit; of a single one PyTorch says nothing."""
    return (
        _case(7, (2, 3, 5, 5, 1, 7), "no slot is free"),
        _case(8, (2, 3, 7, 5, 3, 11), "two slots are free"),
        _case(9, (2, 3, 5, 0, 7, 3), "more tokens than slots"),
    )


def behind(length: int, T: int, room: int) -> Any:
    """The slots right behind those that are held."""
    return torch.arange(length, length + T)


def written(buffer: Array, slots: Any, new: Array) -> Array:
    """The buffer, with new tokens in some slots."""
    buffer[:, :, slots] = new
    return buffer


def along_heads(buffer: Array, slots: Any, new: Array) -> Array:
    """The same along the wrong axis."""
    buffer[:, int(slots[0]) : int(slots[-1]) + 1] = new
    return buffer


def rest_cleared(buffer: Array, slots: Any, new: Array) -> Array:
    """The same, and zeros behind them."""
    written(buffer, slots, new)
    buffer[:, :, int(slots[-1]) + 1 :] = 0
    return buffer


def up_to(more: int) -> Callable[[Array, Array, int, int], Array]:
    """What shows the tokens that are held, and some slots more."""
    return lambda buffer, new, length, T: buffer[:, :, : length + T + more]


def of_new(own: slice) -> Callable[[Array, Array], Pair]:
    """What takes some of the new tokens alone."""
    return lambda k, v: (k[:, :, own], v[:, :, own])


def late(length: int, T: int, room: int) -> Any:
    """The slots one further on, in the last one if there are no more."""
    return behind(length + 1, T, room).clamp(max=room - 1)


def early(length: int, T: int, room: int) -> Any:
    """The slots one before."""
    return behind(max(length - 1, 0), T, room)


@by_steps
def updated(
    refuse: Callable[[int, int, int], bool] = lambda length, T, room: length + T > room,
    slots: Slots = behind,
    source: Callable[[Array, Array], Pair] = lambda k, v: (k, v),
    write: Callable[[Array, Any, Array], Array] = written,
    write_v: Callable[[Array, Any, Array], Array] | None = None,
    show: Callable[[Array, Array, int, int], Array] = lambda buffer, new, length, T: buffer[:, :, : length + T],
    order: Callable[[Array, Array], Pair] = lambda k, v: (k, v),
    total: Callable[[int, int], int] = lambda length, T: length + T,
) -> Callable[..., tuple[Array, Array, int]]:
    """A cache written to, with some steps changed.

    Args:
        refuse: from length, T and the number of slots, whether a ValueError is raised.
        slots: from the same to the slots that the new tokens take.
        source: from k and v to what goes into the first buffer and into the second.
        write: from buffer, slots and new tokens to the buffer that is used from there on.
        write_v: the same for the values, if it differs.
        show: from a buffer, its new tokens, length and T to what is returned.
        order: the two that are returned.
        total: from length and T to the new length.
    """

    def fn(k_buffer: Array, v_buffer: Array, length: int, k: Array, v: Array) -> tuple[Array, Array, int]:
        T, room = k.shape[2], k_buffer.shape[2]
        if refuse(length, T, room):
            raise ValueError(f"{length} tokens are held, {T} more do not fit into {room} slots")
        into, (first, second) = slots(length, T, room), source(k, v)
        keys, values = write(k_buffer, into, first), (write_v or write)(v_buffer, into, second)
        shown = order(show(keys, first, length, T), show(values, second, length, T))
        return *shown, total(length, T)

    return fn


def never_full(k_buffer: Array, v_buffer: Array, length: int, k: Array, v: Array) -> tuple[Array, Array, int]:
    """A cache that leaves its last slot free; no step to be joined with others, as there is no number to compare."""
    return updated(refuse=lambda length, T, room: length + T >= room)(k_buffer, v_buffer, length, k, v)
