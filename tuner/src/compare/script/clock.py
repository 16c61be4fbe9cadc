"""Time on the device, of cold calls."""
import functools
import statistics
import sys
import time

from batches import torch

SAMPLES, WARMUPS = 15, 3


@functools.lru_cache(maxsize=1)
def other_memory(device):
    """Memory to read between two calls, and where its sum goes."""
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20) if device.type == "cuda" else 64 << 20
    return torch.ones(cache, dtype=torch.float32, device=device), torch.empty((), dtype=torch.float32, device=device)


def flush(device):
    memory, total = other_memory(device)
    torch.sum(memory, dim=0, out=total)


def median_us(run, device):
    """Median time of a cold call; `run` was called before."""
    if device.type != "cuda":
        times = []
        for _ in range(SAMPLES + 1):
            flush(device)
            begin = time.perf_counter()
            run()
            times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times[1:])
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    run()
    host = time.perf_counter() - begin
    torch.cuda.synchronize(device)
    # Clocks are about 2 GHz: three times as long as the host takes to launch, and not below half a millisecond.
    delay, times = int(max(5e-4, min(3 * host, 0.1)) * 2e9), []
    for _ in range(SAMPLES + 1):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush(device)
        torch.cuda._sleep(delay)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize(device)
        times.append(first.elapsed_time(last) * 1e3)
    return statistics.median(times[1:])


def replay(run, batch):
    """A replay of the captured call, and its error: a capture may have missed what was launched elsewhere."""
    aside = torch.cuda.Stream(batch.device)
    aside.wait_stream(torch.cuda.current_stream(batch.device))
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream(batch.device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    out.fill_(float("nan"))
    graph.replay()
    return graph, batch.error(out)


def first_line(error):
    """What went wrong, in a line."""
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:200]}".rstrip(": ")


def measure(calls, batch):
    """(time, error, how) of the fastest way to call a peer whose result is right."""
    found, failed = [], []
    for name, run in calls.items():
        try:
            for _ in range(WARMUPS):
                out = run()
            error = batch.error(out)
            found.append((median_us(run, batch.device), error, ", ".join(filter(None, [name, "called"]))))
        except Exception as error_of_call:
            failed.append(error_of_call)
            if broken(batch.device):
                break
            continue
        if batch.device.type == "cuda":
            try:
                graph, error = replay(run, batch)
                if error <= batch.tolerance:
                    found.append((median_us(graph.replay, batch.device), error, ", ".join(filter(None, [name, "graph"]))))
            except Exception as error_of_capture:
                print(f"{name or 'the call'} cannot be captured: {first_line(error_of_capture)}", file=sys.stderr)
                if broken(batch.device):
                    break
    if not found:
        raise failed[0]
    # A wrong result may well be the fastest: it counts only if there is no other.
    return min(found, key=lambda result: (not result[1] <= batch.tolerance, result[0]))


def broken(device):
    """Whether nothing can be computed on the device any more."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
        return torch.ones(1, device=device).item() != 1
    except Exception:
        return True
