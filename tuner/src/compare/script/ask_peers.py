#!/usr/bin/env python3
"""Times other programs' decode attention on batches that `tilewright compare` names. Needs only torch; asks the peers that can be imported.

One line of JSON a batch comes on stdin (`protocol.rs` has its fields); lines of JSON go to stdout. K, V and Q are drawn by a hash of where
an element lies, as the tuner draws them (`measure/numbers.rs`), so that both sides compute the same batch. By hand:

    python3 ask_peers.py --list          # which peers can be asked here, and why not the others
    python3 ask_peers.py --example | python3 ask_peers.py

A time is the median of cold calls: before each one, memory of four times L2 is read. A call is queued behind a delay
on the device that outlasts its launches by the host; where it can be captured, a CUDA graph's replay is timed too, and the smaller of both
is what counts. Whatever a peer plans once a step, and gathering K and V for those that know no pages, is not timed.
"""
import argparse
import functools
import gc
import json
import os
import sys

sys.dont_write_bytecode = True  # This folder may hold sources.

from batches import Batch, LeftOut, NO_TORCH, example, torch
from callers import PEERS
from clock import broken, first_line, measure


def find_all(peers, options):
    """The versions of those that can be asked, and why the others cannot."""
    found, absent = {}, []
    for name, find, _, needs_gpu in peers:
        try:
            if NO_TORCH:
                raise LeftOut(NO_TORCH)
            if needs_gpu and not options.device.startswith("cuda"):
                raise LeftOut("computes on GPUs only")
            found[name] = str(find(options))
        except Exception as error:
            absent.append((name, str(error) if isinstance(error, LeftOut) else first_line(error)))
    return found, absent


def answer(said, peers, available, make, measure, broken, say):
    """Asks each peer about a batch. False if this process is of no more use."""
    try:
        batch = make(said)
        reference = batch.expected.flatten().tolist()
    except Exception as error:
        say(kind="refused", id=said["id"], reason=first_line(error))
        return not broken()
    say(kind="reference", id=said["id"], numbers=reference)
    for name, calls in peers:
        if name not in available or name in said["skip"]:
            continue
        say(kind="begin", peer=name)
        try:
            us, error, how = measure(calls(batch), batch)
            # JSON has no number for what is none.
            say(kind="timed", peer=name, us=us, error=error if error < float("inf") else None, how=how)
        except LeftOut as why:
            say(kind="left_out", peer=name, reason=str(why))
        except Exception as error:
            say(kind="left_out", peer=name, reason=f"failed: {first_line(error)}")
        if broken():
            say(kind="restart", reason=f"the device cannot be used after {name}")
            return False
    say(kind="done", id=said["id"])
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say which peers can be asked, and end")
    parser.add_argument("--example", action="store_true", help="print the line of a small batch, and end")
    parser.add_argument("--device", default="cuda:0" if torch and torch.cuda.is_available() else "cpu")
    parser.add_argument("--fa3", help="a library with FlashAttention 3's paged operator, as in vLLM's wheel")
    parser.add_argument("--peer", action="append", help="ask this peer only; may be given several times")
    options = parser.parse_args()
    if options.example:
        print(json.dumps(example()))
        return
    unknown = set(options.peer or ()) - {peer[0] for peer in PEERS}
    if unknown:
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(peer[0] for peer in PEERS)}")
    peers = [peer for peer in PEERS if not options.peer or peer[0] in options.peer]
    # Libraries print to stdout what they like: it goes to stderr, and answers go where stdout was.
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if torch and options.device.startswith("cuda"):
        torch.cuda.set_device(options.device)
    found, absent = find_all(peers, options)
    if options.list:
        for name, what in [*found.items(), *absent]:
            print(f"{name}: {what}", file=wire)
        return

    def say(**message):
        print(json.dumps(message), file=wire, flush=True)

    versions = [("python", sys.version.split()[0]), *([("torch", torch.__version__)] if torch else []), *found.items()]
    say(kind="hello", versions=versions, peers=list(found), absent=absent)
    device = torch and torch.device(options.device)
    asked = [(name, functools.partial(calls, options=options)) for name, _, calls, _ in peers]
    for line in sys.stdin:
        go_on = answer(json.loads(line), asked, found, lambda said: Batch(said, device), measure, lambda: broken(device), say)
        gc.collect()
        if not go_on:
            return
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    if torch:
        torch.set_grad_enabled(False)
    main()
