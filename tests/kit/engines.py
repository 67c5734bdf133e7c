"""Engines that read through the Spark data source: Sail in a process of its own, and Spark's cluster."""

import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from required import absent

#: The version whose cluster is tried.
PYSPARK = "4.3.0"
Answer = list[tuple[object, ...]]


def needs(*modules: str) -> None:
    """Skips, or fails where the machine must have everything."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            absent(f"{module} is not installed: pip install -e '.[engines]'")


def plain(rows: Any) -> Answer:
    """Rows of any engine as tuples of texts and numbers, which compare whatever types the engine gave them."""
    return [tuple(_number(value) for value in row) for row in rows]


def _number(value: Any) -> object:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return int(value) if value == int(value) else round(float(value), 6)
    return value


def pyspark_home() -> Path:
    """The folder of the whole of PySpark, with its Java archives, fetched once from PyPI into the user's cache."""
    cache = Path(os.environ.get("WSTRACE_CACHE") or Path.home() / ".cache" / "wstrace")
    home = cache / f"pyspark-{PYSPARK}"
    if not home.exists():
        part = home.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        install = ["install", "-q", "--no-deps", "--target", str(part), f"pyspark=={PYSPARK}", "py4j==0.10.9.9"]
        done = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True, check=False)
        if done.returncode:
            absent(f"PySpark cannot be installed: {done.stderr.strip()[-300:]}")
        part.rename(home)
    return home


def cluster_environment() -> dict[str, str]:
    """The variables of a process that starts Spark's cluster, without those that a session of Sail sets."""
    home = pyspark_home()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(home), *sys.path]), "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home / "pyspark"), "SPARK_LOCAL_IP": "127.0.0.1"}  # fmt: skip


@contextmanager
def _main_has_a_file() -> Iterator[None]:
    """PySpark takes a main module without a file, as pytest's workers have, for its own doctests, which need Java."""
    main = sys.modules["__main__"]
    given = not hasattr(main, "__file__")
    if given:
        main.__file__ = __file__
    try:
        yield
    finally:
        if given:
            del main.__file__


@contextmanager
def sail() -> Iterator[Any]:
    """A Spark session that Sail answers, on a free port of this machine."""
    needs("pysail", "pyspark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark 4.2 of pandas 3, grpc of its own
        from pysail.spark import SparkConnectServer
        from pyspark.sql import SparkSession

        with _main_has_a_file():
            import pyspark.sql.connect  # noqa: F401
        server = SparkConnectServer("127.0.0.1", 0)
        server.start(background=True)
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
        try:
            yield session
        finally:
            session.stop()
            server.stop()
