"""Entry point of ``python -m medfl``, which runs medfl's command line."""

from medfl.cli.main import main

if __name__ == "__main__":
    main()
