"""What the command line prints when it refuses a request."""

from holdover.cli import entry as cli


def refusal(capsys, *arguments):
    """The sentence on stderr of a request that is refused with exit code 2."""
    assert cli.main(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("holdover: ")
    assert printed.err.count("\n") == 1 and printed.err.endswith((".\n", "?\n"))
    return printed.err
