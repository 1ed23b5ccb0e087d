"""`python -m keras_ocl`."""

import sys

from keras_ocl.cli import main

sys.exit(main())
