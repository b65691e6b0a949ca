from longhaul.core.errors import DataError as DataError
from longhaul.core.errors import LonghaulError as LonghaulError
from longhaul.core.errors import NeedsPerson as NeedsPerson
from longhaul.core.errors import RecipeError as RecipeError
from longhaul.core.errors import UsageError as UsageError
from longhaul.run.opened import Run as Run
from longhaul.run.opened import open as open  # noqa: A004
from longhaul.run.started import RunStopped as RunStopped
from longhaul.run.started import train as train

__version__: str
