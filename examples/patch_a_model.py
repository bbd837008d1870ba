"""A small Llama of mlx-lm, with random weights, before and after `metile.patch`.

    python examples/patch_a_model.py            # needs mlx-lm: pip install mlx-lm

Prints the report of the patch, then generates the same tokens with both, and restores the model.
"""

from __future__ import annotations

import argparse

import mlx.core as mx
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

import metile_mlx as metile

VOCABULARY = 256


def model(layers: int) -> llama.Model:
    """A Llama with random weights, in evaluation mode."""
    mx.random.seed(0)
    made = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=128,
            num_hidden_layers=layers,
            intermediate_size=256,
            num_attention_heads=4,
            rms_norm_eps=1e-5,
            vocab_size=VOCABULARY,
        )
    )
    made.eval()
    return made


def continued(made: llama.Model, prompt: mx.array, count: int) -> list[int]:
    """The tokens that the model finds most likely after the prompt."""
    cache, given, tokens = make_prompt_cache(made), prompt, []
    for _ in range(count):
        given = mx.argmax(made(given, cache=cache)[:, -1:], axis=-1)
        tokens.append(given.item())
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()

    made = model(options.layers)
    prompt = mx.array([[72, 101, 108, 108, 111]])
    expected = continued(made, prompt, options.tokens)

    report = metile.patch(made, sample=prompt)
    print(report)
    assert report, "nothing was swapped"
    assert continued(made, prompt, options.tokens) == expected, "the tokens differ"
    print(f"the same {options.tokens} tokens: {expected[:8]} ...")

    report.restore()
    assert continued(made, prompt, options.tokens) == expected


if __name__ == "__main__":
    main()
