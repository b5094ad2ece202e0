#!/usr/bin/env python3
"""usage: watch_test.py PROGRAM

`tessera report --watch`: the page of a log that grows, who may read it, how it ends, and that it
sleeps when nobody asks.
"""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from run_logs import call, lines_of, write

PROGRAM = sys.argv[1]


def get(address, method="GET", **headers):
    request = urllib.request.Request(address, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listening(port):
    """The local addresses, in hexadecimal, at which something listens on this port."""
    found = []
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(name):
            with open(name, encoding="ascii") as file:
                for line in file.readlines()[1:]:
                    address, state = line.split()[1], line.split()[3]
                    if state == "0A" and address.endswith(f":{port:04X}"):
                        found.append(address.split(":")[0])
    return found


class Watched:
    def __init__(self, *arguments):
        self.process = subprocess.Popen((PROGRAM, "report", *arguments, "--watch"),
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"report: (http://127\.0\.0\.1:(\d+)/); Ctrl-C ends it\n", line)
        assert found, line + self.process.stdout.read()
        self.address, self.port = found[1], int(found[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def end(self, number):
        self.process.send_signal(number)
        assert self.process.wait(timeout=20) == 0, self.process.returncode
        assert self.process.stdout.read() == ""


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    lines = lines_of("aa", steps=30)
    write("run.jsonl", lines[:12])

    with Watched("run.jsonl") as watched:
        assert listening(watched.port) == ["0100007F"], listening(watched.port)
        status, headers, page = get(watched.address)
        assert status == 200 and "last record at step 10" in page, page[:2000]
        assert headers["Refresh"] == "5" and headers["Cache-Control"] == "no-store", headers
        write("run.jsonl", lines)
        assert "finished at step 30" in get(watched.address)[2]
        status, _, page = get(watched.address, method="HEAD")
        assert status == 200 and page == ""

        # Only this page, only read, only by this machine's names.
        assert get(watched.address + "run.jsonl")[0] == 404
        assert get(watched.address + "../run.jsonl")[0] == 404
        assert get(watched.address, method="POST")[0] == 405
        assert get(watched.address, Host="example.org")[0] == 403
        assert get(watched.address, Host=f"localhost:{watched.port}")[0] == 200
        assert get(watched.address, Host="localhost:1")[0] == 403
        with socket.create_connection(("127.0.0.1", watched.port), timeout=20) as raw:
            raw.sendall(b"hello\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400 "), "no answer"

        # Those who connect and say nothing, or too much, keep nobody waiting.
        idle = [socket.create_connection(("127.0.0.1", watched.port)) for _ in range(20)]
        idle[0].sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert get(watched.address)[0] == 200
        with socket.create_connection(("127.0.0.1", watched.port), timeout=20) as raw:
            try:
                raw.sendall(b"x" * 100000)
                assert raw.recv(100) == b""
            except ConnectionError:
                pass
        before = processor_seconds(watched.process.pid)
        time.sleep(1)
        spent = processor_seconds(watched.process.pid) - before
        assert spent < 0.2, spent

        # A log that is gone for a while is said, and comes back.
        os.rename("run.jsonl", "away")
        status, headers, page = get(watched.address)
        assert status == 500 and "run.jsonl" in page and headers["Refresh"] == "5", page
        os.rename("away", "run.jsonl")
        assert get(watched.address)[0] == 200
        for one in idle:
            one.close()
        watched.end(signal.SIGINT)
    assert not os.path.exists("report.html")

    # A port that is chosen, twice at once; several runs; the other way to end it.
    write("other.jsonl", lines_of("bb"))
    with Watched("run.jsonl", "other.jsonl", "--port", str(watched.port)) as again:
        assert again.port == watched.port
        assert "Comparison of 2 runs" in get(again.address)[2]
        text = call(PROGRAM, "report", "run.jsonl", "--watch", "--port", str(again.port), status=1)
        assert f"cannot listen on port {again.port} of 127.0.0.1" in text, text
        again.end(signal.SIGTERM)

    # What can never be shown ends it at once.
    call(PROGRAM, "report", "missing.jsonl", "--watch", status=1)
    call(PROGRAM, "report", "run.jsonl", "--watch", "--export-csv", "x", status=2)
    call(PROGRAM, "report", "run.jsonl", "--port", "80", status=2)

print("all as expected")
