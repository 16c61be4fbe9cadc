import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # reference.py

import tilewright.transformers

# Each version's cache has its own integration.
collect_ignore = ["test_paged_transformers.py" if tilewright.transformers._has_allocators() else "test_transformers.py"]
