"""Jobs for workers of other processes, which import them by name."""

import os
import time
from pathlib import Path

from longhaul.core.errors import DataError


def square(number):
    return number * number


def refuse_two(number):
    if number == 2:
        raise DataError("two: it is not wanted", "leave it out")
    return number


def break_two(number):
    if number == 2:
        raise KeyError("two")
    return number


def die_at_two(number):
    if number == 2:
        os._exit(9)
    return number


def name_yourself_and_wait(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)
