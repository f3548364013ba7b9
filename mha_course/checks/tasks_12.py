"""The exercises of notebook 12: a cache in fixed memory, and decoding with one."""

from collections.abc import Mapping

import torch

from mha_course.checks.task import Task, Variation
from mha_course.checks.tasks_12_decode import decode
from mha_course.checks.tasks_12_steps import (
    along_heads,
    behind,
    early,
    late,
    never_full,
    of_new,
    refused_cases,
    rest_cleared,
    up_to,
    update_cases,
    updated,
    written,
)


def _full(sizes: Mapping[str, int]) -> bool:
    return sizes["S"] == sizes["room"]


def _empty(sizes: Mapping[str, int]) -> bool:
    return sizes["length"] == 0


_SLOT_HINTS = (
    "Let 5 tokens be held: which slots do they take, counted from 0, and which one is the next?",
    "T new tokens take the slots from length to length + T, the end not included.",
)
_SHOW_HINTS = (
    "Print the shapes of k_all and of the buffer: how many slots hold a token after the call?",
    "Return the first length + T slots, those held before and the new ones: buffer[:, :, :length + T].",
)
_WRITE_HINTS = (
    "Look into the buffer after the call: are the new tokens in it?",
    "Write into the buffer that you were given, buffer[:, :, ...] = ..., so that the next call finds the tokens.",
)
_LENGTH_HINTS = (
    "Call your function twice, with the length that the first call returned: where do the second tokens go?",
    "Return length + T, where T is the number of new tokens.",
)
_PAIR_HINTS = (
    "Give k and v different numbers: which of them do you find in k_buffer, v_buffer, k_all and v_all?",
    "Keys go into k_buffer and come back first, values go into v_buffer and come back second.",
)
_AXIS_HINTS = (
    "The buffers are (B, H, room, D): count which axis your slice cuts.",
    "Tokens lie along the third axis: leave the first two whole, buffer[:, :, a:b].",
)
_START = "the new tokens are written from slot 0 on, over those that are held"
_LATE = "the new tokens are written one slot too late: a gap is left before them"
_EARLY = "the new tokens are written one slot too early: they overwrite the last one that is held"
_NOT_WRITTEN = "the tokens are not written into the buffers: the next call will not find them"
_AXIS = "the slice cuts the axis of the heads, not that of the tokens"

