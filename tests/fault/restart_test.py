#!/usr/bin/env python3
"""usage: restart_test.py TRAINING_PROGRAM TESSERA

`tessera launch --max-restarts`: ranks are killed, the job goes on from its
newest whole checkpoint, and its losses and saved states are those of a run that
nobody disturbed, bit for bit.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile

STEPS = 9


def run(directory, victims, restarts):
    """Kills rank `r` when it is in phase `p` of step `s` for each (r, p, s), in order."""
    command = [sys.argv[2], "launch", "-n", "4", "--max-restarts", str(restarts), "--",
               sys.argv[1], directory, str(STEPS), "2"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace")
    lines, waiting = [], list(victims)
    for line in job.stdout:
        lines.append(line)
        found = re.search(r"PHASE (\d+) (\d+) (\w+) (\d+)", line)
        if found and waiting and (int(found[1]), found[3], int(found[4])) == waiting[0]:
            os.kill(int(found[2]), signal.SIGKILL)
            waiting.pop(0)
    text = "".join(lines)
    assert not waiting, f"never came to {waiting}:\n{text}"
    return job.wait(60), text


def losses(text):
    return dict(re.findall(r"^LOSS (\d+) (\S+)$", text, re.M))  # the last time counts


def states(text):
    return dict(re.findall(r"^STATE (\d+) (\S+)$", text, re.M))


with tempfile.TemporaryDirectory() as work:
    status, whole = run(work + "/whole", [], 0)
    assert status == 0, whole
    assert len(losses(whole)) == STEPS, whole
    # In the backward, and while the second checkpoint is written.
    status, killed = run(work + "/killed", [(1, "backward", 3), (2, "save", 5)], 2)
    assert status == 0, killed
    assert killed.count("restart ") == 2, killed
    assert re.search(r"^RESUMED \S+/step_2 2$", killed, re.M), killed
    # The save of step 6 had begun; it is there whole or not at all.
    assert re.search(r"^RESUMED \S+/step_(4 4|6 6)$", killed, re.M), killed
    assert losses(killed) == losses(whole), (losses(killed), losses(whole))
    assert states(whole) and states(killed).items() <= states(whole).items(), (killed, whole)
    assert states(killed)["8"] == states(whole)["8"]
    # No more restarts than asked for.
    status, given_up = run(work + "/given_up", [(0, "forward", 1), (3, "forward", 3)], 1)
    assert status == 137, (status, given_up)
    print("losses after two kills are those of an undisturbed run:", len(losses(whole)), "steps")
