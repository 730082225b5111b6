"""Loggers by name."""

from atcl.loggers.base import Logger
from atcl.loggers.csv import CsvLogger
from atcl.loggers.tensorboard import TensorBoardLogger

LOGGERS: dict[str, type[Logger]] = {
    "tensorboard": TensorBoardLogger,
    "csv": CsvLogger,
}
