#!/usr/bin/env python3
"""usage: kill_loop.py --program training_program [--times N] [--seed S]
                    [--tessera PROGRAM] -- MPIRUN [OPTIONS]...

Trains on four ranks (two pipelines of two), kills one of them with SIGKILL at
a random moment of a random phase, and looks at what becomes of the job; every
second time under `tessera launch` when it is given. At the end of each case the
newest checkpoint must load. Prints a table; see README.md.
"""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PHASES = ("forward", "backward", "collective", "save")
ALLOWED_SECONDS = 10
STEPS = 40  # more than a case lives
DEATH = r"rank {rank} \(process {pid} on \S+\) has died; it was in (.+?)(?:; see its own .*)?$"
DOING = re.compile(
    r"^(step \d+, (module '\S+'|the step function), microbatch \d+, (forward|backward)"
    r"|step \d+, waiting for requests"
    r"|the script, (before the first step's end|after \d+ steps))")
SIGNAL = (r"^tessera: rank {rank} on host \S+ was killed by signal 9 \(SIGKILL\)",
          r"^mpirun noticed that process rank {rank} with PID \d+ on node \S+ exited on signal 9")


def runs(pid, program):
    try:
        return os.readlink(f"/proc/{pid}/exe") == program
    except OSError:
        return False


def stays(pid, program):
    for _ in range(30):
        if not runs(pid, program):
            return False
        time.sleep(0.1)
    return True


def shared_files_of(pids):
    """Files in /dev/shm that the processes have mapped."""
    files = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
                files.update(re.findall(r"(/dev/shm/\S+)$", maps.read(), re.M))
        except OSError:
            pass
    return files


class Job:
    """One run of the program; its lines as they come."""

    def __init__(self, launcher, program, directory, temporary, steps):
        self.lines, self.watch, self.pids = [], None, {}
        self.program = program
        environment = dict(os.environ, TMPDIR=temporary)
        self.process = subprocess.Popen(
            launcher + [program, directory, str(steps), "2"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
            start_new_session=True)
        self.reader = threading.Thread(target=self.read)

    def start(self, watch=None):
        self.watch = watch
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"PHASE (\d+) (\d+) (\w+) (\d+)", line)
            if found:
                self.pids[int(found[1])] = int(found[2])
                if self.watch:
                    self.watch(int(found[1]), found[3], int(found[4]))

    def wait(self, seconds):
        """Whether the job ended by itself in time; it has ended in any case."""
        try:
            self.process.wait(seconds)
            in_time = True
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            in_time = False
        self.left = [pid for pid in self.pids.values() if stays(pid, self.program)]
        for pid in self.left:
            os.kill(pid, signal.SIGKILL)
        self.reader.join(10)
        return in_time


def case(number, seed, launcher, program):
    chance = random.Random(f"{seed}/{number}")
    rank, phase = chance.randrange(4), chance.choice(PHASES)
    step, delay = chance.randrange(1, 6), chance.uniform(0, 0.03)
    work = tempfile.mkdtemp(prefix="kill_loop_")
    temporary, checkpoints = work + "/tmp", work + "/checkpoints"
    os.mkdir(temporary)
    killed, shared = [], set()

    def watch(who, name, at):
        if not killed and who == rank and name == phase and at >= step:
            shared.update(shared_files_of(job.pids.values()))
            time.sleep(delay)
            killed.append(time.monotonic())
            os.kill(job.pids[rank], signal.SIGKILL)

    problems = []
    job = Job(launcher, program, checkpoints, temporary, STEPS)
    job.start(watch)
    end = time.monotonic() + 120
    while not killed and job.process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    in_time = job.wait(60)
    seconds = time.monotonic() - killed[0] if killed else -1
    text = "\n".join(job.lines)
    doing = signalled = ""
    if not killed:
        problems.append("the job did not come to the phase")
    else:
        if not in_time or seconds > ALLOWED_SECONDS:
            problems.append(f"it took {seconds:.1f} s")
        if job.process.returncode == 0:
            problems.append("exit status 0")
        said = re.findall(DEATH.format(rank=rank, pid=job.pids[rank]), text, re.M)
        doing = said[0] if said else ""
        if not said:
            problems.append("no message says what the rank was doing")
        elif not DOING.match(doing):
            problems.append(f"'{doing}' is not of the form")
        signalled = any(re.search(form.format(rank=rank), text, re.M) for form in SIGNAL)
        if not signalled:
            problems.append("no message with the signal")
    if job.left:
        problems.append(f"processes left: {job.left}")
    if any(os.path.exists(path) for path in shared):
        problems.append(f"left in /dev/shm, of {shared}")
    if os.listdir(temporary):
        problems.append(f"left in TMPDIR: {os.listdir(temporary)}")

    # Whatever was being written: the newest whole checkpoint loads.
    again = Job(launcher, program, checkpoints, temporary, -1)
    again.start()
    in_time = again.wait(60)
    resumed = [line for line in again.lines if line.startswith("RESUMED")]
    begun = os.path.isdir(checkpoints) and any(
        entry.startswith("step_") for entry in os.listdir(checkpoints))
    if not in_time or again.process.returncode != 0 or (begun and not resumed):
        problems.append("the checkpoint does not load")
        text += "\n" + "\n".join(again.lines)
    shutil.rmtree(work)
    print(f"| {number} | {'launch' if launcher[-1] == '--' else 'mpirun'} | {rank} | {phase} | "
          f"{seconds:.1f} | {doing or '-'} | {'yes' if signalled else 'no'} | "
          f"{resumed[0].rsplit(' ', 1)[1] if resumed else '-'} | {'; '.join(problems) or 'ok'} |",
          flush=True)
    if problems:
        print(text, file=sys.stderr, flush=True)
    return not problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--tessera")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("mpirun", nargs="+")
    options = parser.parse_args()
    program = os.path.realpath(options.program)
    launchers = [options.mpirun + ["-n", "4"]]
    if options.tessera:
        launchers.append([options.tessera, "launch", "-n", "4", "--"])
    print("| case | under | rank | phase | s until down | what the others say it did | signal named"
          " | resumes at | result |\n|---|---|---|---|---|---|---|---|---|", flush=True)
    good = sum(case(number, options.seed, launchers[number % len(launchers)], program)
               for number in range(options.times))
    print(f"{good} of {options.times} as wanted")
    sys.exit(0 if good == options.times else 1)


if __name__ == "__main__":
    main()
