"""``python -m dflash_hf`` is ``dflash-hf``."""

from dflash_hf.cli import main

if __name__ == "__main__":
    main()
