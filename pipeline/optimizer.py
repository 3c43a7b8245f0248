"""Import path of `pipeline.settings.optimizer` in workflow files of earlier versions and in code that runs keep."""

from pipeline.settings.optimizer import *  # noqa: F403
