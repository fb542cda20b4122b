"""One of several processes that make many short runs in one start: a JSON file has their arguments."""

import json
import os
import sys
from pathlib import Path

from holdover.cli import entry as cli
from holdover.runs import processes


def main() -> int:
    # A command ends its process group; these share one.
    cli.leave_processes = lambda: None
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        code = cli.main(arguments)
        if code:
            print(f"{arguments} ended with {code}", file=sys.stderr)
            return code
    processes.close_talk()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
