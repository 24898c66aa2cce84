"""``python -m medfl`` is ``medfl``."""

from medfl.cli.main import main

if __name__ == "__main__":
    main()
