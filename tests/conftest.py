"""What all Python tests share."""

import sys
from pathlib import Path

# For `support`, here and, with the rest of sys.path, in the processes that `ranks` starts.
sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["parallel_tensor.testing", "pytester"]
