"""`python -m dsbench` is the `dsbench` command."""

from dsbench.cli.main import main

main()
