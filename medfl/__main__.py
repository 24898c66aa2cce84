"""Run the command line by ``python -m medfl``."""

from medfl.cli.main import main

if __name__ == "__main__":
    main()
