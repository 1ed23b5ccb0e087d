"""Runs Python programs in processes of their own, where Keras and its backend are fresh."""

import os
import subprocess
import sys
import textwrap

# Keras imports what it finds of these, which takes a process longer than all the rest.
WITHOUT_EXTRAS = 'import sys; sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))\n'


def run_python(code, *options, home=None, timeout=300, python=sys.executable, **environment):
    """Runs `code`, for which matplotlib and scikit-learn are not there, and returns what it prints, stripped.

    Args:
        code: the program's text.
        *options: options for the interpreter.
        home: the folder in which Keras keeps its keras.json.
        timeout: seconds.
        python: the interpreter.
        **environment: variables to set; `KERAS_BACKEND` is unset unless given.

    Raises:
        AssertionError: the program failed; holds its errors.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("KERAS_BACKEND", "PYTHONPATH")}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"} | environment
    if home is not None:
        env["KERAS_HOME"] = str(home)
    command = [python, *options, "-c", WITHOUT_EXTRAS + textwrap.dedent(code)]
    result = subprocess.run(command, env=env, cwd=os.path.sep, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
