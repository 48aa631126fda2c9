"""What players and boards tell, where it is not what vkconv reads: DeviceError, which names the field."""

import io
import json
import tarfile

import numpy as np
import pytest

from vkconv.compilers.runner import answer_of, compiled_of
from vkconv.core import DeviceError, DType
from vkconv.phone.board import device_of, unpack
from vkconv.phone.results import CONDITIONS, kept_output
from vkconv.phone.told import Conditions, read_line

RESULT = {"pack": "files/a.plan", "label": "relu", "status": "ok", "why": ""}


def test_what_is_no_result_is_left_out():
    for line in ("", "noise", "[]", "1", '{"a": 1}', '{"pack": "files/a', "[" * 20_000):
        assert read_line(line) is None
    assert read_line(json.dumps(RESULT)) == RESULT


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"status": 1}, r"\$\.status"),
        ({"outputs": [{}]}, r"\$\.outputs\[0\]"),
        ({"conditions": None}, r"\$\.conditions"),
        ({"conditions": {"gpu_mhz": "fast"}}, r"\$\.conditions\.gpu_mhz"),
        ({"conditions": {"only_cpu": "{}"}}, r"\$\.conditions\.only_cpu"),
        ({"times": {"us_median": 2.5}}, "us_min"),
        ({"shared": "a"}, r"\$\.shared"),
    ],
)
def test_a_result_of_other_types_names_the_field(change, field):
    with pytest.raises(DeviceError, match=f"line of 'relu' is not as vkconv reads it: .*{field}"):
        read_line(json.dumps(RESULT | change))


def test_each_condition_that_rows_tell_has_a_type():
    assert [name for name, _ in CONDITIONS] == list(Conditions.__struct_fields__)


def test_an_archive_that_is_none_or_cut_off(tmp_path):
    packed = io.BytesIO()
    with tarfile.TarFile(fileobj=packed, mode="w") as archive:
        for name in ("a/x.bin", "../../y.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"123"))
    made = unpack(packed.getvalue(), tmp_path / "got")
    assert made == [tmp_path / "got" / "a" / "x.bin", tmp_path / "got" / "y.bin"]
    assert [path.read_bytes() for path in made] == [b"123"] * 2
    for data in (b"", b"x" * 2000, packed.getvalue()[:514]):
        with pytest.raises(DeviceError, match="the archive that was sent"):
            unpack(data, tmp_path / "no")


def test_an_output_of_another_size():
    values = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(kept_output("y", values.tobytes(), DType.F32, (2, 3)), values.reshape(2, 3))
    with pytest.raises(DeviceError, match="output y was sent as 20 bytes, and 2x3 of f32 has 24"):
        kept_output("y", values[:5].tobytes(), DType.F32, (2, 3))


def test_answers_that_are_none():
    with pytest.raises(DeviceError, match="no report of a device"):
        device_of(b"[" * 20_000)
    with pytest.raises(DeviceError, match=r"gpu: .* gave no answer, but 'MESA: warning'"):
        answer_of("MESA: warning\n", "gpu")
    with pytest.raises(DeviceError, match=r"gave another answer than vkconv reads: .*\$\.outcome"):
        compiled_of({"outcome": 1}, 1.0, "gpu")
