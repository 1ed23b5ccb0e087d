import os
import sys

with open(os.path.join(sys._MEIPASS, "keras_ocl", "plugin", "keras_ocl.pth")) as file:
    exec(file.read())
