"""The data source of Spark: the rows that DuckDB counts, from every engine that knows Spark's Python API."""

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

import kit.synthetic_trace as synthetic
import pytest
from kit.msgpack_scripted import recorded
from required import absent

from wstrace.errors import TraceFileError, UsageError
from wstrace_exporters.msgpack.read.trace import open_trace

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


pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
N = 20_000
#: what engines answer; `faults` has all rows of all files
QUERIES = {
    "by file": "select host, file, count(*) n from faults group by host, file order by n desc, host, file limit 10",
    "by time": "select time_ns div 10000000 part, count(*) n from faults group by time_ns div 10000000 order by part",
    "window": "select count(*) n, min(va) low, max(va) high from faults where time_ns >= 4000000 and time_ns < 9000000",
    "by process": "select pid, tid, count(*) n from faults group by pid, tid order by pid, tid",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three traces of two hosts, one of them in parts."""
    pytest.importorskip("pyarrow")
    found = tmp_path_factory.mktemp("traces")
    for n, (host, options) in enumerate([("a", {}), ("a", {"rotate_bytes": 40_000}), ("b", {})]):
        (found / f"host={host}").mkdir(exist_ok=True)
        recorded(found / f"host={host}" / f"{n}.wst", N, seed=n, **options)
    return found


@pytest.fixture(scope="module")
def truth(folder, tmp_path_factory):
    """DuckDB's answers over the Parquet of the same traces."""
    duckdb = pytest.importorskip("duckdb")
    parquet = tmp_path_factory.mktemp("parquet")
    for path in sorted(folder.glob("*/?.wst")):
        with open_trace(str(path)) as trace:
            (parquet / path.parent.name).mkdir(exist_ok=True)
            trace.save(str(parquet / path.parent.name / f"{path.stem}.parquet"))
    with duckdb.connect() as connection:
        connection.execute(f"create view faults as from read_parquet('{parquet}/*/*', hive_partitioning = true)")
        return {
            name: plain(connection.execute(sql.replace(" div ", " // ")).fetchall()) for name, sql in QUERIES.items()
        }


def source(path: Path | str, **options: object) -> Any:
    """The source, as engines make it."""
    needs("pyspark")
    pytest.importorskip("pyarrow")
    from pyspark_wstrace import DefaultSource

    return DefaultSource({"path": str(path), **{name: str(value) for name, value in options.items()}})


def rows(path: Path | str, **options: object) -> list[dict[str, Any]]:
    """All rows of a source, task by task."""
    made = source(path, **options)
    reader = made.reader(made.schema())
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def test_its_rows_are_those_of_the_files_whatever_the_size_of_a_task(folder):
    for per_task in (700, 5_000, 2_000_000):
        made = source(folder, rowsPerPartition=per_task, columns="pid,va,file,trace")
        reader = made.reader(made.schema())
        tasks = reader.partitions()
        batches = [batch for task in tasks for batch in reader.read(task)]
        assert sum(batch.num_rows for batch in batches) == 3 * N
        assert (len(tasks) == 1) == (per_task > 3 * N)
    with open_trace(str(folder / "host=b" / "2.wst")) as trace:
        whole = trace.batches("page_fault", ["va"]).to_numpy()["va"].astype("<i8")
    mine = [row["va"] for row in rows(folder / "host=b" / "2.wst", columns="va", rowsPerPartition=3_000)]
    assert mine == whole.tolist()


def test_batches_are_in_memory_that_is_freed_without_pythons_lock(folder):
    """A task of Sail holds that lock while its queue is full; what empties the queues must not need it."""
    arrow = pytest.importorskip("pyarrow")
    made = source(folder / "host=b" / "2.wst", columns="time_ns,va,time,file,trace")
    reader = made.reader(made.schema())
    batches = reader.read(reader.partitions()[0])
    next(batches)
    before = arrow.total_allocated_bytes()
    batch = next(batches)
    assert arrow.total_allocated_bytes() - before >= batch.nbytes > 8 * batch.num_rows


def test_a_window_of_wall_time_and_processes(folder):
    path = folder / "host=b" / "2.wst"
    every = sorted(rows(path, columns="time,time_ns,pid"), key=lambda row: row["time_ns"])
    at, end = every[N // 4]["time"], every[N // 2]["time"]
    found = rows(path, startTime=at.isoformat(), endTime=end.isoformat(), columns="time,pid")
    assert len(found) == sum(at <= row["time"] < end for row in every)
    assert rows(path, pid="1,2", columns="pid") == []
    assert len(rows(path, pid=f"1,{synthetic.PID}", columns="pid")) == N


def test_snapshots_have_their_process_and_time(folder):
    found = rows(folder / "host=b" / "2.wst", stream="resident")
    assert {(row["pid"], row["time_ns"]) for row in found} == {(synthetic.PID, 3_000_000)}
    assert sum(row["pages"] for row in found) == sum(range(1, 31))


def test_a_partial_file_gives_what_it_has_and_its_loss_is_a_row(tmp_path):
    recorded(tmp_path / "x.wst", N)
    whole = (tmp_path / "x.wst").read_bytes()
    (tmp_path / "x.wst").write_bytes(whole[: len(whole) // 2])
    assert N / 4 < len(rows(tmp_path, columns="pid")) < N
    ledger = rows(tmp_path, stream="ledger")
    assert {row["state"] for row in ledger} == {"cut"}
    assert ("file_cut", 1, True) in {(row["stage"], row["n"], row["is_loss"]) for row in ledger}


def test_a_file_that_is_no_trace_is_one_line_or_a_row(tmp_path):
    recorded(tmp_path / "a.wst", 500)
    (tmp_path / "b.wst").write_bytes(b"\0" * 5000)
    with pytest.raises(TraceFileError, match=r"b\.wst is no wstrace trace file") as refused:
        rows(tmp_path, columns="pid")
    assert "\n" not in str(refused.value)
    assert len(rows(tmp_path, columns="pid", ignoreCorruptFiles="true")) == 500
    unread = [row for row in rows(tmp_path, stream="ledger") if row["stage"] == "file_unreadable"]
    assert [(Path(row["trace"]).name, row["state"]) for row in unread] == [("b.wst", "unreadable")]
    assert "no wstrace trace file" in unread[0]["who"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"strem": "x"}, "no option 'strem'"),
        ({"stream": "page_falt"}, "page_falt"),
        ({"columns": "pid,fil"}, "no column 'fil'"),
        ({"startTime": "yesterday"}, "write a time"),
        ({"ignoreCorruptFiles": "maybe"}, "neither true nor false"),
        ({"pid": "seven"}, "'seven' is not"),
    ],
)
def test_a_wrong_option_is_one_line(folder, options, shown):
    with pytest.raises(UsageError, match=shown) as refused:
        source(folder, **options).schema()
    assert "\n" not in str(refused.value)


def test_other_stores_are_refused_by_name():
    needs("pyspark")
    from pyspark_wstrace.reader import Request

    for url in ("s3a://bucket/x.wst", "file:/x.wst", "dbfs:/x.wst"):
        with pytest.raises(UsageError, match="no such store"):
            Request.of({"path": url}).places()


def test_a_relative_path_is_that_of_the_driver(folder, monkeypatch):
    """Executors have working directories of their own."""
    monkeypatch.chdir(folder)
    made = source("host=b", columns="pid")
    reader = made.reader(made.schema())
    tasks = reader.partitions()
    monkeypatch.chdir("/")
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == N


@pytest.fixture(scope="module")
def spark():
    with sail() as session:
        yield session


def test_sail_answers_as_duckdb_does(folder, truth, spark):
    needs("pysail")
    from pyspark_wstrace import DefaultSource

    spark.dataSource.register(DefaultSource)
    read = spark.read.format("wstrace").option("rowsPerPartition", N // 5)
    read.load(f"{folder}/host=*/*.wst").createOrReplaceTempView("faults")
    assert {name: plain(spark.sql(sql).collect()) for name, sql in QUERIES.items()} == truth


def test_many_tasks_of_sail_that_fill_their_queues_end(tmp_path, spark):
    """More tasks than threads, each with more batches than a queue takes: such a query stopped for ever."""
    needs("pysail")
    from pyspark_wstrace import DefaultSource

    for n in range(3):
        recorded(tmp_path / f"{n}.wst", N, rows=50, seed=n)
    spark.dataSource.register(DefaultSource)
    read = spark.read.format("wstrace").option("rowsPerPartition", N // 5)
    read.load(str(tmp_path)).createOrReplaceTempView("many")
    for _ in range(2):
        counted = spark.sql("select trace, file, count(*) n, max(time_ns) from many group by trace, file").collect()
        assert sum(row["n"] for row in counted) == 3 * N


CLUSTER = """
import json, os, sys
from pyspark.sql import SparkSession
folder, *queries = sys.argv[1:]
spark = (SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "1g").config("spark.sql.shuffle.partitions", "4").getOrCreate())
read = spark.read.format("wstrace").option("rowsPerPartition", 7000)
read.load(folder + "/host=*/*.wst").createOrReplaceTempView("faults")
for sql in queries:
    print(json.dumps([list(row) for row in spark.sql(sql).collect()]))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_cluster_of_spark_answers_as_duckdb_does(folder, truth):
    """Two executors in processes of their own, which find the source by its name alone."""
    import json

    if shutil.which("java") is None:
        absent("there is no Java on this machine (tests/install-peers)")
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(folder), *QUERIES.values()],
        capture_output=True, text=True, timeout=1200, env=cluster_environment(), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [plain(json.loads(line)) for line in done.stdout.splitlines()]
    assert dict(zip(QUERIES, answers, strict=True)) == truth
