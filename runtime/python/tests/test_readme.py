"""The README's examples run."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_complete_example_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    exec(compile(blocks[0], str(README), "exec"), {})


def test_the_example_of_the_package_runs():
    import doctest

    import tilewright

    result = doctest.testmod(tilewright)
    assert result.attempted > 3 and result.failed == 0
