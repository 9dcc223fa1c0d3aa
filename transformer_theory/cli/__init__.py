"""The command line: ``transformer-theory`` = ``python -m transformer_theory``.

Exit codes: 0 done; 1 a claim is violated, its control does not fail, or a computation did not converge; 2 the input is wrong (one line says
what was expected, what came, what to do; nothing is written); 130 interrupted.

:mod:`.commands` what each command does · :mod:`.parsers` its options · :mod:`.fields` options from an experiment · :mod:`.terminal` output
"""

import os
import sys
import traceback
from collections.abc import Sequence

from ..errors import NotConverged
from .parsers import NAME, parse


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; never raises for what a user can mend."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        options = parse(argv)
        return options.command(options)
    except SystemExit as leaving:  # --help and --version
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        return _say("interrupted; nothing was written", 130)
    except BrokenPipeError:  # the reader of our output has gone, as in `transformer-theory list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (ValueError, OSError) as error:
        return _fail(argv, error, 2)
    except NotConverged as error:
        return _fail(argv, error, 1)


def _fail(argv: list[str], error: Exception, code: int) -> int:
    if "--traceback" in argv:
        traceback.print_exc()
    return _say(str(error), code)


def _say(message: str, code: int) -> int:
    print(f"{NAME}: {' '.join(message.split())}", file=sys.stderr)
    return code
