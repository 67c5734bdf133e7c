"""20 M faults of four hosts: three questions, asked of DuckDB over Parquet and of Sail and Spark over the traces.

    python tests/benchmarks/fleet_engines.py FOLDER [--rows 20_000_000] [--only duckdb,sail,spark]

Prints the seconds of each engine side by side, the least of two, and fails when the answers are not equal. Sail needs
the extra `engines`; Spark is two executors in processes of their own (Java, and PySpark, which is fetched once).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("kit", "peers")]
import synthetic_trace as synthetic  # noqa: E402
from engines import cluster_environment, plain, sail  # noqa: E402
from msgpack_scripted import started  # noqa: E402

from wstrace_msgpack.read.trace import open_trace  # noqa: E402

HOSTS = 4
#: question -> columns that it needs, and its SQL
QUESTIONS = {
    "top 10 files": ("file", "select file, count(*) n from faults group by file order by n desc, file limit 10"),
    "rows a second": (
        "time_ns",
        "select time_ns div 1000000000 part, count(*) n from faults group by part order by part",
    ),
    "10 ms window": ("time_ns", "select count(*) n from faults where time_ns >= 1000000000 and time_ns < 1010000000"),
}
START, END = 1_000_000_000, 1_010_000_000


def make(folder: Path, rows: int) -> None:
    """The traces and their Parquet, where they are not there yet."""
    for host in range(HOSTS):
        path = folder / f"host=h{host}" / "x.wst"
        parquet = folder / "parquet" / f"h{host}.parquet"
        if parquet.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.parent.mkdir(exist_ok=True)
        exporter, context = started(path, force=True)
        exporter.export(synthetic.mappings(context.strings))
        exporter.export(synthetic.processes(context.strings))
        for batch in synthetic.faults(context.strings, rows // HOSTS, seed=host):
            exporter.export(batch)
        exporter.close()
        with open_trace(str(path)) as trace:
            trace.save(str(parquet), force=True)
        print(f"{path}: {path.stat().st_size >> 20} MiB, Parquet {parquet.stat().st_size >> 20} MiB", flush=True)


def timed(ask: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of two, and the answer."""
    found = []
    for _ in range(2):
        begin = time.perf_counter()
        answer = ask()
        found.append(time.perf_counter() - begin)
    return min(found), answer


def duckdb_times(folder: Path) -> dict[str, tuple[float, Any]]:
    """DuckDB over the Parquet."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"create view faults as from read_parquet('{folder}/parquet/*.parquet')")
        return {name: timed(lambda sql=sql: plain(connection.execute(sql.replace(" div ", " // ")).fetchall()))
                for name, (_, sql) in QUESTIONS.items()}  # fmt: skip


def spark_times(spark: Any, folder: Path) -> dict[str, tuple[float, Any]]:
    """A session of Spark or Sail over the traces."""
    found = {}
    for name, (columns, sql) in QUESTIONS.items():
        read = spark.read.format("wstrace").option("columns", columns)
        if "window" in name:
            read = read.option("pushdown", "true")
        read.load(f"{folder}/host=*/*.wst").createOrReplaceTempView("faults")
        found[name] = timed(lambda sql=sql: plain(spark.sql(sql).collect()))
    return found


def sail_times(folder: Path) -> dict[str, tuple[float, Any]]:
    """Sail over the traces."""
    from pyspark_wstrace import DefaultSource

    with sail() as spark:
        spark.dataSource.register(DefaultSource)
        return spark_times(spark, folder)


def cluster_times(folder: Path) -> dict[str, tuple[float, Any]]:
    """Two executors of Spark over the traces, in another process: PySpark is not Sail's client there."""
    done = subprocess.run([sys.executable, __file__, str(folder), "--only", "in-cluster"], env=cluster_environment(),
                          stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    return {name: (seconds, [tuple(row) for row in answer]) for name, (seconds, answer) in told.items()}


def in_cluster(folder: Path) -> None:
    """What cluster_times() starts."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1500]").config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "1500m").config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    )  # fmt: skip
    print(json.dumps(spark_times(spark, folder)))
    spark.stop()


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--only", default="duckdb,sail,spark")
    given = parser.parse_args()
    if given.only == "in-cluster":
        in_cluster(given.folder)
        return 0
    make(given.folder, given.rows)
    engines = {"duckdb": duckdb_times, "sail": sail_times, "spark": cluster_times}
    found = {name: engines[name](given.folder) for name in given.only.split(",")}
    for question in QUESTIONS:
        print(f"{question:14}", *(f"{name} {times[question][0]:6.2f} s" for name, times in found.items()))
        answers = [times[question][1] for times in found.values()]
        assert all(answer == answers[0] for answer in answers), question
    print(f"all answers are equal; load {os.getloadavg()[0]:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
