import sys

from taskgate.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
