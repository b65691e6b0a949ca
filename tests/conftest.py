"""What all tests share."""

import os

from hypothesis import settings

# By hand every run looks at new examples; in CI the same ones each time, so that whether a change
# lands is not a matter of luck.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
