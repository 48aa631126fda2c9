"""What a slow machine leaves out of make test."""

from thin import thin


def test_a_fast_machine_runs_all_and_a_slower_one_fewer():
    shares = [thin(seconds) for seconds in (5, 36, 72, 126, 360, 3600)]
    assert shares[:2] == [1, 1] and shares == sorted(shares)
    assert 5 <= thin(126) <= 7  # 3.5 times as slow
