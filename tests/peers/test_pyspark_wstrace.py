"""The data source of Spark: the rows that DuckDB counts, from every engine that knows Spark's Python API."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kit.synthetic_trace as synthetic
import pytest
from kit.engines import cluster_environment, needs, plain, sail
from kit.msgpack_scripted import recorded
from required import absent

from wstrace.errors import TraceFileError, UsageError
from wstrace_exporters.msgpack.read.trace import open_trace

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
