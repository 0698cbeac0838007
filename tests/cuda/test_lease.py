"""One worker a GPU: leases are exclusive, and end with their process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.backends.cuda_lease import NoDeviceFree, claim, lease_folder

UUIDS = ["aa", "bb"]


def test_each_claims_its_own_until_none_is_free(tmp_path: Path) -> None:
    leases = [claim(UUIDS, tmp_path) for _ in UUIDS]
    assert [place for place, _ in leases] == [0, 1]
    with pytest.raises(NoDeviceFree, match="all 2 GPUs"):
        claim(UUIDS, tmp_path)
    leases[0][1].close()
    place, again = claim(UUIDS, tmp_path)
    assert place == 0
    again.close()
    leases[1][1].close()


def test_a_killed_worker_gives_its_device_back(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from worker.backends.cuda_lease import claim;"
        "lease = claim(['aa'], Path(sys.argv[1])); print('mine', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=pipe, stdout=pipe)
    assert owner.stdout and owner.stdout.readline() == b"mine\n"
    with pytest.raises(NoDeviceFree):
        claim(["aa"], tmp_path)
    owner.kill()
    owner.communicate()
    claim(["aa"], tmp_path)[1].close()


def test_there_is_a_folder_everywhere() -> None:
    assert lease_folder().is_dir()


@pytest.mark.parametrize("kind", ["link", "file", "open", "mine"])
def test_a_folder_that_others_may_exchange_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, elsewhere = tmp_path / "millrace-gpus", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "link":
        folder.symlink_to(elsewhere)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "open" else 0o700)
    if kind == "mine":
        assert lease_folder() == folder
        return
    with pytest.raises(NoDeviceFree, match=f"{folder} is no folder of mode 1777"):
        lease_folder()


def test_a_lease_is_made_where_it_belongs_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "aa.lease").symlink_to(tmp_path / "made")
    with pytest.raises(NoDeviceFree, match=r"aa\.lease does not open"):
        claim(["aa"], tmp_path)
    assert not (tmp_path / "made").exists()
    os.mkfifo(tmp_path / "bb.lease")
    claim(["bb"], tmp_path)[1].close()


def test_leases_are_shared_by_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = lease_folder()
    assert folder == lease_folder() and folder.stat().st_mode & 0o7777 == 0o1777
    claim(["aa"], folder)[1].close()
    (lease,) = folder.iterdir()
    lease.chmod(0o444)  # as another user's: reading is all that is allowed
    place, again = claim(["aa"], folder)
    assert place == 0 and again.mode == "rb"
    again.close()
