#!/usr/bin/env python3
"""What a plan for unlike hosts writes: samples by their speed, and a host file without those that it
leaves idle, as `tessera launch` takes it.

usage: planned_hosts_test.py PROGRAM
"""
import json
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
MILLISECONDS = {"fast": 1, "slow": 3, "old": 100}  # of a sample's forward
HOSTS = {"old": "ant", "slow": "bee", "fast": "cat"}


def described(folder, named=True):
    """One layer, which leaves replicas alone, on three hosts of one device each."""
    layer = {"name": "layer", "kind": "block", "parameters": 0, "output_elements_per_sample": 1,
             "forward_seconds_per_sample": {kind: {"1": 1e-3 * milliseconds}
                                            for kind, milliseconds in MILLISECONDS.items()}}
    (folder / "model.json").write_text(json.dumps(
        {"name": "one", "global_batch_size": 24, "precision": "fp32",
         "activation_checkpointing": "none", "layers": [layer]}))
    nodes = [{"device": kind, "count": 1, "inter_node_gbit_per_s": 100,
              **({"host": host} if named else {})} for kind, host in HOSTS.items()]
    (folder / "cluster.json").write_text(json.dumps(
        {"name": "three", "devices": {kind: {"memory_gib": 16} for kind in MILLISECONDS},
         "nodes": nodes}))


def plan(folder, *options, status=0):
    done = subprocess.run(
        [PROGRAM, "plan", "--model-file", "model.json", "--cluster-file", "cluster.json", *options],
        cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (options, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


with tempfile.TemporaryDirectory() as name:
    work = pathlib.Path(name)
    described(work)
    said = plan(work, "--leave-out", "-o", "config.json", "--write-hostfile", "hosts")
    written = json.loads((work / "config.json").read_text())
    hosts = (work / "hosts").read_text()
    lines = [line for line in hosts.splitlines() if not line.startswith("#")]
    # A fast device has done three samples when a slow one has done one.
    samples = dict(zip(lines, written["replica_samples"], strict=True))
    assert samples == {"cat slots=1": 18, "bee slots=1": 6}, (hosts, written)
    assert written["ddp"] is True and "# ant stays idle" in hosts, (hosts, written)
    assert "(idle: ant)" in said and "start it with: tessera launch -n 2 --hostfile hosts" in said, said
    assert "microbatch sizes " in said, said
    command = subprocess.run(
        [PROGRAM, "launch", "-n", "2", "--hostfile", "hosts", "--dry-run", "--", "true"],
        cwd=work, capture_output=True, text=True, timeout=60)
    assert command.returncode == 0 and "hosts" in command.stdout, command
    # All three, where they are asked for: the old one takes what every replica takes at least.
    plan(work, "-o", "all.json", "--write-hostfile", "all_hosts")
    every = json.loads((work / "all.json").read_text())["replica_samples"]
    all_hosts = (work / "all_hosts").read_text().split()[::2]
    assert sum(every) == 24 and len(every) == 3, every
    assert dict(zip(all_hosts, every, strict=True))["ant"] == min(every), (all_hosts, every)
    listed = plan(work)
    assert "of equal replicas" in listed, listed
    described(work, named=False)
    said = plan(work, "--write-hostfile", "hosts", status=2)
    assert "has no host name" in said, said
