"""The queries of docs/fleet.md find what is there, and every engine that it names gives the same answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up_fleet
import pytest
from engines import chdb_rollup, duckdb_rollup, plain, sail

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytestmark = pytest.mark.peers
PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
QUERIES = {
    heading: sql
    for heading, sql in re.findall(r"^### (.+?)\n.*?^```sql\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.S)
    if heading in made_up_fleet.FOUND
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fleet")
    made_up_fleet.make(found)
    return found


def test_the_page_has_all_queries() -> None:
    assert set(QUERIES) == set(made_up_fleet.FOUND)


@pytest.mark.parametrize("heading", QUERIES)
def test_duckdb_finds_it(folder: Path, heading: str) -> None:
    assert duckdb_rollup(folder, QUERIES[heading]) == made_up_fleet.FOUND[heading]


def test_clickhouse_finds_all(folder: Path) -> None:
    assert dict(zip(QUERIES, chdb_rollup(folder, *QUERIES.values()), strict=True)) == made_up_fleet.FOUND


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[Any]:
    with sail() as session:
        session.read.parquet(str(folder)).createOrReplaceTempView("rollup")
        yield session


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("heading", QUERIES)
def test_sail_finds_it(spark: Any, heading: str) -> None:
    assert plain(spark.sql(QUERIES[heading]).collect()) == made_up_fleet.FOUND[heading]
