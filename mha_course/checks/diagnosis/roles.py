"""Which of a module's linear maps has which role: by their names, by their order, or one map in several roles."""

import itertools
from collections.abc import Iterator

from mha_course.checks.diagnosis.projections import Found

Roles = dict[str, list[Found]]


def unstacked(maps: list[Found]) -> list[Found]:
    """One parameter (4, E, E) or (3, E, E) as the maps that it holds."""
    made = []
    for found in maps:
        n = found.weight.shape[0]
        if found.weight.ndim == 3 and n in (3, 4) and (found.role in ("", "qkv") or len(maps) == 1):
            biases = [None] * n if found.bias is None or len(found.bias) % n else found.bias.chunk(n)
            made += [found._replace(role=r, weight=w, bias=b)
                     for r, w, b in zip("qkvo", found.weight, biases, strict=False)]  # fmt: skip
        else:
            made.append(found)
    return made


def assigned(maps: list[Found]) -> Iterator[tuple[dict[str, list[Found]], str]]:
    """Roles to maps: by name, the unnamed in the order q, k, v, o, then in other orders."""
    by_role: dict[str, list[Found]] = {}
    for found in maps:
        by_role.setdefault(found.role, []).append(found)
    unnamed = by_role.pop("", [])
    present = set("".join(by_role))
    missing = [letter for letter in "qkvo" if letter not in present]
    if not unnamed or len(unnamed) > 4:
        yield by_role, ""
        return
    if missing[:3] == ["q", "k", "v"] and len(unnamed) == 1 and unnamed[0].weight.ndim == 2:
        yield {**by_role, "qkv": unnamed}, ""
    take = min(len(missing), len(unnamed))
    for n in (take, 0):
        for letters in itertools.permutations(missing, n):
            given = {letter: [found] for letter, found in zip(letters, unnamed, strict=False)}
            named = "" if list(letters) == missing[:n] else "the roles of the projections were found by trying"
            yield {**by_role, **given}, named
        if take == 0:
            return


_FULL = {"q": "queries", "k": "keys", "v": "values", "o": "output"}


def shared(maps: list[Found]) -> Iterator[tuple[Roles, str]]:
    """Roles to maps where there are fewer maps than roles: what has none of its own takes another's."""
    named: Roles = {}
    for found in maps:
        named.setdefault(found.role, []).append(found)
    if any(len(group) > 1 for group in named.values()) or any(len(role) > 1 for role in named) or len(maps) > 4:
        return
    inner = [found for found in maps if found.role != "o"] or maps
    choices = [[found for found in named.get(letter, inner)] for letter in "qkv"]
    outputs: list[Found | None] = [*named.get("o", [])] or [None]
    if len(maps) == 1:
        outputs = [maps[0], None]
    for o in outputs:
        for q, k, v in itertools.product(*choices):
            roles = {"q": [q], "k": [k], "v": [v]} | ({"o": [o]} if o is not None else {})
            users: dict[str, list[str]] = {}
            for letter, (found,) in roles.items():
                users.setdefault(found.name, []).append(_FULL[letter])
            several = [f"{name} is used for {' and '.join(uses)}" for name, uses in users.items() if len(uses) > 1]
            if several and len(users) == len(maps):
                yield roles, "; ".join(several)


def with_one_output(roles: Roles) -> Iterator[Roles]:
    """The roles with one output map at a time, if there are several and they are not one a head."""
    outputs = roles.get("o", [])
    if len(outputs) < 2 or len(outputs) == len(roles.get("q", [])):
        yield roles
        return
    for one in reversed(outputs):
        yield {**roles, "o": [one]}
