"""Tests of what needs no torch: `python3 tests.py`, which `cargo test` runs too."""
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

sys.dont_write_bytecode = True

import ask_peers
import callers
import clock
from batches import Batch, LeftOut, csr, example, levels, mix, number, page_rows


class Numbers(unittest.TestCase):
    def test_the_mix_is_murmurhash3s(self):
        self.assertEqual([mix(x) for x in (0, 1, 2, 0xFFFFFFFF)], [0, 0x514E28B7, 0x30F4C306, 0x81F16F39])

    def test_streams_are_apart_and_in_range(self):
        streams = [[number(stream, place) for place in range(2000)] for stream in (1, 2, 3)]
        for numbers in streams:
            self.assertTrue(all(-1 <= x < 1 for x in numbers))
            self.assertLess(abs(sum(numbers)), 100)
        self.assertLess(len({*streams[0]} & {*streams[1]}), 5)


class PageTables(unittest.TestCase):
    # Two roots of two pages, two nodes of one page each below both, two requests below each of those; lengths end inside of the last page.
    ROWS = [[9, 8, 7, 1], [9, 8, 7, 2], [9, 8, 6, 3], [9, 8, 6, 4], [5, 0, 10, 11], [5, 0, 10, 12], [5, 0, 13, 14], [5, 0, 13, 15]]
    LENS = [49, 50, 51, 52, 53, 54, 55, 64]

    def test_rows_end_with_their_lengths(self):
        self.assertEqual(page_rows([1, 2, -1, 3, 4, 5], 3, [17, 33], 16), [[1, 2], [3, 4, 5]])

    def test_compressed_rows(self):
        self.assertEqual(csr([[1, 2], [3]], [20, 16], 16), ([0, 2, 3], [1, 2, 3], [4, 16]))

    def test_a_regular_tree_falls_into_its_levels(self):
        tree = levels(self.ROWS, self.LENS)
        self.assertEqual(tree[0], [(0, 4, [9, 8]), (4, 8, [5, 0])])
        self.assertEqual(tree[1], [(0, 2, [7]), (2, 4, [6]), (4, 6, [10]), (6, 8, [13])])
        self.assertEqual([node[:2] for node in tree[2]], [(i, i + 1) for i in range(8)])
        # Every request finds its pages again, in order.
        for request, row in enumerate(self.ROWS):
            on_path = [node[2] for level in tree for node in level if node[0] <= request < node[1]]
            self.assertEqual(sum(on_path, []), row)

    def test_the_example_is_a_regular_tree(self):
        said = example()
        rows = page_rows(said["page_table"], said["max_pages"], said["seq_lens"], said["page_size"])
        self.assertEqual([len(level) for level in levels(rows, said["seq_lens"])], [1, 4, 64])
        self.assertEqual({page for row in rows for page in row}, {*range(said["pages"])})

    def test_nothing_shared_is_one_level(self):
        self.assertEqual(len(levels([[1, 2], [3, 4]], [32, 32])), 1)

    def test_nodes_are_parted_even_where_a_page_comes_again_below_other_parents(self):
        tree = levels([[1, 9], [2, 9]], [32, 32])
        self.assertEqual(tree, [[(0, 1, [1, 9]), (1, 2, [2, 9])]])

    def test_what_is_not_regular_is_left_out(self):
        for rows, lens, why in [
            ([[1, 2], [1]], [32, 16], "different numbers of pages"),
            ([[1, 2], [1, 2]], [32, 31], "inside of a page"),
            ([[9] * i + list(range(100 * i, 100 * i + 12 - i)) for i in range(12)], [192] * 12, "levels"),
        ]:
            with self.assertRaisesRegex(LeftOut, why):
                levels(rows, lens)


class Measuring(unittest.TestCase):
    CPU, GPU = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")

    def measure(self, device, errors, times, replayed=None, replay_us=None):
        """Calls named by their keys in `errors`, which find such an output and take so long; a replay of each finds `replayed`."""
        def call(name):
            def run():
                if isinstance(errors[name], Exception):
                    raise errors[name]
                return errors[name]
            return run
        calls = {name: call(name) for name in errors}
        replays = mock.Mock()

        def median(run, _):
            return replay_us if run is replays.replay else times[next(name for name in calls if calls[name] is run)]
        captured = mock.Mock(side_effect=RuntimeError("no capture"), return_value=None)
        if replayed is not None:
            captured = mock.Mock(return_value=(replays, replayed))
        batch = SimpleNamespace(device=device, tolerance=1e-2, error=lambda out: out)
        with mock.patch.multiple(clock, median_us=median, replay=captured, broken=lambda _: False):
            return clock.measure(calls, batch)

    def test_the_fastest_right_result_counts(self):
        nan = float("nan")
        for errors, times, found in [
            ({"": 1e-3}, {"": 5.0}, (5.0, 1e-3, "called")),
            ({"a": 1e-3, "b": 2e-3}, {"a": 5.0, "b": 4.0}, (4.0, 2e-3, "b, called")),
            ({"a": 1e-3, "b": 0.5}, {"a": 5.0, "b": 4.0}, (5.0, 1e-3, "a, called")),
            ({"a": 1e-3, "b": nan}, {"a": 5.0, "b": 4.0}, (5.0, 1e-3, "a, called")),
            ({"a": RuntimeError("no"), "b": 1e-3}, {"b": 4.0}, (4.0, 1e-3, "b, called")),
        ]:
            self.assertEqual(self.measure(self.CPU, errors, times), found)
        with self.assertRaisesRegex(RuntimeError, "why"):
            self.measure(self.CPU, {"a": RuntimeError("why")}, {})

    def test_a_replay_counts_where_it_can_be_had_and_is_right(self):
        errors, times = {"": 1e-3}, {"": 50.0}
        self.assertEqual(self.measure(self.GPU, errors, times, 1e-3, 40.0), (40.0, 1e-3, "graph"))
        self.assertEqual(self.measure(self.GPU, errors, times, 1e-3, 60.0), (50.0, 1e-3, "called"))
        # What was launched on another stream is not in the graph.
        self.assertEqual(self.measure(self.GPU, errors, times, float("nan"), 3.0), (50.0, 1e-3, "called"))
        with mock.patch("sys.stderr"):
            self.assertEqual(self.measure(self.GPU, errors, times), (50.0, 1e-3, "called"))

    def test_calls_are_timed_behind_a_flush_and_a_delay_and_the_first_is_dropped(self):
        torch, log = mock.MagicMock(), []
        milliseconds = iter([99.0] + [0.02, 0.03, 0.01] * 5)
        torch.cuda.Event.side_effect = lambda **_: SimpleNamespace(
            record=lambda: log.append("event"), elapsed_time=lambda _: next(milliseconds))
        torch.cuda._sleep.side_effect = lambda cycles: log.append("delay" if cycles >= 1e6 else "short delay")
        with mock.patch.multiple(clock, torch=torch, flush=lambda _: log.append("flush")):
            self.assertEqual(clock.median_us(lambda: log.append("run"), self.GPU), 20.0)
        self.assertEqual(log[:1] + log[1:6] * 16, log)
        self.assertEqual(log[1:6], ["flush", "delay", "event", "run", "event"])


