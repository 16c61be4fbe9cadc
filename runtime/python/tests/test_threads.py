"""Threads and processes."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from reference import random_batch
from tilewright import Attention, Heads

HEADS = Heads(8, 2, 64)


def test_threads_share_an_attention_and_its_plans():
    made = Attention(HEADS, 16, dtype="float32")
    batches = [random_batch(seed, HEADS) for seed in range(3)]
    plans = [made.plan(*batch.csr) for batch in batches]
    expected = [plan.run(batch.q, batch.cache("NHD")).tobytes() for plan, batch in zip(plans, batches)]

    def work(thread):
        for turn in range(20):
            number = (thread + turn) % 3
            batch = batches[number]
            plan = plans[number] if turn % 4 else made.plan(*batch.csr)
            assert plan.run(batch.q, batch.cache("NHD")).tobytes() == expected[number]
            plan.set_lengths(batch.block_tables[1])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def times_beside_a_run(requests):
    """When a run of one thread began and ended, and when this thread went on meanwhile."""
    pages = 256
    made = Attention(Heads(8, 8, 128), 16, dtype="float32", threads=1)
    indices = np.random.default_rng(0).integers(0, 64, requests * pages).astype(np.int32)
    plan = made.plan(np.arange(requests + 1, dtype=np.int32) * pages, indices, np.full(requests, 16, np.int32))
    cache, q = np.zeros((64, 2, 16, 8, 128), np.float32), np.zeros((requests, 8, 128), np.float32)
    out = np.empty_like(q)
    times = {}

    def run():
        times["begin"] = time.perf_counter()
        plan.run(q, cache, out)
        times["end"] = time.perf_counter()

    thread = threading.Thread(target=run)
    ticks = []
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.002)
    return times["begin"], times["end"], ticks


def test_a_run_releases_the_gil():
    # As many requests as take long enough to see something, optimised or not.
    for requests in (4, 24, 144, 864):
        begin, end, ticks = times_beside_a_run(requests)
        if end - begin > 0.1:
            break
    assert end - begin > 0.03, "too short to see anything"
    # With the GIL held, there would be none but at the very ends.
    meanwhile = [tick for tick in ticks if begin < tick < end]
    assert len(meanwhile) > 5, (len(meanwhile), end - begin)


def in_a_new_process(script):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=environment, timeout=60
    )


def test_an_import_starts_nothing():
    done = in_a_new_process(
        """
        import os, sys
        import tilewright
        assert len(os.listdir("/proc/self/task")) == 1, "a thread was started"
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        assert "libcuda" not in open("/proc/self/maps").read() and "nvrtc" not in open("/proc/self/maps").read()
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_process_makes_its_own():
    done = in_a_new_process(
        """
        import os
        from array import array
        import numpy as np
        from tilewright import Attention, Heads
        q, cache = np.zeros((1, 8, 64), np.float32), np.zeros((1, 2, 16, 2, 64), np.float32)
        make = lambda: Attention(Heads(8, 2, 64), 16, dtype="float32")
        parents = make()
        plan = parents.plan([0, 1], [0], [4])
        plan.run(q, cache)
        child = os.fork()
        if child == 0:
            for call in (lambda: parents.plan([0, 1], [0], [4]), lambda: plan.run(q, cache)):
                try:
                    call()
                except RuntimeError as error:
                    assert "make the Attention in the child process" in str(error)
                else:
                    os._exit(1)
            make().plan([0, 1], [0], [4]).run(q, cache)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_what_the_runtime_has_to_say_is_logged(caplog, tmp_path):
    with caplog.at_level("INFO", logger="tilewright"):
        Attention(HEADS, 16, dtype="float32", threads=3)
    said = [record.getMessage() for record in caplog.records if record.name == "tilewright"]
    assert any("measured on" in text for text in said), said
