"""A second stream of unknown name: an optional argument is tried as one."""

from collections.abc import Callable
from dataclasses import replace

from mha_course.checks.diagnosis.calling import Argument, Signature
from mha_course.checks.diagnosis.names import LIKELY_SECOND
from mha_course.checks.verdict import Verdict

NONE = Signature((), "", False)
_NO_MATCH = frozenset({"unknown", "unknown_mask", "raises", "wrong_shape", "wrong_type", "returns_nan"})
_IGNORED = "cross_reads_query_stream"
_OTHER_USE = frozenset({"queries_from_key", "query_key_exchanged", "query_tokens_among_keys"})  # it asks, or goes first


def with_second(verdict: Verdict, how: Signature, judged: Callable[[Signature], Verdict]) -> Verdict:
    """The verdict on what is right without its optional arguments: that with a second stream, if one is found.

    Args:
        verdict: without them.
        how: the signature that was called.
        judged: gives the verdict with another signature.
    """
    for name in how.spare:
        tried = _tried(name, how, judged)
        if tried is not None:
            rest = tuple(_unasked(other) for other in how.spare if other != name)
            said = f"`{name}` was taken as the second stream."
            return replace(tried, remarks=(*tried.remarks, said, *rest))
    return replace(verdict, remarks=(*verdict.remarks, *map(_unasked, how.spare)))


def _unasked(name: str) -> str:
    return f"`{name}` was never given: only calls without it were judged."


def _tried(name: str, how: Signature, judged: Callable[[Signature], Verdict]) -> Verdict | None:
    """The verdict with an argument as the source of keys and values, or as what asks; None if it is neither."""
    (first,) = how.inputs
    keys = judged(how._replace(inputs=(first, Argument(name, "context")), spare=()))
    if keys.ok:
        return keys
    asks = judged(how._replace(inputs=(first._replace(role="context"), Argument(name, "query")), spare=()))
    if asks.ok:
        return asks
    excused = {*_NO_MATCH, *_OTHER_USE} | (set() if LIKELY_SECOND.search(name) else {_IGNORED})
    return None if not keys.judged or {*keys.names} & excused else keys
