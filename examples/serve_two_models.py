# SPDX-License-Identifier: Apache-2.0
"""Two models share one GPU that holds one of them at a time: they take turns by swap, and answer as before each time.

    python examples/serve_two_models.py --weights model.safetensors --tokenizer tokenizer.json [--turns N]

The first is the sentence encoder all-MiniLM-L6-v2 with its real weights; the second is the same architecture grown from
a seed. Their weights never change, so both shards are frozen and trusted: only the first sleep copies.
"""
import argparse
import sys
from pathlib import Path

import stillwake as sw
import torch
from sentence_encoder import SENTENCES, SentenceEncoder, load, tokens_of
from tokenizers import Tokenizer


class Engine:
    """A model in a shard of its own."""

    def __init__(self, name, make, device):
        self.shard = sw.shard(name, policy="frozen", trust=True)
        with self.shard.pool():
            self.model = make()
        sw.adopt(self.model, self.shard)  # they lie in it already: this is for the guard and the audit
        self.addresses = self.pointers()
        self.device = device

    def pointers(self):
        return {name: tensor.data_ptr() for name, tensor in self.model.state_dict().items()}

    @torch.inference_mode()
    def embed(self, tokens, mask):
        return self.model(tokens, mask).cpu()


def second_model(device):
    torch.manual_seed(7)
    with torch.device(device):
        return SentenceEncoder().eval().requires_grad_(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="all-MiniLM-L6-v2's model.safetensors")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its tokenizer.json")
    parser.add_argument("--turns", type=int, default=2, help="how often each model gives way to the other")
    options = parser.parse_args()
    for name, path in (("--weights", options.weights), ("--tokenizer", options.tokenizer)):
        if not path.is_file():
            parser.error(f"{name} {path}: there is no such file")
    if options.turns < 1:
        parser.error(f"--turns {options.turns}: 1 or more are possible")

    print(sw.driver())
    device = "cpu" if sw.driver().kind == "emulated" else "cuda"
    inputs = tokens_of(Tokenizer.from_file(str(options.tokenizer)), SENTENCES, device)
    real = Engine("encoder", lambda: load(options.weights, device), device)
    wanted_real = real.embed(*inputs)
    print("cosine of the first sentence with the others: "
          + ", ".join(f"{value:.3f}" for value in (wanted_real[1:] @ wanted_real[0]).tolist()))
    print(sw.sleep(real.shard))
    other = Engine("second", lambda: second_model(device), device)
    wanted_other = other.embed(*inputs)

    different = 0
    awake, asleep = (other, wanted_other), (real, wanted_real)
    for turn in range(2 * options.turns):
        report = sw.swap(awake[0].shard, asleep[0].shard)
        awake, asleep = asleep, awake
        different += not torch.equal(awake[0].embed(*inputs), awake[1])
        print(f"turn {turn + 1}: {awake[0].shard.name} awake, {asleep[0].shard.name} asleep with "
              f"{asleep[0].shard.stats().mapped} bytes of the device; {report.copied} bytes copied")
    sw.wake()
    changed = sum(engine.addresses[name] != address for engine in (real, other)
                  for name, address in engine.pointers().items())
    print(f"pointers changed: {changed} of {len(real.addresses) + len(other.addresses)}")
    print(f"embeddings different from before: {different} of {2 * options.turns}")
    return 1 if changed or different else 0


if __name__ == "__main__":
    sys.exit(main())
