"""What every test runs under: the same drawn examples each time, annotations checked unless marked `unchecked`.

More and other examples: pytest --hypothesis-profile=long
"""

import jaxtyping
import pytest
from hypothesis import settings

settings.register_profile("course", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("course")

# What takes minutes comes first: two processes share the files in this order, and end together.
LONG = ("tests/browser/", "tests/checks/test_bank.py", "notebooks/", "tests/checks/", "tests/test_style.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: next((i for i, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG)))


@pytest.fixture(autouse=True)
def annotations(request):
    """Switch the check of annotations off for a test marked `unchecked`, and back to what it was."""
    if request.node.get_closest_marker("unchecked") is None:
        yield
        return
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
