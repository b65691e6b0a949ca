"""What all tests share."""

import os

from hypothesis import settings

# By hand every run looks at new examples; in CI the same ones each time, so that whether a change
# lands is not a matter of luck.
# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("by hand", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "by hand")
