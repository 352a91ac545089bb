# SPDX-License-Identifier: Apache-2.0
"""A real model sleeps and wakes in PyTorch: the same tensors, the same addresses, the same answers.

    python examples/pytorch_sleep.py --weights model.safetensors --tokenizer tokenizer.json [--device N]
"""
import argparse
import sys
from pathlib import Path

import stillwake as sw
import torch
from sentence_encoder import SENTENCES, load, tokens_of
from tokenizers import Tokenizer


def attempt(use):
    """What a use of the model answers, in a few words."""
    try:
        return f"{use():.6f}"
    except RuntimeError as error:
        return f"raises: {str(error).split(':')[1].strip()}" if "stillwake" in str(error) else f"raises: {error}"


def facts(model, shard, inputs):
    """What a user can see of the model now, by name."""
    weight = model.embeddings.word_embeddings.weight
    seen = {
        "id(parameter)": hex(id(weight)),
        "address of its memory": hex(sw.address(weight)),
        "device bytes of the shard": f"{shard.stats().mapped:,}",
        "pinned host bytes": f"{shard.stats().host_pinned:,}",
        "sum of the weights": attempt(lambda: weight.double().sum().item()),
    }
    if not shard.is_awake:
        seen["... through host_view"] = attempt(lambda: sw.host_view(weight).double().sum().item())
    with torch.inference_mode():
        seen["cosine of two sentences"] = attempt(lambda: torch.dot(*model(*inputs)[:2]).item())
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="all-MiniLM-L6-v2's model.safetensors")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its tokenizer.json")
    options = parser.parse_args()
    for name, path in (("--weights", options.weights), ("--tokenizer", options.tokenizer)):
        if not path.is_file():
            parser.error(f"{name} {path}: there is no such file")

    print(f"PyTorch {torch.__version__}, {sw.driver()}")
    device = "cpu" if sw.driver().kind == "emulated" else "cuda"
    inputs = tokens_of(Tokenizer.from_file(str(options.tokenizer)), SENTENCES, device)
    shard = sw.shard("encoder")
    model = load(options.weights, device)
    print(sw.adopt(model, shard))
    addresses = [sw.address(tensor) for tensor in model.state_dict().values()]
    columns = [("awake", facts(model, shard, inputs))]
    slept = sw.sleep(shard)
    columns.append(("asleep", facts(model, shard, inputs)))
    woken = sw.wake(shard)
    columns.append(("awake again", facts(model, shard, inputs)))
    print(slept, woken, sep="\n")

    print(f"\n{'':26}" + "".join(f"{title:>34}" for title, _ in columns))
    for row in columns[1][1]:
        print(f"{row:26}" + "".join(f"{told.get(row, ''):>34}" for _, told in columns))
    after = [tensor.data_ptr() for tensor in model.state_dict().values()]
    changed = sum(before != now for before, now in zip(addresses, after))
    print(f"\npointers changed: {changed} of {len(after)}")
    same = columns[0][1]["cosine of two sentences"] == columns[2][1]["cosine of two sentences"]
    return 1 if changed or not same else 0


if __name__ == "__main__":
    sys.exit(main())
