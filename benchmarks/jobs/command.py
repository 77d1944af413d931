"""The command line of this checkout, for processes that are measured."""

from mlff_triton.cli.main import main

if __name__ == "__main__":
    main()
