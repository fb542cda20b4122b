"""A SLURM cluster of one node on this machine, for as long as a test needs it.

* The daemons of Debian's packages, started by hand: no systemd, no control groups, no accounts.
* Everything lies in one temporary folder; other clusters and a munged of the system are not touched.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# Debian keeps daemons where users' paths do not lead.
PATH = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
# The node pretends to have these: what is tested is the order of things, not their speed.
CPUS = 16

SETTINGS = """
ClusterName=holdover
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
# A job that is queued again waits until the credentials of its last run are over: two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
KillWait=20
OverTimeLimit=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs of SLURM that this machine does not have, after trying to install them."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if lacking and os.getuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        install = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
        for call in (["apt-get", "update"], install):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(call, check=False, env=environment, **quiet)
        lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return lacking


@contextmanager
def cluster() -> Iterator[Path]:
    """A cluster with the partition `cpu`; gives the file that SLURM_CONF has to name."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="holdover-slurm-"))
        # munged's socket must be reachable for all.
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        settings = folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout
        told = {"host": host, "user": user.strip(), "folder": folder, "ports": free_ports(2)}
        settings.write_text(SETTINGS.format(cpus=CPUS, **told))
        environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(settings)}

        def start(*call: str) -> None:
            log = stack.enter_context((folder / f"{call[0]}.said").open("wb"))
            process = subprocess.Popen(call, env=environment, stdout=log, stderr=log)
            stack.callback(_end, process)

        munge = ["--foreground", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "seed", "log")]
        start("munged", *munge)
        _wait_for(lambda: (folder / "munge.socket").exists(), folder)
        start("slurmctld", "-D", "-i")
        start("slurmd", "-D")
        _wait_for(lambda: "idle" in _sinfo(environment), folder)
        # Jobs end with the test that sent them.
        stack.callback(subprocess.run, ["scancel", f"--user={os.getuid()}"], env=environment)
        yield settings


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _sinfo(environment: dict[str, str]) -> str:
    call = ["sinfo", "--noheader", "--format=%T"]
    return subprocess.run(call, capture_output=True, text=True, check=False, env=environment).stdout


def _wait_for(there: object, folder: Path, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            logs = {path.name: path.read_text()[-1500:] for path in folder.glob("*.[ls]*")}
            raise RuntimeError(f"SLURM did not start: {logs}")
        time.sleep(0.1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
