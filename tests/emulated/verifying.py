"""`python -m keras_ocl verify` in a process with an emulated GPU: those of the families are started with one, too."""

import functools
import sys

from keras_ocl import cli
from keras_ocl.verify import command
from tests.emulated import program, settings


def main():
    process = (*program.prefix(settings.current()), "-m", "keras_ocl.verify.process")
    command.verify = functools.partial(command.verify, process=process)
    sys.argv = ["python -m keras_ocl", "verify", *sys.argv[1:]]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
