#!/usr/bin/env python3
"""usage: fault_test.py PROGRAM LAUNCHER... [--case NAME]

Runs fault_program under a launcher (mpirun with its options, or `tessera
launch`), hurts a rank in the middle of a step and checks what becomes of the
job; see README.md.
"""
import os
import re
import signal
import subprocess
import sys
import threading
import time

# case: (ranks, pipeline ranks, rank to hurt, signal, seconds allowed, patterns)
WAITS = r"waits for module 'middle.far' on rank {0} \(for {1}, microbatch \d, (forward|backward)\)"
STEP = "the step function"
MODULE = r"tessera: rank 1, module 'middle.far', microbatch \d, forward: planted fault"
CASES = {
    "kill": (4, 2, 3, signal.SIGKILL, 10, [r"rank 3\b", r"signal 9|SIGKILL"]),
    "kill-first": (2, 2, 0, signal.SIGKILL, 10, [r"rank 0\b", r"signal 9|SIGKILL"]),
    "stop": (2, 2, 1, signal.SIGSTOP, 20,
             [r"rank 0 heard nothing for [34]\.?\d* s in step 2", WAITS.format(1, STEP),
              r"rank 1 gives no answer"]),
    "stop-deep": (3, 3, 2, signal.SIGSTOP, 20,
                  [r"rank [01] heard nothing", WAITS.format(2, "module 'middle'"),
                   r"rank 2 gives no answer"]),
    "stop-replica": (2, 1, 1, signal.SIGSTOP, 20, [r"rank\(?s?\)? 1\b|rank 1\b", r"dp control"]),
    "throw": (2, 2, 1, None, 10, [r"planted fault", r"[Rr]ank 1\b"]),
    "module": (2, 2, 1, None, 10, [MODULE]),
    "module-4": (4, 2, 3, None, 10, [MODULE.replace("1,", "[13],")]),
    "stack": (2, 2, 1, None, 10, [MODULE, r"frame #"]),
    "caught": (2, 2, 1, None, 10, []),
    "leave": (2, 2, 1, None, 10, [r"rank 1\b"]),
    "end": (2, 2, 1, None, 15, [r"rank 1 has ended its program in the script, after 2 steps"]),
    "end-replica": (2, 1, 1, None, 15, [r"rank 1 has ended its program", r"dp control"]),
    "config": (4, 2, 0, None, 10, [r"microbatches"]),
    "file": (2, 2, 0, None, 10, [r"tessera: rank 0 .*missing\.json"]),
}
# Faults from the beginning: the message says that they have come.
AT_ONCE = {"config": "microbatches", "file": "missing.json"}

# case: how often a text must be in the output
COUNTS = {
    "throw": {"planted fault": 1, "terminate called": 0},
    "module": {"planted fault": 1, "frame #": 0, "terminate called": 0, "uncaught": 0},
    "module-4": {"planted fault": 1, "frame #": 0, "terminate called": 0},
    "stack": {"planted fault": 1, "terminate called": 0},
    "file": {"missing.json": 1},
    "caught": {"planted fault": 0, "tessera: rank": 0, "aborted": 0},
}
failures = []


def fail(case, text):
    failures.append(case)
    print(f"FAILED {case}: {text}", flush=True)


def processes_of(program):
    """Process ids that run the program, whoever their parent is."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.readlink(f"/proc/{entry}/exe") == program:
                    found.append(int(entry))
            except OSError:
                pass
    return found


def shared_files_of(pids):
    """Files in /dev/shm that the processes have mapped or open."""
    files = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
                files.update(re.findall(r"(/dev/shm/\S+)(?! \(deleted\))$", maps.read(), re.M))
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith("/dev/shm/") and not target.endswith(" (deleted)"):
                    files.add(target)
        except OSError:
            pass
    return files


def run(case, program, launcher):
    ranks, pipeline, hurt, number, allowed, patterns = CASES[case]
    command = launcher + ["-n", str(ranks)]
    command += ["--"] if launcher[-1] == "launch" else []
    command += [program, case.split("-4")[0], str(hurt), str(pipeline)]
    environment = dict(os.environ)
    environment.pop("TORCH_SHOW_CPP_STACKTRACES", None)
    if case == "stack":
        environment["TORCH_SHOW_CPP_STACKTRACES"] = "1"
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", start_new_session=True, env=environment)
    lines, said, ready = [], [], threading.Event()

    def read():
        for line in job.stdout:
            lines.append(line)
            if AT_ONCE.get(case, "READY") in line:
                said.append(time.monotonic())
                ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    shared = set()
    try:
        if not ready.wait(60):
            fail(case, "the job did not come to its fault")
            return
        begin = said[0]
        if case not in AT_ONCE:
            mine = processes_of(program)
            shared = shared_files_of(mine)
            begin = time.monotonic()
            if number is not None:
                pid = int(re.search(r"READY \d+ (\d+)", "".join(lines)).group(1))
                os.kill(pid, number)
        try:
            job.wait(60)
        except subprocess.TimeoutExpired:
            fail(case, "the job is still there after 60 s")
            return
        seconds = time.monotonic() - begin
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        left = wait_until_gone(program)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        reader.join(10)
        text = "".join(lines)
        if case in failures:
            print(text)
    if left:
        fail(case, f"processes are left: {left}")
    if seconds > allowed:
        fail(case, f"it took {seconds:.1f} s, allowed are {allowed}")
    if (job.returncode == 0) != (case == "caught"):
        fail(case, f"the exit status is {job.returncode}")
    for wanted, count in COUNTS.get(case, {}).items():
        if text.count(wanted) != count:
            fail(case, f"'{wanted}' is {text.count(wanted)} times in the output, not {count}")
    for pattern in patterns:
        if not re.search(pattern, text):
            fail(case, f"no '{pattern}' in the output")
    if case == "config" and sum("microbatches" in line for line in lines) != 1:
        fail(case, "the message is not printed exactly once")
    remaining = [path for path in shared if os.path.exists(path)]
    if remaining:
        fail(case, f"left in /dev/shm: {remaining}")
    if case in failures:
        print(text)
    else:
        print(f"{case}: ended after {seconds:.1f} s with status {job.returncode}", flush=True)


def wait_until_gone(program):
    for _ in range(30):
        left = processes_of(program)
        if not left:
            return []
        time.sleep(0.1)
    return left


def main():
    words = sys.argv[1:]
    cases = list(CASES)
    if "--case" in words:
        at = words.index("--case")
        cases = [words[at + 1]]
        del words[at:at + 2]
    if len(words) < 2:
        sys.exit(__doc__)
    for case in cases:
        run(case, os.path.realpath(words[0]), words[1:])
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
