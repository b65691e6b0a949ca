import signal

import pytest

from longhaul.core.errors import ExitCode
from longhaul.supervise.ends import End, group_end

RUNS = None


@pytest.mark.parametrize(
    ("codes", "stop", "end"),
    [
        ([RUNS, RUNS], None, None),
        ([0, RUNS], None, None),
        ([0, 0], None, End(ExitCode.FINISHED)),
        ([16, 16], None, End(ExitCode.START_AGAIN)),
        ([130], ExitCode.INTERRUPTED, End(ExitCode.INTERRUPTED)),
        ([1, RUNS], None, End()),
        ([RUNS, -signal.SIGKILL], None, End()),
        ([0, 1], None, End()),
        ([1, 3], None, End(ExitCode.DATA_WRONG, 1)),
        ([RUNS, 17], None, End(ExitCode.NEEDS_PERSON, 1)),
        ([2, RUNS], ExitCode.START_AGAIN, End(ExitCode.RECIPE_WRONG)),
        ([-signal.SIGTERM, 16], ExitCode.START_AGAIN, End(ExitCode.START_AGAIN)),
        ([-signal.SIGTERM, 16], None, End()),
        ([-signal.SIGINT], ExitCode.INTERRUPTED, End(ExitCode.INTERRUPTED)),
        ([-signal.SIGKILL], ExitCode.START_AGAIN, End()),
    ],
)
def test_exit_codes_tell_how_a_group_ended(codes, stop, end) -> None:
    assert group_end(codes, stop) == end