class Conversation(unittest.TestCase):
    def talk(self, peers, skip=(), broken=(), make=None):
        """What is said about a batch, and whether the process goes on; the device is broken after the named peers."""
        said, begun = [], []

        def say(**message):
            said.append(message)
            begun.extend([message["peer"]] if message["kind"] == "begin" else [])
        numbers = SimpleNamespace(flatten=lambda: SimpleNamespace(tolist=lambda: [0.5]))
        make = make or (lambda _: SimpleNamespace(expected=numbers))
        asked = [(name, lambda batch, name=name: name) for name in peers]

        def measure(name, _):
            if isinstance(peers[name], Exception):
                raise peers[name]
            return peers[name]
        go_on = ask_peers.answer({"id": 4, "skip": list(skip)}, asked, {*peers} - {"absent"}, make, measure,
                                 lambda: bool(begun) and begun[-1] in broken, say)
        return said, go_on

    def test_each_peer_is_named_before_it_is_asked(self):
        infinity = float("inf")
        said, go_on = self.talk({
            "right": (2.0, 1e-3, "graph"), "wrong": (1.0, infinity, "called"), "unable": LeftOut("knows no pages"),
            "failing": ValueError("first\nsecond"), "skipped": None, "absent": None}, skip=["skipped"])
        self.assertTrue(go_on)
        self.assertEqual(said, [
            {"kind": "reference", "id": 4, "numbers": [0.5]},
            {"kind": "begin", "peer": "right"}, {"kind": "timed", "peer": "right", "us": 2.0, "error": 1e-3, "how": "graph"},
            {"kind": "begin", "peer": "wrong"}, {"kind": "timed", "peer": "wrong", "us": 1.0, "error": None, "how": "called"},
            {"kind": "begin", "peer": "unable"}, {"kind": "left_out", "peer": "unable", "reason": "knows no pages"},
            {"kind": "begin", "peer": "failing"}, {"kind": "left_out", "peer": "failing", "reason": "failed: ValueError: first"},
            {"kind": "done", "id": 4}])

    def test_a_broken_device_ends_the_process_after_the_peer_is_told(self):
        said, go_on = self.talk({"bad": RuntimeError("illegal address"), "next": None}, broken=["bad"])
        self.assertFalse(go_on)
        self.assertEqual([message["kind"] for message in said], ["reference", "begin", "left_out", "restart"])

    def test_a_batch_that_cannot_be_made_is_refused(self):
        said, go_on = self.talk({}, make=mock.Mock(side_effect=MemoryError("17 GB")))
        self.assertTrue(go_on)
        self.assertEqual(said, [{"kind": "refused", "id": 4, "reason": "MemoryError: 17 GB"}])

    def test_peers_that_cannot_be_asked_say_why(self):
        def missing(_):
            raise ImportError("No module named 'x'\nmore")

        def old(_):
            raise LeftOut("is for compute capability 9 only")
        peers = [("x", missing, None, False), ("y", old, None, False), ("z", lambda _: 1.5, None, False), ("gpu", old, None, True)]
        with mock.patch.object(ask_peers, "NO_TORCH", None):
            found, absent = ask_peers.find_all(peers, SimpleNamespace(device="cpu"))
        self.assertEqual(found, {"z": "1.5"})
        self.assertEqual(absent, [("x", "ImportError: No module named 'x'"), ("y", "is for compute capability 9 only"),
                                  ("gpu", "computes on GPUs only")])

    def test_peers_that_take_no_fp8_say_so_before_they_are_called(self):
        batch = mock.Mock(fp8=True)
        batch.no_fp8 = lambda *why: Batch.no_fp8(batch, *why)
        for calls, why in [(callers.fa3_calls, "beside a query of FP8"), (callers.sdpa_calls, "no K and V of FP8")]:
            with self.assertRaisesRegex(LeftOut, why):
                calls(batch, SimpleNamespace(fa3=None))
        batch.fp8 = False
        self.assertIsNone(batch.no_fp8())

    def test_peers_have_names_of_their_own_and_those_that_gather_come_last(self):
        names = [peer[0] for peer in callers.PEERS]
        self.assertEqual(len({*names}), len(names))
        self.assertTrue(all(name.startswith("torch") for name in names[-2:]))


if __name__ == "__main__":
    unittest.main()
