"""What the profiler recorded, against what ran; the file against a reader of the format."""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from mha_course.profiling import export_trace, operations
from mha_course.profiling.trace import Operation, Operations

A = torch.ones(3, 5, 7)


def work() -> list[torch.Tensor]:
    return [A @ A.mT, A @ A.mT, A.exp()]


def test_calls_and_memory() -> None:
    rows = {row.name: row for row in operations(work, top=100)}
    assert (rows["bmm"].calls, rows["bmm"].memory) == (2, 2 * 4 * 3 * 5 * 5)
    assert (rows["exp"].calls, rows["exp"].memory) == (1, A.nbytes)
    assert rows["bmm"].self_cpu_time > 0
    assert rows["bmm"].self_device_time == 0
    assert not any("memory" in name or "::" in name for name in rows)


def test_time_of_what_an_operation_calls_is_not_its_own() -> None:
    large = torch.ones(8, 256, 256)
    rows = {row.name: row for row in operations(lambda: [large @ large for _ in range(9)], top=100)}
    assert rows["matmul"].calls == rows["bmm"].calls == 9
    assert rows["matmul"].self_cpu_time < rows["bmm"].self_cpu_time


@pytest.mark.parametrize("by", ["self_cpu_time", "self_device_time", "calls", "memory"])
def test_order(by: str) -> None:
    rows = operations(work, top=4, by=by)
    assert len(rows) == 4
    assert [(-getattr(row, by), row.name) for row in rows] == sorted((-getattr(row, by), row.name) for row in rows)


def test_the_largest_are_kept() -> None:
    assert [row.name for row in operations(work, top=2, by="memory")] == ["bmm", "exp"]


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_warmup_is_not_recorded(warmup: int) -> None:
    times = []

    def fn() -> None:
        times.append(A.exp())

    rows = {row.name: row for row in operations(fn, warmup=warmup)}
    assert len(times) == warmup + 1
    assert rows["exp"].calls == 1


def test_table() -> None:
    rows = [Operation("bmm", 2, 1.5e-3, 0.0, 3 * 2**20), Operation("a_longer_name", 12, 2e-6, 0.0, -(2**19))]
    assert repr(Operations(rows)).splitlines() == [
        "operation      calls          CPU        memory",
        "bmm                2     1.500 ms      3.00 MiB",
        "a_longer_name     12     0.002 ms     -0.50 MiB",
    ]
    on_device = repr(Operations([rows[0]._replace(self_device_time=0.25)])).splitlines()
    assert on_device == [
        "operation  calls          CPU          GPU        memory",
        "bmm            2     1.500 ms   250.000 ms      3.00 MiB",
    ]


def test_a_byte_given_back_is_no_minus_zero() -> None:
    assert repr(Operations([Operation("free", 1, 0.0, 0.0, -4)])).endswith("ms      0.00 MiB")


@pytest.mark.parametrize(
    "name", ["a b.json", 'with "quotes".json', "back\\slash.json", "å.json.gz", "n" * 250 + ".json"]
)
def test_any_name_of_a_file_will_do(tmp_path: Path, name: str, capfd: pytest.CaptureFixture) -> None:
    path = export_trace(work, tmp_path / name)
    content = gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    assert json.loads(content)["traceEvents"]
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert capfd.readouterr().err == ""


def test_a_relative_path_starts_where_the_call_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert export_trace(lambda: os.chdir(tmp_path / "elsewhere"), "trace.json") == Path("trace.json")
    assert (tmp_path / "trace.json").is_file()
    assert not (tmp_path / "elsewhere" / "trace.json").exists()


