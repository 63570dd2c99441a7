"""`python -m dsbench` is the `dsbench` command."""

from dsbench.cli import main

main()