cache_update = Task(
    name="cache_update",
    gradients=False,
    arguments=("k_buffer", "v_buffer", "length", "k", "v"),
    results=(("k_all", ("B", "H", "S", "D")), ("v_all", ("B", "H", "S", "D")), ("length", ())),
    integers=("length",),
    written=(("k_buffer", ("B", "H", "room", "D")), ("v_buffer", ("B", "H", "room", "D"))),
    axes={"S": "token", "room": "slot"},
    reference=updated(),
    build=updated,
    cases=update_cases,
    refused=refused_cases,
    variations=(
        Variation(_START, updated(slots=lambda length, T, room: behind(0, T, room)), _SLOT_HINTS),
        Variation(
            f"{_START}, and these alone are returned",
            updated(
                slots=lambda length, T, room: behind(0, T, room),
                show=lambda buffer, new, length, T: new,
                total=lambda length, T: T,
            ),
            _SLOT_HINTS,
        ),
        *(
            Variation(_LATE, updated(slots=late, show=up_to(more), total=total), _SLOT_HINTS, _full)
            for more in (0, 1)
            for total in (lambda length, T: length + T, lambda length, T: length + T + 1)
        ),
        Variation(_EARLY, updated(slots=early), _SLOT_HINTS, _empty),
        Variation(
            _EARLY,
            updated(
                slots=early,
                show=lambda buffer, new, length, T: buffer[:, :, : max(length - 1, 0) + T],
                total=lambda length, T: max(length - 1, 0) + T,
            ),
            _SLOT_HINTS,
            _empty,
        ),
        Variation(
            "the new tokens are written at the end of the buffer, not right behind those that are held",
            updated(slots=lambda length, T, room: behind(room - T, T, room)),
            _SLOT_HINTS,
        ),
        *(
            Variation(
                f"of several new tokens the {name} alone is written",
                updated(
                    slots=lambda length, T, room: behind(length, 1, room),
                    source=of_new(own),
                    show=lambda buffer, new, length, T: buffer[:, :, : length + 1],
                    total=lambda length, T: length + 1,
                ),
                ("Let two tokens come in one call: are both in the buffer?", _SLOT_HINTS[1]),
            )
            for name, own in (("first", slice(0, 1)), ("last", slice(-1, None)))
        ),
        Variation(
            "the whole buffer is returned, with slots behind the tokens that were never filled",
            updated(show=lambda buffer, new, length, T: buffer),
            _SHOW_HINTS,
        ),
        Variation(
            "the new tokens are put behind the whole buffer, its unused slots included",
            updated(
                write=lambda buffer, slots, new: buffer,
                show=lambda buffer, new, length, T: torch.cat([buffer, new], dim=2),
            ),
            _WRITE_HINTS,
        ),
        Variation(
            "the old tokens alone are returned, without the new ones",
            updated(show=lambda buffer, new, length, T: buffer[:, :, :length]),
            _SHOW_HINTS,
        ),
        Variation(
            "the new tokens alone are returned, without those held before",
            updated(show=lambda buffer, new, length, T: new),
            _SHOW_HINTS,
        ),
        Variation("what is returned lacks its last token", updated(show=up_to(-1)), _SHOW_HINTS),
        Variation(
            "what is returned has one slot too many, which was never filled", updated(show=up_to(1)), _SHOW_HINTS
        ),
        Variation(
            _NOT_WRITTEN, updated(write=lambda buffer, slots, new: written(buffer.clone(), slots, new)), _WRITE_HINTS
        ),
        Variation(
            "the values are not written, only the keys are",
            updated(write_v=lambda buffer, slots, new: buffer),
            _PAIR_HINTS,
        ),
        Variation(
            "the slots behind the new tokens are overwritten too",
            updated(write=rest_cleared),
            (
                "Compare the buffer before and after the call, slot by slot.",
                "Write into the slots of the new tokens alone.",
            ),
        ),
        Variation(
            "keys and values have changed places in what is returned",
            updated(order=lambda k, v: (v, k)),
            _PAIR_HINTS,
        ),
        Variation(
            "keys and values have changed places: k is written into v_buffer, v into k_buffer",
            updated(source=lambda k, v: (v, k)),
            _PAIR_HINTS,
        ),
        Variation("the keys are written into v_buffer too", updated(source=lambda k, v: (k, k)), _PAIR_HINTS),
        Variation("the values are written into k_buffer too", updated(source=lambda k, v: (v, v)), _PAIR_HINTS),
        Variation(
            "the old length is returned, not the new one", updated(total=lambda length, T: length), _LENGTH_HINTS
        ),
        Variation(
            "the number of new tokens is returned as the length, without those held before",
            updated(total=lambda length, T: T),
            _LENGTH_HINTS,
        ),
        Variation(
            "the length grows by 1 in each call, whatever the number of new tokens",
            updated(total=lambda length, T: length + 1),
            _LENGTH_HINTS,
        ),
        Variation(
            _AXIS,
            updated(write=along_heads, show=lambda buffer, new, length, T: buffer[:, : length + T]),
            _AXIS_HINTS,
        ),
        Variation(_AXIS, updated(write=along_heads), _AXIS_HINTS),
        Variation(
            f"{_AXIS}, in what is returned",
            updated(show=lambda buffer, new, length, T: buffer[:, : length + T]),
            _AXIS_HINTS,
        ),
        Variation(
            "a cache that becomes exactly full is refused: its last slot is never used",
            never_full,
            (
                "Let one slot be free, and one token come: does it fit?",
                "Refuse where length + T is larger than the number of slots, not where it is equal.",
            ),
            _full,
        ),
    ),
    hints=(
        "Take buffers of 4 slots filled with -1, length 1, and one token of ones: print both buffers after the call.",
        "Three steps: refuse what does not fit; write T tokens into the slots from length on; return the first"
        " length + T slots of both buffers, and length + T.",
    ),
    shape_hint="k_all and v_all hold length + T tokens along their third axis; the other axes stay as they are.",
)

TASKS = (cache_update, decode)
