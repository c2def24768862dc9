"""`python -m taskgate.api` runs the API."""

import sys

from taskgate.api.server import main

sys.exit(main())
