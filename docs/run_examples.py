"""Run the Python examples of Markdown files, so that a page cannot promise what fails.

Usage: ``python docs/run_examples.py FILE.md ...``

The ``python`` blocks of one file run in order and share their names, as a reader would type
them. Blocks with a prompt (``>>>``) run as doctests. Other words after ``python`` on the
opening line (``python no-run``) leave a block out.
"""

import doctest
import re
import sys
import traceback
from pathlib import Path

# The fence of a block: its indent must be the same on both ends.
BLOCK = re.compile(r"^( *)```(?:python|pycon)[ \t]*\n(.*?)^\1```[ \t]*$", re.DOTALL | re.MULTILINE)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_file(path: Path) -> tuple[int, int]:
    """Run the blocks of one file and return how many there are and how many failed."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    failed = 0
    for block in blocks:
        source = "\n".join(line.removeprefix(block[1]) for line in block[2].splitlines()) + "\n"
        first_line = text.count("\n", 0, block.start(2))
        if ">>> " in source:
            test = doctest.DocTestParser().get_doctest(
                source, names, path.name, str(path), first_line
            )
            failed += doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False)[0] > 0
            names.update(test.globs)
            continue
        try:
            # The padding makes a traceback name the line of the page.
            exec(compile("\n" * first_line + source, str(path), "exec"), names)
        except Exception:
            traceback.print_exc()
            failed += 1
    return len(blocks), failed


def main(paths: list[str]) -> int:
    """Run every file, say what ran and return the exit status."""
    results = [run_file(Path(path)) for path in paths]
    count, failed = (sum(column) for column in zip(*results, strict=True))
    print(f"{count} examples in {len(paths)} files ran, {failed} of them failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
