"""`python -m foldmark` is the `foldmark` command."""

from foldmark.cli.main import main

main()
