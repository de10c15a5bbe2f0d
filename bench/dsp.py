#!/usr/bin/env python3
"""dsp.py [BINARY] -- ways to shard clips over 8 and 64 GPUs, as `sheaf simulate` predicts them.

Spatial-temporal diffusion transformers of 720M and 3B parameters (stdit-720m, stdit-3b), one clip
of 0.5M to 4M tokens for each group of ranks that shares one: frames of 1024 tokens, bf16, ZeRO 3,
recompute=full. Dynamic sequence parallelism (dsp) against Ulysses, a ring and Megatron's sequence
parallelism, on the cluster of share/clusters/h100-sxm.yaml. Nothing runs: bytes and memory are
exact, seconds are predicted. Ulysses and sequence parallelism share out heads, so a clip is on as
many ranks as there are heads at most; the others have further clips.

Columns: bytes that a GPU sends for the stream and for attention in a step, in all and as a multiple
of dsp's; time of a step, tokens per second and GPU; memory of a GPU, and whether 80 GiB hold it.
"""
import json
import subprocess
import sys

SHEAF = sys.argv[1] if len(sys.argv) > 1 else "build/release/sheaf"
MODELS = {"stdit-720m": 16, "stdit-3b": 32}  # heads
TOKENS = [512, 1024, 2048, 4096]  # frames of 1024
WAYS = ["dsp", "ulysses", "ring", "sp"]


def simulate(model, frames, ranks, way):
    shared = ranks if way in ("dsp", "ring") else min(ranks, MODELS[model])
    clips = ranks // shared
    settings = [f"model.name={model}", f"model.num_frames={frames}", f"batch.global={clips}",
                "batch.micro=1", f"mesh.dp={clips}", "precision.compute=bf16", "parallel.zero=3",
                "parallel.recompute=full"]
    if way == "sp":
        settings += [f"mesh.tp={shared}", "parallel.sequence=true"]
    else:
        settings += [f"mesh.cp={shared}", f"parallel.context={way}"]
    command = [SHEAF, "simulate", *settings, "--cluster", "share/clusters/h100-sxm.yaml", "--json"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        return shared, found.stderr.strip().splitlines()[-1]
    return shared, json.loads(found.stdout)


def stream_bytes(result, way):
    """Of a rank, without weights and gradients."""
    kinds = ("all-gather", "reduce-scatter", "all-reduce") if way == "sp" else ("all-to-all",)
    axis = "tp" if way == "sp" else "cp"
    return sum(s["sent_bytes"] for s in result["sent"]
               if s["kind"] in kinds and s["axes"] == [axis] and not s["scalar"]) / result["ranks"]


def main():
    print("| model | tokens | GPUs | way | ranks of a clip | sent, GiB | of dsp | step, s "
          "| tokens/s/GPU | memory, GiB | 80 GiB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        for ranks in (8, 64):
            for frames in TOKENS:
                least = None
                for way in WAYS:
                    shared, r = simulate(model, frames, ranks, way)
                    head = f"| {model} | {frames / 1024:g}M | {ranks} | {way} | {shared} |"
                    if isinstance(r, str):
                        print(head, r, flush=True)
                        continue
                    sent = stream_bytes(r, way)
                    least = least or sent
                    print(head, f"{sent / 2**30:.2f} | {sent / least:.2f} |"
                          f" {r['step_ms'] / 1e3:.2f} |"
                          f" {r['tokens_per_s'] / ranks:.0f} | {r['peak_bytes'] / 2**30:.1f} |"
                          f" {'fits' if r['fits'] else 'too much'} |", flush=True)


main()
