# SPDX-License-Identifier: Apache-2.0
"""The sentence encoder all-MiniLM-L6-v2 in plain PyTorch: BERT's encoder, the mean of its tokens, length one.

The module's names are those of the .safetensors file, so that its weights load as they are."""
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

WIDTH, HEADS, LAYERS, INNER, POSITIONS, WORDS, EPSILON = 384, 12, 6, 1536, 512, 30522, 1e-12
SENTENCES = ("A kitten sleeps on the sofa.", "The cat is napping on the couch.",
             "Interest rates rose by half a percent.")


class Normed(nn.Module):
    """A dense layer whose output is added to a residual and normalised."""

    def __init__(self, width_in):
        super().__init__()
        self.dense = nn.Linear(width_in, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward(self, hidden, residual):
        return self.LayerNorm(self.dense(hidden) + residual)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, hidden, mask):
        query, key, value = (layer(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return mixed.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(), "output": Normed(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = Normed(INNER)

    def forward(self, hidden, mask):
        hidden = self.attention["output"](self.attention["self"](hidden, mask), hidden)
        return self.output(nn.functional.gelu(self.intermediate["dense"](hidden)), hidden)


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.register_buffer("position_ids", torch.arange(POSITIONS)[None])

    def forward(self, tokens):
        positions = self.position_ids[:, : tokens.shape[1]]
        return self.LayerNorm(self.word_embeddings(tokens) + self.position_embeddings(positions)
                              + self.token_type_embeddings.weight[0])


class SentenceEncoder(nn.Module):
    """(batch, tokens) of token numbers and a mask of the same shape to (batch, 384) unit vectors."""

    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})

    def forward(self, tokens, mask):
        hidden = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            hidden = layer(hidden, mask[:, None, None, :].bool())
        weights = mask[:, :, None].to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def load(weights: Path, device) -> SentenceEncoder:
    """The model on the device, with the file's weights; made in eval mode, without gradients."""
    with torch.device(device):
        model = SentenceEncoder()
    kept = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith("pooler.")}
    model.load_state_dict(kept)
    return model.eval().requires_grad_(False)


def tokens_of(tokenizer: Tokenizer, sentences, device):
    """Token numbers and mask, each (sentences, longest)."""
    tokenizer.enable_padding()
    tokenizer.enable_truncation(POSITIONS)
    encoded = tokenizer.encode_batch(list(sentences))
    return (torch.tensor([each.ids for each in encoded], device=device),
            torch.tensor([each.attention_mask for each in encoded], device=device))