def test_a_profiler_that_writes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, where PyTorch prints a line and goes on."""
    monkeypatch.setattr(profile, "export_chrome_trace", lambda self, name: None)
    with pytest.raises(OSError, match=r"the profiler could not write its trace in .*: is the disk full"):
        export_trace(work, tmp_path / "trace.json")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_written_whole(tmp_path: Path, name: str, capfd: pytest.CaptureFixture) -> None:
    older = tmp_path / name
    older.write_text("an older file")
    inode = older.stat().st_ino
    path = export_trace(work, str(tmp_path / name))
    assert path == tmp_path / name
    content = gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    events = json.loads(content)["traceEvents"]
    bmm = [event for event in events if event.get("name") == "aten::bmm"]
    assert len(bmm) == 2
    assert bmm[0]["args"]["Input Dims"] == [[3, 5, 7], [3, 7, 5]]
    assert [file.name for file in tmp_path.iterdir()] == [name], "nothing else is left there"
    assert path.stat().st_ino != inode, "another file took its place, rather than writing into it"
    assert capfd.readouterr().err == ""


def test_the_table_writes_nothing_to_stderr(capfd: pytest.CaptureFixture) -> None:
    operations(work)
    assert capfd.readouterr().err == ""


def test_a_function_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("older")
    with pytest.raises(ZeroDivisionError):
        export_trace(lambda: 1 / 0, path, warmup=0)
    assert path.read_text() == "older"
    assert [*tmp_path.iterdir()] == [path]
    operations(work)  # and the profiler can be used again


def test_an_export_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("older")

    def half(self: profile, name: str) -> None:
        Path(name).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(profile, "export_chrome_trace", half)
    with pytest.raises(OSError, match="disk full"):
        export_trace(work, path)
    assert path.read_text() == "older"
    assert [*tmp_path.iterdir()] == [path]


def test_numbers_that_are_not_ordinary_are_recorded_as_well() -> None:
    for x in (0.0, 1e-40, float("inf"), float("nan")):
        rows = operations(lambda x=x: torch.full((2, 2), x).softmax(-1), top=100)
        assert {"fill_", "_softmax"} <= {row.name for row in rows}


@pytest.mark.unchecked
class TestBadInput:
    @pytest.mark.parametrize("call", [operations, lambda fn, **_: export_trace(fn, "trace.json")])
    def test_fn(self, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(TypeError, match="fn must be a function without arguments, got int"):
            call(1)
        with pytest.raises(TypeError, match="must run its body, got a generator"):
            call(lambda: (x for x in ()))
        assert [*tmp_path.iterdir()] == []

    def test_numbers(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="top must be at least 1, got 0"):
            operations(work, top=0)
        with pytest.raises(TypeError, match="top must be an integer, got str"):
            operations(work, top="3")
        for call in (operations, lambda fn, **k: export_trace(fn, tmp_path / "trace.json", **k)):
            with pytest.raises(ValueError, match="warmup must be at least 0, got -1"):
                call(work, warmup=-1)
            with pytest.raises(TypeError, match="warmup must be an integer, got float"):
                call(work, warmup=1.5)

    @pytest.mark.parametrize("by", ["time", None, ["calls"]])
    def test_by(self, by: object) -> None:
        with pytest.raises(ValueError, match="by must be one of self_cpu_time, self_device_time, calls, memory, got"):
            operations(work, by=by)

    def test_path(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="path must be a path, got int"):
            export_trace(work, 3)
        with pytest.raises(ValueError, match=r"path must lie in a folder that exists, got .*missing"):
            export_trace(work, tmp_path / "missing" / "trace.json")
        with pytest.raises(ValueError, match="path must name a file, got the folder"):
            export_trace(work, tmp_path)
        assert [*tmp_path.iterdir()] == []

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are made by POSIX systems alone")
    def test_what_is_no_file_is_not_replaced(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match=r"path must name a file, got the device .*pipe"):
            export_trace(work, tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()

    @pytest.mark.filterwarnings("ignore")
    def test_inside_another_profiler(self, tmp_path: Path) -> None:
        with profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            with pytest.raises(RuntimeError, match="cannot record while another one does"):
                operations(work)
            with pytest.raises(RuntimeError, match="cannot record while another one does"):
                export_trace(work, tmp_path / "trace.json")

    def test_a_profiler_inside(self, tmp_path: Path) -> None:
        """The inner one ends the outer one without a word; to write a trace afterwards would end the process."""

        def own() -> None:
            with profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                work()

        with pytest.raises(RuntimeError, match="fn must not run a profiler itself"):
            operations(own)
        with pytest.raises(RuntimeError, match="fn must not run a profiler itself"):
            export_trace(own, tmp_path / "trace.json")
        assert [*tmp_path.iterdir()] == []
        assert operations(work)
