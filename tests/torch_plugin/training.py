# SPDX-License-Identifier: Apache-2.0
"""A small training that a test runs twice: once beside Stillwake, once without, and then compares every byte."""
import contextlib

import torch
import torch.distributed as dist
from places import device
from torch.distributed.tensor import DTensor

DEPTH, WIDTH, WORDS = 2, 24, 37  # 37 rows on two ranks: 19 and 18, and a row of padding


class Block(torch.nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width + 1)
        self.down = torch.nn.Linear(2 * width + 1, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Words(torch.nn.Module):
    """Tied weights, aliased and transposed buffers, uneven rows, a parameter of one row, one of a single number."""

    def __init__(self, depth=DEPTH):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(depth))
        self.gain = torch.nn.Parameter(torch.ones(1, WIDTH))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.linspace(0, 1, 8 * WIDTH).view(8, WIDTH))
        self.register_buffer("tied", self.table)
        self.register_buffer("turned", self.table.t())
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, words):
        self.seen += words.numel()
        x = self.embed(words) + self.turned.t()[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.gain)


def local(tensor):
    """The tensor with memory of its own that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tensors_in(tree, name=""):
    """Every tensor in nested dictionaries and lists, by name."""
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from tensors_in(value, f"{name}.{key}")
    elif isinstance(tree, (list, tuple)):
        for at, value in enumerate(tree):
            yield from tensors_in(value, f"{name}.{at}")


class Training:
    """Model, optimizer and EMA; the data of a step is made from its number and the rank."""

    def __init__(self, make_model, make_optimizer, with_ema=True):
        torch.manual_seed(20)
        self.device = device()
        with self.device if self.device.type != "cpu" else contextlib.nullcontext():
            self.model = make_model()
        self.optimizer = make_optimizer(self.model)
        self.ema = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()
                    } if with_ema else {}
        self.steps = 0
        self.losses = []

    def data(self):
        rank = dist.get_rank() if dist.is_initialized() else 0
        made = torch.Generator().manual_seed(1000 * self.steps + rank)
        return torch.randint(WORDS, (3, 8), generator=made).to(self.device)

    def loss(self):
        words = self.data()
        return torch.nn.functional.cross_entropy(self.model(words).flatten(0, 1).float(), words.roll(-1, 1).flatten())

    def step(self, count=1):
        for _ in range(count):
            def closure():
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.loss()
                loss.backward()
                return loss

            self.losses.append(self.optimizer.step(closure).item())
            self.steps += 1
            with torch.no_grad():
                named = dict(self.model.named_parameters())
                for name, average in self.ema.items():
                    average.lerp_(named[name].detach(), 0.1)
        return self

    def named(self):
        """Every tensor of the training by name, as it is: parameters, buffers, optimizer state and settings, EMA."""
        yield from self.model.named_parameters()
        yield from self.model.named_buffers(remove_duplicate=False)
        yield from tensors_in(list(self.optimizer.state.values()), "state")
        yield from tensors_in([{key: value for key, value in group.items() if key != "params"}
                               for group in self.optimizer.param_groups], "groups")
        yield from tensors_in(self.ema, "ema")

    def content(self):
        """A copy of everything that the training is."""
        return {name: local(tensor).detach().clone() for name, tensor in self.named()}

    def expect_same_as(self, control):
        """Bit for bit."""
        assert self.losses == control.losses
        mine, its = self.content(), control.content()
        assert list(mine) == list(its)
        for name, tensor in mine.items():
            assert same_bytes(tensor, its[name]), f"{name} differs from the control run's"


def compiled_while_it_slept(training, job, counter):
    """Sleeps, wakes and steps three times; how many frames were compiled before that, and after."""
    before = counter.frame_count
    assert before > 0
    for _ in range(3):
        job.sleep()
        job.wake()
        training.step()
    return before, counter.frame_count


def same_bytes(one, other):
    """Whether type, shape and every byte are the same, on whatever devices; NaN equals itself, and -0 is not 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = (each.cpu().contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return one.equal(other)
